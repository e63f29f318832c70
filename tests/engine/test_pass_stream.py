"""Batches of passes that begin ahead are those of a loader that begins each one anew."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mmengine.dataset import DefaultSampler
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from lucid.engine.pass_stream import PassStream, repeats
from tests.engine.conftest import Counted

PASSES = 4


def keep(samples: list[int]) -> list[int]:
    return samples


def loader_of(dataset: Dataset, num_workers: int = 1, *, prefetch_factor: int = 2, **options: Any) -> DataLoader:
    kept = {'num_workers': num_workers, 'persistent_workers': True, 'prefetch_factor': prefetch_factor}
    return DataLoader(dataset, **{'batch_size': 4, 'collate_fn': keep, **kept, **options})


Stream = Callable[[DataLoader], PassStream]


@pytest.fixture
def stream() -> Iterator[Stream]:
    made: list[PassStream] = []

    def make(loader: DataLoader) -> PassStream:
        made.append(PassStream(loader))
        return made[-1]

    yield make
    for one in made:
        one.close()


def workers_of(stream: PassStream) -> list[Any]:
    assert stream._begun is not None
    return list(stream._begun._iterator._workers)


def taken(stream: PassStream, passes: int = PASSES) -> list[list[list[int]]]:
    """Passes in turn; another one follows each but the last."""
    return [list(stream.batches(follows=lambda n=n: n < passes - 1)) for n in range(passes)]


@pytest.mark.parametrize('num_workers', [1, 2])
@pytest.mark.parametrize(('prefetch_factor', 'drop_last'), [(1, False), (2, True), (8, False)])
def test_every_pass_has_the_batches_of_the_loader_and_nothing_more_is_read(
    stream: Stream, num_workers: int, prefetch_factor: int, drop_last: bool
) -> None:
    """Eight batches of a worker are more than two passes."""
    rows = Counted()
    given = loader_of(rows, num_workers, prefetch_factor=prefetch_factor, drop_last=drop_last)
    batches = [[0, 1, 2, 3], [4, 5, 6, 7], *([] if drop_last else [[8, 9]])]
    one = stream(given)
    assert taken(one) == [batches] * PASSES
    workers = workers_of(one)
    one.close()  # what was asked for has been read by the time that the workers are gone
    assert rows.asked.tolist() == [PASSES] * 8 + [0 if drop_last else PASSES] * 2
    assert not any(worker.is_alive() for worker in workers)
    assert given._iterator is None


def test_the_next_pass_is_read_after_the_last_batch_of_this_one_by_the_same_workers(stream: Stream) -> None:
    rows = Counted()
    one = stream(loader_of(rows))
    list(one.batches(follows=lambda: True))
    (worker,) = workers_of(one)
    assert rows.begun[1].wait(timeout=60)
    list(one.batches(follows=lambda: False))
    assert workers_of(one) == [worker]
    assert not rows.begun[2].wait(timeout=0.3)  # control: none follows
    list(one.batches(follows=lambda: False))  # none was said to follow, and one comes: workers begin anew
    assert workers_of(one) != [worker]


def test_of_two_passes_ahead_nothing_is_read(stream: Stream) -> None:
    rows = Counted()
    one = stream(loader_of(rows, prefetch_factor=16))
    list(one.batches(follows=lambda: True))
    assert rows.begun[1].wait(timeout=60)
    assert not rows.begun[2].wait(timeout=0.3)
    list(one.batches(follows=lambda: True))
    assert rows.begun[2].wait(timeout=60)  # control


def test_what_fails_is_raised_in_its_pass(stream: Stream) -> None:
    one = stream(loader_of(Counted(fail_at=(1, 5))))
    assert len(list(one.batches(follows=lambda: True))) == 3
    second = one.batches(follows=lambda: True)
    assert next(second) == [0, 1, 2, 3]
    with pytest.raises(ArithmeticError, match='bad image 5'):
        next(second)
    # Afterwards it begins anew: neither the rest of that pass nor what was made of another one is left.
    assert list(one.batches(follows=lambda: False)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_pass_that_is_left_early_leaves_nothing_to_the_next(stream: Stream) -> None:
    one = stream(loader_of(Counted()))
    list(one.batches(follows=lambda: True))
    left = one.batches(follows=lambda: True)
    assert next(left) == [0, 1, 2, 3]
    first = workers_of(one)
    assert list(one.batches(follows=lambda: True)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert not any(worker.is_alive() for worker in first)


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        yield 0


class Own(DataLoader):
    pass


def test_only_loaders_whose_workers_and_order_stay_repeat() -> None:
    rows = Counted()
    assert repeats(loader_of(rows))
    assert repeats(loader_of(rows, sampler=DefaultSampler(rows, shuffle=False)))
    assert not repeats(loader_of(rows, sampler=DefaultSampler(rows, shuffle=True, seed=0)))
    assert not repeats(loader_of(rows, sampler=RandomSampler(rows)))
    assert not repeats(loader_of(rows, persistent_workers=False))
    assert not repeats(loader_of(rows, in_order=False))
    assert not repeats(loader_of(Endless()))
    assert not repeats(DataLoader(rows))
    assert not repeats(Own(rows, num_workers=1, persistent_workers=True))
