"""Batches over the ends of epochs are those of a loader that begins each epoch anew."""

import functools
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from lucid.datasets import EpochSampler, RepeatFactorSampler, SampleKey
from lucid.engine.batch_stream import BatchStream, close_workers, streams

MAX_EPOCHS = 4


class Keys(Dataset):
    """Gives back what it is asked for; notes it where all processes see it, and fails at one key."""

    def __init__(self, length: int = 10, *, fail_at: tuple[int, int] | None = None) -> None:
        self.length, self.fail_at = length, fail_at
        self.asked = torch.zeros(MAX_EPOCHS + 1, length, dtype=torch.int64).share_memory_()
        self.begun = [multiprocessing.Event() for _ in range(MAX_EPOCHS + 1)]  # an epoch's first sample was asked for

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: SampleKey) -> SampleKey:
        self.asked[key.epoch, key.index] += 1
        self.begun[key.epoch].set()
        if (key.epoch, key.index) == self.fail_at:
            raise ArithmeticError(f'bad image {key.index}')
        return key


class Labelled(Keys):
    """Image i holds class 0; only image 3 holds class 1."""

    classes = ('often', 'rare')

    def ground_truth(self, index: int) -> Any:
        labels = torch.tensor([0, 1] if index == 3 else [0]).numpy()
        return type('Truth', (), {'labels': labels, 'iscrowd': labels < 0})


def keep(samples: list[SampleKey]) -> list[SampleKey]:
    return samples


def loader_of(dataset: Dataset, num_workers: int = 1, *, kind: type = EpochSampler, **options: Any) -> DataLoader:
    kept = {'num_workers': num_workers, 'persistent_workers': True, 'prefetch_factor': 2} if num_workers else {}
    options = {'batch_size': 4, 'sampler': kind(dataset, seed=0), 'collate_fn': keep, **kept, **options}
    return DataLoader(dataset, **options)


def epoch_by_epoch(loader: DataLoader, epochs: Any, *, max_epochs: int = MAX_EPOCHS) -> list[list[Any]]:
    """What the batch sampler that torch builds gives, epoch after epoch, without a loader's workers."""
    result = []
    for epoch in epochs:
        loader.sampler.set_epoch(epoch, max_epochs=max_epochs)
        result.append(list(loader.batch_sampler))
    return result


Stream = Callable[[DataLoader], BatchStream]


def taken(stream: BatchStream, epochs: Any, *, max_epochs: int = MAX_EPOCHS) -> list[list[Any]]:
    return [list(stream.epoch(epoch, max_epochs=max_epochs)) for epoch in epochs]


def workers_of(stream: BatchStream) -> list[Any]:
    assert stream._begun is not None
    return list(stream._begun._iterator._workers)


rarely = functools.partial(RepeatFactorSampler, threshold=0.9, power=1.0)  # the rare image 9 times, 18 samples


@pytest.mark.parametrize(('kind', 'sizes'), [(EpochSampler, [4, 4, 2]), (rarely, [4, 4, 4, 4, 2])])
@pytest.mark.parametrize(('num_workers', 'drop_last'), [(1, False), (2, True), (2, False)])
def test_every_epoch_has_the_keys_in_the_batches_of_a_loader_that_begins_anew(
    stream: Stream, kind: Any, sizes: list[int], num_workers: int, drop_last: bool
) -> None:
    """Keys have epoch, index, remaining epochs and repeats: all that a sample depends on."""
    given = loader_of(Labelled(), num_workers, kind=kind, drop_last=drop_last)
    expected = epoch_by_epoch(given, range(MAX_EPOCHS))
    assert taken(stream(given), range(MAX_EPOCHS)) == expected
    assert [[len(batch) for batch in epoch] for epoch in expected] == [sizes[:-1] if drop_last else sizes] * MAX_EPOCHS
    assert any(key.repeat for key in itertools.chain(*expected[0])) is (kind is rarely)
    # Controls: epochs differ, and a sampler that only went on would fill the last batch from the next epoch.
    assert expected[0] != expected[1]
    flat = list(itertools.chain(*expected))
    assert drop_last or list(BatchSampler(list(itertools.chain(*flat)), 4, drop_last)) != flat


def test_each_of_several_processes_has_its_part_of_every_epoch(stream: Stream) -> None:
    parts = []
    for rank in range(2):
        given = loader_of(Keys())
        given.sampler.rank, given.sampler.world_size = rank, 2
        expected = epoch_by_epoch(given, range(MAX_EPOCHS))
        assert taken(stream(given), range(MAX_EPOCHS)) == expected
        parts.append(expected)
    for first, second in zip(*parts, strict=True):
        assert {key.index for key in itertools.chain(*first, *second)} == set(range(10))
    assert parts[0] != parts[1]


def test_an_epoch_resumes_in_its_middle_or_at_its_end_and_the_next_one_is_whole(stream: Stream) -> None:
    given = loader_of(Keys())
    expected = epoch_by_epoch(given, range(MAX_EPOCHS))
    for position in (1, 3):
        resumed = stream(given)
        first = list(resumed.epoch(1, max_epochs=MAX_EPOCHS, position=position))
        assert [first, *taken(resumed, (2, 3))] == [expected[1][position:], *expected[2:]]


def test_whoever_tells_the_sampler_another_epoch_meanwhile_changes_nothing(stream: Stream) -> None:
    """mmengine's DistSamplerSeedHook does, without the number of epochs, so that mosaic would never close."""
    given = loader_of(Keys())
    expected = epoch_by_epoch(given, range(MAX_EPOCHS))
    one, found = stream(given), []
    for epoch in range(MAX_EPOCHS):
        given.sampler.set_epoch(epoch)
        found.append([])
        for batch in one.epoch(epoch, max_epochs=MAX_EPOCHS):
            found[-1].append(batch)
            given.sampler.set_epoch(17)
    assert found == expected
    assert [key.epoch for key in given.sampler] == [17] * 10  # control: it was told


def test_a_run_that_became_longer_and_an_epoch_that_does_not_follow_begin_anew(stream: Stream) -> None:
    given = loader_of(Keys())
    one = stream(given)
    assert taken(one, [0]) == epoch_by_epoch(given, [0])
    longer = [next(iter(one.epoch(1, max_epochs=9)))]  # not to its end
    assert longer == epoch_by_epoch(given, [1], max_epochs=9)[0][:1]
    assert taken(one, [1, 2]) == epoch_by_epoch(given, [1, 2])
    assert taken(one, [0]) == epoch_by_epoch(given, [0])


def test_an_epoch_that_is_left_early_is_whole_when_it_is_asked_again(stream: Stream) -> None:
    given = loader_of(Keys())
    one = stream(given)
    taken(one, [0])
    left = one.epoch(1, max_epochs=MAX_EPOCHS)  # by the workers of epoch 0
    assert next(left) == epoch_by_epoch(given, [1])[0][0]
    assert taken(one, [1, 2]) == epoch_by_epoch(given, [1, 2])


class Switched(Keys):
    """Says by which pipeline a sample was made."""

    pipeline = 'first'

    def __getitem__(self, key: SampleKey) -> Any:
        return super().__getitem__(key), self.pipeline


def test_workers_know_a_changed_data_set_from_the_epoch_on_in_which_a_hook_asks_for_new_ones(stream: Stream) -> None:
    """By the words of mmdet's PipelineSwitchHook, at the beginning of an epoch, which the next one takes back."""
    given = loader_of(Switched())
    one, found = stream(given), []
    for epoch in range(MAX_EPOCHS):
        if epoch == 1:
            given.dataset.pipeline = 'second'
            given._DataLoader__initialized, given._iterator = False, None
        if epoch == 2:
            given._DataLoader__initialized = True
        if epoch == 3:
            given.dataset.pipeline = 'third'  # control: nobody asks
        batches = list(one.epoch(epoch, max_epochs=MAX_EPOCHS))
        assert [[key for key, _ in batch] for batch in batches] == epoch_by_epoch(loader_of(Keys()), [epoch])[0]
        found.append({pipeline for batch in batches for _, pipeline in batch})
    assert found == [{'first'}, {'second'}, {'second'}, {'second'}]


def test_workers_begin_the_next_epoch_while_the_last_batch_of_this_one_is_in_hand(stream: Stream) -> None:
    dataset = Keys()
    batches = stream(loader_of(dataset)).epoch(0, max_epochs=MAX_EPOCHS)
    for _ in range(3):
        next(batches)
    assert dataset.begun[1].wait(timeout=60)
    # Control: a loader that begins each epoch anew has asked nobody, so that nothing can have come.
    dataset = Keys()
    usual = loader_of(dataset)
    usual.sampler.set_epoch(0, max_epochs=MAX_EPOCHS)
    assert len(list(usual)) == 3
    assert not dataset.begun[1].is_set()
    close_workers(usual)


@pytest.mark.parametrize(('num_workers', 'prefetch'), [(1, 1), (1, 3), (2, 2)])
def test_no_more_is_asked_ahead_than_inside_an_epoch(stream: Stream, num_workers: int, prefetch: int) -> None:
    """At an epoch's end there is room for so many batches of the next ones, however long that lasts."""
    dataset = Keys()
    given = loader_of(dataset, num_workers, prefetch_factor=prefetch)
    one = stream(given)
    assert len(taken(one, [0])[0]) == 3
    assert list(one._plan.asked) == [1, 1, 1, 2][: num_workers * prefetch]
    taken(one, [1, 2])
    one.close()  # which waits for the workers
    assert dataset.asked[0].tolist() == [1] * 10
    assert int(dataset.asked.sum()) <= 30 + 4 * num_workers * prefetch


def test_after_the_last_epoch_nothing_is_read_and_workers_end(stream: Stream) -> None:
    dataset = Keys()
    one = stream(loader_of(dataset, 2))
    taken(one, range(2), max_epochs=2)
    assert not one._plan.asked
    workers = workers_of(one)
    assert all(worker.is_alive() for worker in workers)  # control
    one.close()
    assert not any(worker.is_alive() for worker in workers)
    assert dataset.asked.sum(1).tolist() == [10, 10, 0, 0, 0]


def test_workers_end_with_batches_that_nobody_took(stream: Stream) -> None:
    dataset = Keys()
    one = stream(loader_of(dataset, 2))
    taken(one, [0])
    assert dataset.begun[1].wait(timeout=60)
    workers = workers_of(one)
    one.close()
    assert not any(worker.is_alive() for worker in workers)
    assert taken(one, [1, 2]) == epoch_by_epoch(one.loader, [1, 2])  # and others begin, if somebody goes on


@pytest.mark.parametrize('num_workers', [1, 2])
def test_a_bad_image_of_the_next_epoch_is_raised_at_its_own_place(stream: Stream, num_workers: int) -> None:
    index = epoch_by_epoch(loader_of(Keys()), [1])[0][0][0].index  # the first sample of epoch 1
    dataset = Keys(fail_at=(1, index))
    given = loader_of(dataset, num_workers)
    one = stream(given)
    assert taken(one, [0]) == epoch_by_epoch(given, [0])
    assert dataset.begun[1].wait(timeout=60)
    with pytest.raises(ArithmeticError, match=f'bad image {index}'):
        next(one.epoch(1, max_epochs=MAX_EPOCHS))
    # Control: in its own epoch it comes where it is.
    dataset = Keys(fail_at=(0, epoch_by_epoch(given, [0])[0][2][0].index))
    batches = stream(loader_of(dataset, num_workers)).epoch(0, max_epochs=MAX_EPOCHS)
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(ArithmeticError):
        next(batches)


class Failing(EpochSampler):
    """Cannot begin epoch 1, or breaks off in it."""

    after: int

    def __iter__(self) -> Iterator[SampleKey]:
        yield from itertools.islice(super().__iter__(), self.after if self.epoch == 1 else None)
        if self.epoch == 1:
            raise ArithmeticError('no more')


@pytest.mark.parametrize(('after', 'batches'), [(0, 0), (6, 1)])
def test_a_sampler_that_fails_for_the_next_epoch_fails_there(stream: Stream, after: int, batches: int) -> None:
    given = loader_of(Keys(), kind=Failing)
    given.sampler.after = after
    one = stream(given)
    assert len(taken(one, [0])[0]) == 3
    second = one.epoch(1, max_epochs=MAX_EPOCHS)
    assert len([next(second) for _ in range(batches)]) == batches
    with pytest.raises(ArithmeticError, match='no more'):
        next(second)


class Own(DataLoader):
    """May give fewer batches than it asks for, or merge them."""


class Faithful(DataLoader):
    gives_what_it_asks = True


class Heir(Faithful):
    pass


def test_loaders_stream_if_their_workers_stay_and_batches_keep_order_and_size() -> None:
    dataset = Keys()
    assert streams(loader_of(dataset))
    kinds = {kind: streams(kind(dataset, num_workers=1, persistent_workers=True)) for kind in (Own, Faithful, Heir)}
    assert kinds == {Own: False, Faithful: True, Heir: False}
    assert not streams(loader_of(dataset, 0))
    assert not streams(loader_of(dataset, persistent_workers=False))
    assert not streams(loader_of(dataset, in_order=False))
    own = BatchSampler(EpochSampler(dataset, seed=0), 4, drop_last=False)
    assert not streams(DataLoader(dataset, batch_sampler=own, num_workers=1, persistent_workers=True))


def test_the_given_loader_is_not_iterated_and_stays_as_it_was(stream: Stream) -> None:
    given = loader_of(Keys())
    sampler = given.batch_sampler
    taken(stream(given), [0])
    assert given._iterator is None
    assert given.batch_sampler is sampler
    assert len(given) == 3
