"""Images over the ends of epochs: pixels, targets and counts, drawn by workers or on the device."""

import functools
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lucid.datasets import EpochSampler, ShapesDataset, detection_collate
from lucid.datasets.device_loader import DeviceLoader
from lucid.datasets.shape_scenes import CLASSES
from lucid.engine.batch_stream import BatchStream
from lucid.models.data_preprocessors import DetDataPreprocessor

MAX_EPOCHS = 4
Stream = Callable[[DataLoader], BatchStream]


def epochs_of(stream: BatchStream) -> Iterator[Iterator[Any]]:
    return (stream.epoch(epoch, max_epochs=MAX_EPOCHS) for epoch in range(MAX_EPOCHS))


PIPELINE = [
    {'type': 'Mosaic', 'close_last': 2},
    {'type': 'RandomAffine'},
    {'type': 'Mixup', 'prob': 0.5, 'close_last': 1},
    {'type': 'RandomHSV'},
    {'type': 'HorizontalFlip'},
]


@pytest.fixture(scope='module')
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ShapesDataset]:
    folder = tmp_path_factory.mktemp('shapes')
    return functools.partial(
        ShapesDataset, folder, split='train', num_images=7, image_size=64, seed=3, pipeline=PIPELINE
    )


@pytest.mark.parametrize('kind', [DataLoader, functools.partial(DeviceLoader, jpeg=False)])
def test_pixels_and_targets_are_those_of_a_loader_that_begins_anew_also_when_mosaic_closes(
    stream: Stream, shapes: Callable[..., ShapesDataset], kind: Any
) -> None:
    preprocessor = DetDataPreprocessor(num_classes=len(CLASSES))

    def make(pipeline: Any = PIPELINE, **workers: Any) -> Any:
        dataset = shapes(pipeline=pipeline)
        sampler = EpochSampler(dataset, seed=0)
        return kind(dataset, batch_size=4, sampler=sampler, collate_fn=detection_collate, **workers)

    def drawn(loader: Any, epochs: Any) -> list[list[Any]]:
        result = []
        for epoch in epochs:
            loader.sampler.set_epoch(epoch, max_epochs=MAX_EPOCHS)
            result.append([preprocessor(batch) for batch in loader])
        return result

    def equal(one: list[Any], other: list[Any]) -> bool:
        pairs = list(zip(itertools.chain(*one), itertools.chain(*other), strict=True))
        assert len(pairs) == 2 * len(one)
        tensors = [zip((a['inputs'], *a['targets']), (b['inputs'], *b['targets']), strict=True) for a, b in pairs]
        return all(torch.equal(first, second) for first, second in itertools.chain(*tensors) if first is not None)

    expected = drawn(make(), range(MAX_EPOCHS))
    for num_workers in (1, 2):
        one = stream(make(num_workers=num_workers, persistent_workers=True))
        found = ([preprocessor(batch) for batch in batches] for batches in epochs_of(one))
        assert equal(list(found), expected)
        one.close()
    # Controls: epochs differ; mosaic is closed in the last two, which are those of a pipeline without it.
    assert not equal(expected[:1], expected[1:2])
    without = drawn(make(PIPELINE[1:]), range(MAX_EPOCHS))
    assert [equal([a], [b]) for a, b in zip(expected, without, strict=True)] == [False, False, True, True]


def test_images_are_counted_when_their_batch_is_taken_not_when_it_is_made(
    stream: Stream, shapes: Callable[..., ShapesDataset]
) -> None:
    dataset = shapes(pipeline=[])
    made = multiprocessing.Semaphore(0)
    options = {'batch_size': 4, 'sampler': EpochSampler(dataset, seed=0), 'num_workers': 1, 'persistent_workers': True}
    given = DeviceLoader(_Telling(dataset, made), **options)
    one = stream(given)
    for epoch in range(MAX_EPOCHS):
        counts = [given.pool.counts['jpeg'] for _ in one.epoch(epoch, max_epochs=MAX_EPOCHS)]
        # Nothing is drawn here, so that the pool stays empty and each image of a batch is sent.
        assert counts == [7 * epoch + 4, 7 * epoch + 7]
        if epoch + 1 < MAX_EPOCHS:
            assert all(made.acquire(timeout=60) for _ in range(7))
            assert made.acquire(timeout=60)  # one of the next epoch was made, and is not counted yet
            made.release()
            assert given.pool.counts['jpeg'] == 7 * (epoch + 1)


class _Telling(ShapesDataset):
    """The data set, which tells each sample that it made."""

    def __init__(self, dataset: ShapesDataset, made: Any) -> None:
        vars(self).update(vars(dataset), made=made)

    def __getitem__(self, key: Any) -> Any:
        sample = super().__getitem__(key)
        self.made.release()
        return sample
