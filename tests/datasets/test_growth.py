"""Memory and open files over epochs, of the process that trains and of its worker."""

import gc
import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from lucid.datasets import EpochSampler, ShapesDataset, detection_collate
from lucid.datasets.device_loader import DeviceLoader
from lucid.datasets.shape_scenes import CLASSES
from lucid.models.data_preprocessors import DetDataPreprocessor

PIPELINE = [
    {'type': 'Mosaic', 'close_last': 0},
    {'type': 'RandomAffine'},
    {'type': 'Mixup', 'prob': 0.3, 'close_last': 0},
    {'type': 'RandomHSV'},
    {'type': 'HorizontalFlip'},
]
WARM, EPOCHS = 4, 9
LIMIT = 3 * 2**20


def usage(loader):
    """Bytes of tensors here and of the worker's memory, and what else would run out: open files, mapped ones."""
    gc.collect()
    storages = {}
    for value in gc.get_objects():
        if type(value) is torch.Tensor:
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    pages = [int(Path(f'/proc/{worker.pid}/statm').read_text().split()[1]) for worker in loader._iterator._workers]
    return {
        'tensors': sum(storages.values()),
        'worker': sum(pages) * os.sysconf('SC_PAGE_SIZE'),
        'open': len(os.listdir('/proc/self/fd')),
        'mapped': Path('/proc/self/maps').read_text().count('/torch_'),
    }


@pytest.fixture(scope='module')
def dataset(tmp_path_factory):
    return ShapesDataset(
        tmp_path_factory.mktemp('shapes'),
        split='train',
        num_images=16,
        image_size=96,
        scene_size=160,
        targets=('boxes', 'polygons'),
        pipeline=PIPELINE,
    )


def growth(dataset, kind, keep):
    """By how much each of them grew between the first epochs and the last."""
    sampler = EpochSampler(dataset, seed=0)
    options = {'pool_mb': 1} if kind is DeviceLoader else {}  # 13 of 16 images
    loader = kind(
        dataset,
        batch_size=8,
        sampler=sampler,
        num_workers=1,
        persistent_workers=True,
        collate_fn=detection_collate,
        **options,
    )
    preprocessor = DetDataPreprocessor(num_classes=len(CLASSES))
    kept, before = [], {}
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch, max_epochs=EPOCHS)
        for batch in loader:
            inputs = preprocessor(batch)['inputs']
            if keep:
                kept.append(inputs)
        del batch, inputs
        if epoch == WARM:
            before = usage(loader)
    after = usage(loader)
    return {name: after[name] - before[name] for name in after}


@pytest.mark.parametrize('kind', [DataLoader, DeviceLoader])
def test_neither_way_of_loading_takes_more_memory_or_files_from_epoch_to_epoch(dataset, kind):
    grown = growth(dataset, kind, keep=False)
    assert grown['worker'] < LIMIT
    assert grown['tensors'] < LIMIT
    assert grown['open'] <= 2
    assert grown['mapped'] <= 2
    # Control: batches that somebody keeps.
    assert growth(dataset, kind, keep=True)['tensors'] > 2 * LIMIT
