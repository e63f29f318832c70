import sys

import numpy as np
import pytest

from lucid.datasets import samplers
from lucid.datasets.samplers import EpochSampler, SampleKey


def indices(sampler):
    return [key.index for key in sampler]


def test_keys_carry_epoch_and_remaining_epochs():
    sampler = EpochSampler(range(3), seed=0, shuffle=False)
    sampler.set_epoch(4, max_epochs=10)
    assert list(sampler) == [SampleKey(4, 0, 6), SampleKey(4, 1, 6), SampleKey(4, 2, 6)]


def test_a_loop_that_does_not_know_the_number_of_epochs_never_nears_the_end():
    sampler = EpochSampler(range(1), seed=0)
    assert next(iter(sampler)).remaining == sys.maxsize
    sampler.set_epoch(3)
    assert next(iter(sampler)) == SampleKey(3, 0, sys.maxsize)


def test_a_plain_index_is_epoch_zero_with_nothing_remaining():
    assert SampleKey.of(np.int64(5)) == SampleKey(0, 5, 0)
    assert SampleKey.of(SampleKey(1, 2, 3)) == SampleKey(1, 2, 3)


def test_the_order_changes_with_the_epoch_and_repeats_with_the_seed():
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0)):
        sampler = EpochSampler(range(50), seed=seed)
        sampler.set_epoch(epoch)
        orders.append(indices(sampler))
        assert sorted(orders[-1]) == list(range(50))
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_a_resumed_epoch_continues_where_it_stopped():
    sampler = EpochSampler(range(20), seed=3)
    sampler.set_epoch(2, max_epochs=5)
    whole = list(sampler)
    sampler.set_epoch(2, max_epochs=5, start=8)
    assert list(sampler) == whole[8:]
    assert len(sampler) == 20
    sampler.set_epoch(3, max_epochs=5)
    assert len(list(sampler)) == 20


@pytest.mark.parametrize('round_up', [True, False])
def test_ranks_share_the_samples(monkeypatch, round_up):
    shards = []
    for rank in range(3):
        monkeypatch.setattr(samplers, 'get_dist_info', lambda rank=rank: (rank, 3))
        sampler = EpochSampler(range(10), seed=0, round_up=round_up)
        shards.append(indices(sampler))
        assert len(shards[-1]) == len(sampler)
    lengths = [len(shard) for shard in shards]
    assert lengths == ([4, 4, 4] if round_up else [4, 3, 3])
    assert set().union(*shards) == set(range(10))
    # Rounded up, the common order wraps around: the two extra samples are its first two.
    monkeypatch.setattr(samplers, 'get_dist_info', lambda: (0, 1))
    order = indices(EpochSampler(range(10), seed=0))
    wrapped = order + order[:2] if round_up else order
    assert shards == [wrapped[rank::3] for rank in range(3)]


def test_more_ranks_than_samples_each_get_one(monkeypatch):
    monkeypatch.setattr(samplers, 'get_dist_info', lambda: (4, 5))
    assert indices(EpochSampler(range(2), seed=0, shuffle=False)) == [0]


def test_every_sample_of_every_epoch_draws_other_numbers():
    draws = {
        SampleKey(epoch, index, 9).generator(seed).random()
        for seed in (0, 1)
        for epoch in range(3)
        for index in range(9)
    }
    assert len(draws) == 2 * 3 * 9
    assert SampleKey(1, 2, 9).generator(0).random() == SampleKey(1, 2, 5).generator(0).random()
