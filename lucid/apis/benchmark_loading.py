"""How fast the data loader of a config is by itself, without a model that waits for it."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from lucid.apis.data_ways import endless
from lucid.engine.batch_stream import close_workers


class Loading(NamedTuple):
    """Images per second of a loader whose batches are thrown away, per round of ``num_batches``.

    loaded:   batches as the loader yields them
    prepared: the same, and what a training step does to a batch before its forward, on the device
    """

    num_workers: int
    num_batches: int
    loaded: list[float]
    prepared: list[float]

    def to_json(self) -> dict[str, Any]:
        """Plain types, with medians."""
        medians = {f'{name}_median': statistics.median(getattr(self, name)) for name in ('loaded', 'prepared')}
        return {**self._asdict(), **medians}


def loading_rate(
    loader: DataLoader, prepare: Callable[[Any], object], wait: Callable[[], None], *, rounds: int, num_batches: int
) -> Loading:
    """Iterate over a loader as fast as it goes, epoch after epoch, none of them near the end of a run.

    What each epoch's start costs is in it, since training pays for it as well; the start of the workers is not, nor is
    the first epoch, if it is no longer than a round.

    Args:
        loader: Of a training; its workers are ended.
        prepare: What a training step does to a batch first.
        wait: Returns when the device has done what it was asked for.
        rounds: Of both figures.
        num_batches: Of a round, at least: each worker gives equally many, because they come in bursts.

    Returns:
        The rates, of prepared batches after those of loaded ones.
    """
    turn = max(loader.num_workers, 1)
    num_batches = -(-num_batches // turn) * turn
    waiting = turn * (loader.prefetch_factor or 1)  # read ahead while nobody asked
    batches = endless(loader)
    try:
        _take(batches, max(2 * waiting, min(len(loader), num_batches)), _nothing, wait)
        loaded = [_take(batches, num_batches, _nothing, wait) for _ in range(rounds)]
        _take(batches, waiting, prepare, wait)
        prepared = [_take(batches, num_batches, prepare, wait) for _ in range(rounds)]
    finally:
        batches.close()  # drops the workers that end with their epoch
        close_workers(loader)
    return Loading(loader.num_workers, num_batches, loaded, prepared)


def _take(batches: Iterator[Any], number: int, prepare: Callable[[Any], object], wait: Callable[[], None]) -> float:
    begin, images = time.perf_counter(), 0
    for _ in range(number):
        batch = next(batches)
        prepare(batch)
        images += batch['inputs'].shape[0]
    wait()
    return round(images / (time.perf_counter() - begin), 2)


def _nothing(_: Any) -> None:
    """Leave a batch as the loader made it."""
