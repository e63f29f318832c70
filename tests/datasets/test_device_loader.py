"""Batches that are drawn on the device: the same samples as on the host, whatever loads them."""

import gc
from functools import partial

import numpy as np
import PIL.Image
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader

from lucid.datasets import EpochSampler, ShapesDataset, detection_collate
from lucid.datasets.device_loader import DeviceLoader
from lucid.datasets.shape_scenes import CLASSES
from lucid.models.data_preprocessors import DetDataPreprocessor

PIPELINE = [
    {'type': 'Mosaic', 'close_last': 2},
    {'type': 'RandomAffine'},
    {'type': 'Mixup', 'prob': 0.5, 'close_last': 2},
    {'type': 'CopyPaste', 'prob': 0.5, 'close_last': 2},
    {'type': 'RandomHSV'},
    {'type': 'HorizontalFlip'},
]


@pytest.fixture(scope='module')
def make(tmp_path_factory):
    folder = tmp_path_factory.mktemp('shapes')
    return partial(
        ShapesDataset,
        folder,
        split='train',
        num_images=12,
        image_size=64,
        targets=('boxes', 'polygons'),
        pipeline=PIPELINE,
    )


def loader(dataset, kind=DeviceLoader, num_workers=0, **options):
    sampler = EpochSampler(dataset, seed=0)
    kept = {'persistent_workers': True} if num_workers else {}
    options = {'batch_size': 5, 'sampler': sampler, 'num_workers': num_workers, **kept, **options}
    return kind(dataset, collate_fn=detection_collate, **options)


def batches(loader, device, epochs=(0,), start=0):
    preprocessor = DetDataPreprocessor(num_classes=len(CLASSES)).to(device)
    result = []
    for epoch in epochs:
        loader.sampler.set_epoch(epoch, max_epochs=10, start=start)
        for batch in loader:
            files = [meta['file'] for meta in batch['metas']]
            result.append((files, preprocessor(batch)))
    return result


def equal(first, second):
    return len(first) == len(second) and all(
        files == others
        and torch.equal(one['inputs'], other['inputs'])
        and all(torch.equal(a, b) for a, b in zip(one['targets'], other['targets'], strict=True) if a is not None)
        for (files, one), (others, other) in zip(first, second, strict=True)
    )


def test_targets_are_those_of_the_host_bit_for_bit_and_images_to_rounding(make, device):
    drawn = batches(loader(make(), jpeg=False), device, epochs=(0, 1))
    usual = batches(loader(make(), DataLoader), device, epochs=(0, 1))
    assert len(drawn) == 6
    for (files, ours), (others, theirs) in zip(drawn, usual, strict=True):
        assert files == others
        assert all(torch.equal(a, b) for a, b in zip(ours['targets'], theirs['targets'], strict=True) if a is not None)
        difference = (ours['inputs'] - theirs['inputs']).abs() * 255
        assert difference.max() < 8
        assert difference.mean() < 0.01
        assert ours['inputs'].is_contiguous(memory_format=torch.channels_last)
    # Control: the next epoch is another.
    assert not equal(drawn[:3], drawn[3:])


def test_targets_of_all_kinds_are_those_of_the_host_bit_for_bit(make, device):
    dataset = make(targets=('boxes', 'masks', 'rboxes', 'keypoints'), split='kinds')
    collate = partial(detection_collate, masks=True)
    drawn, usual = (
        batches(kind(dataset, collate_fn=collate, batch_size=6, sampler=EpochSampler(dataset, seed=0)), device)
        for kind in (DeviceLoader, DataLoader)
    )
    for (_, ours), (_, theirs) in zip(drawn, usual, strict=True):
        assert all(kind is not None for kind in ours['targets'])
        assert all(map(torch.equal, ours['targets'], theirs['targets']))
        assert ours['targets'].masks_BMHW.any()
        assert ours['targets'].keypoints_BMJ3[..., 2].any()


def test_the_number_of_workers_changes_nothing(make, device):
    alone = batches(loader(make()), device, epochs=(0, 1))
    assert equal(alone, batches(loader(make(), num_workers=1), device, epochs=(0, 1)))
    assert equal(alone, batches(loader(make(), num_workers=4), device, epochs=(0, 1)))


@pytest.mark.parametrize('pool_mb', [0, 1])
def test_the_pool_changes_nothing(make, device, pool_mb):
    small = loader(make(scene_size=300, split='large'), num_workers=1, pool_mb=pool_mb)  # 0.26 MB an image
    large = loader(make(scene_size=300, split='large'), pool_mb=100)
    assert equal(batches(small, device, epochs=(0, 1)), batches(large, device, epochs=(0, 1)))
    assert len(large.pool) == 12
    assert len(small.pool) == (3 if pool_mb else 0)
    assert small.pool.num_bytes <= pool_mb * 2**20


def test_in_the_end_nothing_is_sent_any_more_and_memory_does_not_grow(make):
    whole = loader(make())
    sizes = []
    for epoch in range(4):
        batches(whole, torch.device('cpu'), epochs=(epoch,))
        sizes.append((len(whole.pool), whole.pool.num_bytes))
    assert sizes[1:] == [(12, 12 * 3 * 64 * 64)] * 3
    whole.sampler.set_epoch(4, max_epochs=10)
    assert [len(batch['inputs'].content_D) for batch in whole] == [0, 0, 0]


def test_an_epoch_resumes_in_its_middle_with_the_same_batches(make, device):
    whole = batches(loader(make()), device, epochs=(3,))
    assert equal(whole[1:], batches(loader(make(), num_workers=2), device, epochs=(3,), start=5))


def test_a_loop_that_breaks_off_can_begin_again_and_leaves_no_worker(make):
    broken = loader(make(), num_workers=2)
    whole = batches(loader(make()), torch.device('cpu'), epochs=(0,))
    for _ in broken:
        break
    assert equal(whole, batches(broken, torch.device('cpu'), epochs=(0,)))
    workers = broken._iterator._workers
    del broken
    gc.collect()
    for worker in workers:
        worker.join(timeout=10)
        assert not worker.is_alive()


def test_an_image_that_the_pool_dropped_meanwhile_is_read_here(make):
    late = loader(make(), num_workers=0)
    late.sampler.set_epoch(0, max_epochs=10)
    whole = batches(loader(make()), torch.device('cpu'))
    late.pool.resident.fill_(1)  # as a worker saw it before all of them were dropped
    assert equal(whole, batches(late, torch.device('cpu')))
    assert late.pool.counts['late'] > 0
    assert late.pool.counts['late'] == late.pool.counts['read']


def test_a_file_that_the_device_can_decode_is_had_once_more(make, tmp_path):
    dataset = ShapesDataset(tmp_path, split='train', num_images=3, image_size=64)
    pool = loader(dataset).pool
    assert pool.content(1) == (tmp_path / 'train/000001.jpg').read_bytes()
    PIL.Image.open(tmp_path / 'train/000002.jpg').save(tmp_path / 'other.png')
    (tmp_path / 'other.png').rename(tmp_path / 'train/000002.jpg')
    assert pool.content(2) is None
    assert loader(dataset, jpeg=False).pool.content(1) is None


@pytest.mark.parametrize('num_workers', [0, 1])
def test_a_bad_image_stops_loading_with_its_name(make, tmp_path, num_workers):
    dataset = ShapesDataset(tmp_path, split='train', num_images=6, image_size=64)
    broken = tmp_path / 'train/000004.jpg'
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r'000004\.jpg.*truncated'):
        list(loader(dataset, num_workers=num_workers))


def test_what_cannot_leave_its_images_undrawn_is_refused(make):
    with pytest.raises(ValueError, match=r'ConcatDataset.*device_images=False'):
        DeviceLoader(ConcatDataset([make()]))
    with pytest.raises(ValueError, match='device_images needs collate_fn'):
        DeviceLoader(make(), collate_fn=lambda samples: samples)


def test_counts_tell_how_images_came(make):
    counted = loader(make())
    batches(counted, torch.device('cpu'))
    assert counted.pool.counts['jpeg'] == 12
    assert counted.pool.counts['read'] == 12  # there is no decoder here
    assert counted.pool.counts['found'] > 12


def test_a_users_transform_that_works_on_pixels_is_drawn_on_the_host_and_counted(make, device):
    from lucid.datasets.picture import Picture
    from lucid.datasets.transforms import Letterbox, Transform

    class Invert(Transform):
        def apply(self, sample, parameters):
            sample.picture = Picture.of(255 - sample.image)
            return sample

    pipeline = [Invert(), Letterbox(image_size=64)]
    drawn, usual = loader(make(pipeline=pipeline)), loader(make(pipeline=pipeline), DataLoader)
    for (_, ours), (_, theirs) in zip(batches(drawn, device), batches(usual, device), strict=True):
        assert torch.equal(ours['inputs'], theirs['inputs'])
    assert drawn.pool.counts['drawn'] == 12
    assert np.isclose(drawn.pool.num_bytes, 0)


@pytest.mark.cuda
def test_the_cards_decoder_is_close_to_the_hosts(make):
    device = torch.device('cuda')
    decoded = loader(make())
    ours, theirs = batches(decoded, device, epochs=(0, 1)), batches(loader(make(), jpeg=False), device, epochs=(0, 1))
    assert decoded.pool.counts['device'] == 12
    assert not decoded.pool.counts['refused']
    for (_, one), (_, other) in zip(ours, theirs, strict=True):
        assert (one['inputs'] - other['inputs']).abs().mean() * 255 < 3


@pytest.mark.cuda
def test_drawing_waits_for_nobody_and_the_step_waits_for_it(make):
    device = torch.device('cuda')
    preprocessor = DetDataPreprocessor(num_classes=len(CLASSES)).to(device)
    expected = batches(loader(make(), jpeg=False), device)
    given = loader(make(), jpeg=False, pin_memory=True)
    given.sampler.set_epoch(0, max_epochs=10)
    # A long step is in hand: pictures are drawn beside it, and what reads them comes after.
    for batch, (_, whole) in zip(given, expected, strict=True):
        torch.cuda._sleep(100_000_000)
        inputs = preprocessor(batch)['inputs']
        copy = inputs.clone()
        del inputs
        torch.cuda.synchronize()
        assert torch.equal(copy, whole['inputs'])
