from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from torch.utils.data import DataLoader

from lucid.datasets import samplers
from lucid.datasets.repeat_factor import RepeatFactorSampler, class_presence, draw_counts, repeat_factors
from lucid.datasets.samplers import EpochSampler, SampleKey


class Labelled:
    """Image i has the labels of ``rows[i]``; a negative one, -label - 1, is a crowd."""

    classes = ('common', 'rare', 'nowhere')

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        return key

    def ground_truth(self, index):
        row = np.array(self.rows[index], dtype=np.int64)
        return SimpleNamespace(labels=np.where(row < 0, -row - 1, row), iscrowd=row < 0)


def sampler_of(rows, **options):
    return RepeatFactorSampler(Labelled(rows), seed=0, **options)


# 16 images: all hold class 0, one of them class 1, another class 1 as a crowd only, and one nothing.
ROWS = [[0, 0, 1]] + [[0]] * 13 + [[0, -2], []]


def test_presence_is_per_image_and_a_crowd_does_not_count():
    presence = class_presence(Labelled(ROWS))
    assert presence.shape == (16, 3)
    assert presence.sum(0).tolist() == [15, 1, 0]


def test_factors_are_those_of_the_paper():
    """r = max(1, sqrt(t / f)): f(rare) = 1/16 and t = 1/4 give 2; of an image the largest counts; else 1."""
    factors = repeat_factors(class_presence(Labelled(ROWS)), threshold=0.25, power=0.5)
    assert factors.tolist() == [2.0] + [1.0] * 15
    # Power 1 is the inverse frequency: (1/4) / (1/16) = 4.
    assert repeat_factors(class_presence(Labelled(ROWS)), threshold=0.25, power=1.0).tolist() == [4.0] + [1.0] * 15


def test_by_default_an_epoch_has_the_sum_of_the_factors_and_leaves_no_image_out():
    sampler = sampler_of(ROWS, threshold=0.25)
    assert len(sampler) == 17
    for epoch in range(5):
        sampler.set_epoch(epoch)
        drawn = Counter(key.index for key in sampler)
        assert drawn == {0: 2, **dict.fromkeys(range(1, 16), 1)}


def test_a_repeated_image_is_another_sample_and_a_first_one_that_of_the_plain_sampler():
    sampler = sampler_of(ROWS, threshold=0.25)
    sampler.set_epoch(3, max_epochs=10)
    keys = [key for key in sampler if key.index == 0]
    assert sorted(keys) == [SampleKey(3, 0, 7, 0), SampleKey(3, 0, 7, 1)]
    first, second = (key.generator(0).random() for key in sorted(keys))
    assert first != second
    plain = EpochSampler(Labelled(ROWS), seed=0)
    plain.set_epoch(3, max_epochs=10)
    assert next(key for key in plain if key.index == 0).generator(0).random() == first


def test_control_the_plain_sampler_draws_the_rare_image_once():
    assert Counter(key.index for key in EpochSampler(Labelled(ROWS), seed=0))[0] == 1


def test_each_count_is_its_share_rounded_and_right_on_average():
    factors = np.array([1.0, 1.5, 2.25, 1.0, 4.25])  # sum 10: of 20 samples 2, 3, 4.5, 2 and 8.5
    counts = np.array([draw_counts(factors, 20, np.random.default_rng(seed)) for seed in range(400)])
    assert (counts.sum(1) == 20).all()
    assert (np.abs(counts - 2 * factors) < 1).all()
    assert set(counts[:, 2]) == {4, 5}
    np.testing.assert_allclose(counts.mean(0), 2 * factors, atol=0.1)


def test_the_number_of_samples_is_as_configured_over_all_ranks(monkeypatch):
    shards = []
    for rank in range(3):
        monkeypatch.setattr(samplers, 'get_dist_info', lambda rank=rank: (rank, 3))
        sampler = sampler_of(ROWS, threshold=0.25, num_samples=40)
        shards.append(list(sampler))
        assert len(sampler) == len(shards[-1]) == 14
    monkeypatch.setattr(samplers, 'get_dist_info', lambda: (0, 1))
    whole = list(sampler_of(ROWS, threshold=0.25, num_samples=40))
    assert len(whole) == 40
    assert shards == [(whole + whole[:2])[rank::3] for rank in range(3)]
    assert len(set(whole)) == 40  # no key twice: repeats are counted


def test_the_draw_depends_on_seed_and_epoch_alone():
    def draw(seed, epoch):
        sampler = RepeatFactorSampler(Labelled(ROWS), seed=seed, threshold=0.25)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert draw(0, 1) == draw(0, 1)
    indices = [[key.index for key in draw(*place)] for place in ((0, 0), (0, 1), (1, 0))]
    assert indices[0] != indices[1] != indices[2] != indices[0]


def test_a_resumed_epoch_continues_where_it_stopped():
    sampler = sampler_of(ROWS, threshold=0.25)
    sampler.set_epoch(2, max_epochs=5)
    whole = list(sampler)
    sampler.set_epoch(2, max_epochs=5, start=8)
    assert list(sampler) == whole[8:]
    assert len(sampler) == 17


@pytest.mark.parametrize('workers', [0, 2])
def test_workers_change_nothing(workers):
    sampler = sampler_of(ROWS, threshold=0.25)
    loader = DataLoader(Labelled(ROWS), 4, sampler=sampler, num_workers=workers, collate_fn=list)
    assert [key for batch in loader for key in batch] == list(sampler)


def test_what_is_drawn_more_often_is_told():
    assert 'with a rare class: rare 0.0625' in sampler_of(ROWS, threshold=0.25).describe()
    assert 'none repeats' in sampler_of(ROWS, threshold=0.05).describe()


@pytest.mark.parametrize('options', [{'threshold': 0.0}, {'threshold': 1.5}, {'power': 0.0}, {'num_samples': 0}])
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(ValueError, match='threshold above 0 to 1, a positive power'):
        sampler_of(ROWS, **options)


def test_a_data_set_that_does_not_tell_its_classes_is_refused():
    with pytest.raises(ValueError, match=r'range has no classes or no ground_truth.*use EpochSampler'):
        RepeatFactorSampler(range(4), seed=0)
