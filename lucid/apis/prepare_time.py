"""What preparing a batch adds to a captured training step, by the way in which its images come."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from lucid.apis.benchmark_clock import wait
from lucid.apis.data_ways import endless, fill_pool, loader_of
from lucid.apis.region_names import make_regions
from lucid.apis.training_pair import TrainingPair

NUM_BATCHES = 8
"""Held in memory and repeated, so that no loader is measured."""
AHEAD = 4
"""Steps that the host may be ahead: else it would count what the card has not done."""


class StepTime(NamedTuple):
    """Milliseconds of a captured training step, by round.

    way: ``none``: its batch was prepared before; else one of ``WAYS``: the step prepares it, as in training
    """

    way: str
    rounds: list[float]


def prepare_times(
    pair: TrainingPair, ways: Sequence[str], *, seconds: float, rounds: int, precision: str
) -> list[StepTime]:
    """Time a captured step, by turns with batches of all ways, always the same ones.

    Args:
        pair: Of the config.
        ways: Of ``WAYS``.
        seconds: Of a round, at least.
        rounds: Of each way.
        precision: Of ``training_pair.PRECISIONS``.

    Returns:
        Times of ``none``, then of each way.
    """
    side = pair.side(precision, 1)
    regions = make_regions('step')
    pair.capture(side, regions)
    turns: dict[str, Callable[[], Any]] = {}
    try:
        for way in ways:
            batches = _held(pair, way, side.model.prepare)
            if not turns:
                turns['none'] = _repeated(side.model.step, [side.model.prepare(one) for one in batches], side.wrapper)
            turns[way] = _repeated(side.model.train_step, batches, side.wrapper)
        for run in turns.values():  # capture, and kernels that each way needs
            for _ in range(NUM_BATCHES):
                run()
        found: dict[str, list[float]] = {way: [] for way in turns}
        for _, (way, run) in itertools.product(range(rounds), turns.items()):
            found[way].append(_milliseconds(run, seconds, pair.device))
    finally:
        for region in regions:
            region.release()
    return [StepTime(way, times) for way, times in found.items()]


def _held(pair: TrainingPair, way: str, prepare: Callable[[Any], Any]) -> list[Any]:
    """Batches of one way; those of a pool when it has what they need."""
    seed = pair.cfg.randomness.seed
    loader = loader_of(way, pair.cfg.train_dataloader, dataset=pair.loader.dataset, seed=seed, workers=0)
    batches = endless(loader)
    if way == 'pool':
        fill_pool(loader, batches, prepare)
    return list(itertools.islice(batches, NUM_BATCHES))


def _repeated(step: Callable[[Any, Any], Any], batches: Sequence[Any], wrapper: Any) -> Callable[[], Any]:
    stream = itertools.cycle(batches)
    return lambda: step(next(stream), wrapper)


def _milliseconds(run: Callable[[], Any], seconds: float, device: torch.device) -> float:
    """Of a call, the card's work on it included."""
    wait(device)
    reached: deque[torch.cuda.Event] = deque()
    calls, start = 0, time.perf_counter()
    while not calls or time.perf_counter() - start < seconds:
        run()
        calls += 1
        if device.type == 'cuda':
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            reached.append(event)
            if len(reached) > AHEAD:
                reached.popleft().synchronize()
    wait(device)
    return round((time.perf_counter() - start) * 1e3 / calls, 3)
