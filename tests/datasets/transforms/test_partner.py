"""Second samples: the same for every number of workers, and from the first one's stream alone."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lucid.datasets import EpochSampler, ShapesDataset, detection_collate
from lucid.datasets.samplers import SampleKey
from lucid.datasets.transforms.partner import Partner, draw_partner

PIPELINE = [
    {'type': 'Mosaic', 'close_last': 2},
    {'type': 'RandomAffine', 'degrees': 5},
    {'type': 'Mixup', 'prob': 0.5, 'close_last': 2},
    {'type': 'CopyPaste', 'prob': 0.5, 'close_last': 2},
    {'type': 'RandomHSV'},
    {'type': 'HorizontalFlip'},
]


@pytest.fixture(scope='module')
def make(tmp_path_factory):
    folder = tmp_path_factory.mktemp('shapes')
    return partial(ShapesDataset, folder, split='train', num_images=12, image_size=64, targets=('boxes', 'polygons'))


def batches(dataset, num_workers, epochs=(0,)):
    sampler = EpochSampler(dataset, seed=0)
    loader = DataLoader(
        dataset,
        batch_size=5,
        sampler=sampler,
        collate_fn=detection_collate,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    result = []
    for epoch in epochs:
        sampler.set_epoch(epoch, max_epochs=10)
        result += list(loader)
    return result


def equal(first, second):
    return all(
        torch.equal(one['inputs'], other['inputs']) and all(map(torch.equal, one['targets'][:4], other['targets'][:4]))
        for one, other in zip(first, second, strict=True)
    )


def test_the_number_of_workers_changes_nothing(make):
    alone = batches(make(pipeline=PIPELINE), 0, epochs=(0, 1))
    assert equal(alone, batches(make(pipeline=PIPELINE), 2, epochs=(0, 1)))
    # Controls: other draws without the second samples, and in the next epoch.
    assert not equal(alone[:3], batches(make(pipeline=PIPELINE[:2] + PIPELINE[4:]), 0))
    assert not equal(alone[:3], alone[3:])


def test_a_sample_does_not_depend_on_those_before_it(make):
    dataset = make(pipeline=PIPELINE)
    key = SampleKey(3, 5, 7)
    first = dataset[key]
    for index in range(12):
        dataset[SampleKey(3, index, 7)]
    again = dataset[key]
    np.testing.assert_array_equal(first.image, again.image)
    np.testing.assert_array_equal(first.boxes, again.boxes)


def test_all_of_it_closes_with_the_mosaic(make):
    dataset, bare = make(pipeline=PIPELINE), make(pipeline=[PIPELINE[1], *PIPELINE[4:]])
    for remaining, closed in ((3, False), (2, True), (1, True)):
        keys = [SampleKey(10 - remaining, index, remaining) for index in range(12)]
        same = all(np.array_equal(dataset[key].image, bare[key].image) for key in keys)
        assert same is closed


def test_applying_the_same_parameters_gives_the_same_sample(make):
    dataset = make(pipeline=PIPELINE)
    mixup = dataset.pipeline[2]
    sample = dataset[SampleKey(0, 3, 1)]
    sample.key = SampleKey(0, 3, 9)
    drawn = next(d for seed in range(20) if (d := mixup.draw(np.random.default_rng(seed), sample)) is not None)
    first, second = mixup.apply(sample, drawn), mixup.apply(sample, drawn)
    np.testing.assert_array_equal(first.image, second.image)
    np.testing.assert_array_equal(first.boxes, second.boxes)
    assert not np.array_equal(first.image, sample.image)


def test_a_partner_is_an_image_and_a_seed():
    drawn = [draw_partner(np.random.default_rng(seed), range(3)) for seed in range(200)]
    assert {partner.image for partner in drawn} == {0, 1, 2}
    assert len({partner.seed for partner in drawn}) == 200
    assert draw_partner(np.random.default_rng(5), range(3)) == drawn[5]
    assert Partner(1, 2) == (1, 2)
