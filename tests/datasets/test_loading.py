"""The data set under torch's DataLoader, as mmengine's Runner builds it."""

import cv2
import pytest
import torch
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmengine.utils.dl_utils import set_multi_processing

from lucid.datasets import SampleKey, ShapesDataset

PIPELINE = [
    {'type': 'Mosaic', 'close_last': 2},
    {'type': 'RandomAffine', 'degrees': 5},
    {'type': 'RandomHSV'},
    {'type': 'HorizontalFlip'},
]


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp('shapes')
    ShapesDataset(folder, split='train', num_images=12, image_size=64)
    return folder


def loader(root, num_workers, pipeline=PIPELINE, seed=0, **changes):
    dataset = {
        'type': 'ShapesDataset',
        'data_root': str(root),
        'split': 'train',
        'num_images': 12,
        'image_size': 64,
        'seed': seed,
        'pipeline': pipeline,
    }
    init_default_scope('lucid')
    return Runner.build_dataloader(
        {
            'dataset': dataset,
            'sampler': {'type': 'EpochSampler', 'shuffle': True},
            'collate_fn': {'type': 'detection_collate'},
            'batch_size': 5,
            'num_workers': num_workers,
            **changes,
        },
        seed=seed,
    )


def batches(loader, epochs=(0,), max_epochs=10, start=0):
    result = []
    for epoch in epochs:
        loader.sampler.set_epoch(epoch, max_epochs=max_epochs, start=start)
        result += list(loader)
    return result


def equal(first, second):
    return all(
        torch.equal(one['inputs'], other['inputs'])
        and all(map(torch.equal, one['targets'][:4], other['targets'][:4]))
        and list(one['targets'].counts) == list(other['targets'].counts)
        and [meta['file'] for meta in one['metas']] == [meta['file'] for meta in other['metas']]
        for one, other in zip(first, second, strict=True)
    )


def test_the_number_of_workers_changes_nothing(root):
    alone = batches(loader(root, 0), epochs=(0, 1))
    assert [len(batch['inputs']) for batch in alone] == [5, 5, 2, 5, 5, 2]
    assert equal(alone, batches(loader(root, 2), epochs=(0, 1)))
    kept = loader(root, 2, persistent_workers=True)
    assert equal(alone, batches(kept, epochs=(0, 1)))
    assert equal(alone[3:], batches(kept, epochs=(1,)))
    # Controls: another epoch, and another seed, give other batches.
    assert not equal(alone[:3], alone[3:])
    assert not equal(alone[:3], batches(loader(root, 0, seed=1)))


def test_a_resumed_epoch_continues_with_the_same_batches(root):
    whole = batches(loader(root, 0), epochs=(3,))
    assert equal(whole[1:], batches(loader(root, 2), epochs=(3,), start=5))


def test_mosaic_closes_in_persistent_workers(root):
    kept = loader(root, 2, persistent_workers=True)
    bare = loader(root, 0, pipeline=PIPELINE[1:])
    for epoch, closed in ((7, False), (8, True), (9, True)):
        with_mosaic, without = batches(kept, epochs=(epoch,)), batches(bare, epochs=(epoch,))
        # Mosaic draws before the affine only while it is open, so closed epochs equal a pipeline without it.
        assert equal(with_mosaic, without) is closed


def test_a_bad_image_stops_loading_with_its_name(root, tmp_path):
    (tmp_path / 'train').mkdir()
    for path in (root / 'train').iterdir():
        (tmp_path / 'train' / path.name).write_bytes(path.read_bytes())
    broken = tmp_path / 'train/000004.jpg'
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r'000004\.jpg.*truncated'):
        batches(loader(tmp_path, 1))


def test_forked_workers_decode_on_one_thread(root):
    threads = cv2.getNumThreads()
    try:
        set_multi_processing()  # as the Runner does with its default env_cfg
        assert cv2.getNumThreads() == 1
    finally:
        cv2.setNumThreads(threads)


def test_plain_indices_are_validation(root):
    data = ShapesDataset(root, split='train', num_images=12, image_size=64, pipeline=PIPELINE)
    first = data[3]
    assert first.key == SampleKey(0, 3, 0)
    assert torch.equal(torch.from_numpy(first.image), torch.from_numpy(data[3].image))
