"""What a benchmark found: timings, what they say about the parts of a step, the floor and the loader."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lucid.apis.benchmark_floor import Floor
from lucid.apis.benchmark_loading import Loading
from lucid.apis.gpu_time import GpuTime, KernelTime
from lucid.apis.kernel_kinds import by_kind
from lucid.apis.region_names import COMPILED
from lucid.engine.environment import environment

TOP_KERNELS = 10  # of a kind, in JSON


class Timing(NamedTuple):
    """One variant: ``eager``, what is captured, or that ``, adopted`` (gradients stay in graph memory).

    Milliseconds are of a micro-batch; the step of its window counts in full, divided among them.

    rounds:     per round, the wall time
    gpu:        what the card is busy with, without the gaps; None where there is no card
    memory_mib: most that the variant reserved, capture included
    start:      seconds of its first window: compiling of kernels, capture
    host:       what the processor works until it has launched everything; None where there is no card
    kernels:    by name, the longest first; none unless they were asked for
    """

    variant: str
    accumulate: int
    rounds: list[float]
    gpu: GpuTime | None
    memory_mib: int
    start: float
    host: float | None = None
    kernels: Sequence[KernelTime] = ()

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Half of most minus least of the rounds."""
        return (max(self.rounds) - min(self.rounds)) / 2

    def to_json(self, *, floor: float | None) -> dict[str, Any]:
        """Plain types, with the ratio of the card's time and the floor's milliseconds."""
        found = {**self._asdict(), 'gpu': self.gpu and self.gpu._asdict(), 'median': self.median, 'spread': self.spread}
        found['busy_over_floor'] = round(self.gpu.busy / floor, 3) if self.gpu and floor else None
        found['kernels'] = [
            {**kind._asdict(), 'kernels': [one._asdict() for one in kind.kernels[:TOP_KERNELS]]}
            for kind in by_kind(self.kernels)
        ]
        return found


class Estimate(NamedTuple):
    """Milliseconds, and the most that they are off if each timing is off by its spread."""

    ms: float
    spread: float


class Split(NamedTuple):
    """The two parts of a step, told apart by windows of different lengths.

    A window of N micro-batches takes N times what each of them does, and once what ends it. So the milliseconds t(N) of
    a micro-batch, in which its window's end counts in full, are ``micro_batch + window_end / N``: a straight line in
    1 / N, which two lengths fix and which more than two are fitted to by least squares. It holds for every variant,
    eager ones too, and asks for no look inside a region.

    micro_batch: batch to the device, forward, loss, backward, addition to the sums
    window_end:  unscale, clip, optimizer, average
    busy:        both of the card's own time, ``micro_batch`` first; None where there is no card
    """

    variant: str
    micro_batch: Estimate
    window_end: Estimate
    busy: tuple[float, float] | None


def splits(timings: Sequence[Timing]) -> list[Split]:
    """One per variant that was timed in windows of two lengths or more, in order."""
    found = []
    for variant in dict.fromkeys(timing.variant for timing in timings):
        mine = [timing for timing in timings if timing.variant == variant]
        if len({timing.accumulate for timing in mine}) > 1:
            found.append(_split(variant, mine))
    return found


def _split(variant: str, timings: Sequence[Timing]) -> Split:
    # Rows of the inverse: what each timing weighs in the two estimates.
    weights = np.linalg.pinv(np.array([(1.0, 1.0 / timing.accumulate) for timing in timings]))
    medians, spreads = ([getattr(timing, name) for timing in timings] for name in ('median', 'spread'))
    micro_batch, window_end = (
        Estimate(round(float(row @ medians), 4), round(float(np.abs(row) @ spreads), 4)) for row in weights
    )
    busy = [timing.gpu.busy for timing in timings if timing.gpu]
    on_card = weights @ busy if len(busy) == len(timings) else None
    return Split(
        variant,
        micro_batch,
        window_end,
        None if on_card is None else (round(float(on_card[0]), 4), round(float(on_card[1]), 4)),
    )


def plain_variant(variant: str) -> str:
    """The variant that is captured likewise, but not compiled; itself if none of it is compiled."""
    return variant.replace(COMPILED, '')


class Benchmark(NamedTuple):
    """``steps`` are whole training steps, ``parts`` the forward and backward of ``module`` alone."""

    config: str
    module: str
    precision: str
    batch_size: int
    image_size: tuple[int, int]
    device: str
    steps: list[Timing]
    parts: list[Timing]
    floor: Floor | None = None
    loading: Loading | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, with what it ran on."""
        floor = self.floor
        return {
            **self._asdict(),
            'steps': [timing.to_json(floor=floor and floor.step) for timing in self.steps],
            'parts': [timing.to_json(floor=floor and floor.part) for timing in self.parts],
            'splits': [
                {**split._asdict(), **{name: getattr(split, name)._asdict() for name in ('micro_batch', 'window_end')}}
                for split in splits(self.steps)
            ],
            'floor': floor and floor.to_json(),
            'loading': self.loading and self.loading.to_json(),
            'environment': environment(),
        }
