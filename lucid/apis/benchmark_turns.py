"""Variants of a training step, run by turns and timed."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from lucid.apis.benchmark_clock import host_seconds, seconds
from lucid.apis.benchmark_result import Timing
from lucid.apis.gpu_time import GpuTime, KernelTime, launches, summary
from lucid.apis.region_names import make_regions
from lucid.apis.training_pair import Side, TrainingPair
from lucid.capture import Policy, Region

NUM_TRACED = 4  # windows that are profiled


class Turns(NamedTuple):
    """How variants are run.

    pair:          makes the sides, all with the same values
    precision:     of ``training_pair.PRECISIONS``
    rounds:        turns of each
    micro_batches: of a turn, at least
    profile:       keep the kernels by name
    """

    pair: TrainingPair
    precision: str
    rounds: int
    micro_batches: int
    profile: bool

    def take(
        self, captured: Mapping[str, tuple[str, Policy]], accumulate: int, made: Callable[[Side], Callable[[], None]]
    ) -> list[Timing]:
        """Build the variants one after the other, eager first, run them by turns, and release them.

        Args:
            captured: By the name of the variant, the regions and how they are captured.
            accumulate: Micro-batches of a window.
            made: Gives what runs one window of a side.

        Returns:
            One per variant, in order.

        Raises:
            RuntimeError: A region did not replay what it should have.
        """
        device = self.pair.device
        runs: dict[str, Callable[[], None]] = {}
        memory, start, active = dict[str, int](), dict[str, float](), list[Region]()
        host, gpu = dict[str, float | None](), dict[str, tuple[GpuTime | None, list[KernelTime]]]()
        try:
            for name, (names, policy) in {'eager': ('', Policy()), **captured}.items():
                side = self.pair.side(self.precision, accumulate)
                runs[name] = made(side)
                with _Memory(device) as used:
                    regions = make_regions(names) if names else []
                    active += regions
                    self.pair.capture(side, regions, policy=policy)
                    start[name] = seconds(runs[name], device)
                    for _ in range(3):
                        runs[name]()
                memory[name] = used.mib
            times: dict[str, list[float]] = {name: [] for name in runs}
            windows = -(-self.micro_batches // accumulate)
            for _ in range(self.rounds):
                for name, run in runs.items():
                    spent = seconds(run, device, times=windows)
                    times[name].append(round(spent * 1e3 / (windows * accumulate), 4))
            for name, run in runs.items():
                host[name], gpu[name] = _host(run, accumulate, device), _gpu(run, accumulate, device)
        finally:
            for region in active:
                region.release()
        if problems := [problem for region in active for problem in region.routes.problems()]:
            raise RuntimeError(f'a captured variant did not do its work: {problems}')
        return [
            Timing(
                name,
                accumulate,
                times[name],
                gpu[name][0],
                memory[name],
                round(start[name], 2),
                host=host[name],
                kernels=gpu[name][1] if self.profile else (),
            )
            for name in runs
        ]


def _host(run: Callable[[], None], accumulate: int, device: torch.device) -> float | None:
    """Of a micro-batch; None where the processor does the device's work too."""
    return round(host_seconds(run, device) * 1e3 / accumulate, 4) if device.type == 'cuda' else None


def _gpu(run: Callable[[], None], accumulate: int, device: torch.device) -> tuple[GpuTime | None, list[KernelTime]]:
    """Of a micro-batch; None where there is no card."""
    if device.type != 'cuda':
        return None, []
    (busy, kernels), by_name = summary(launches(run, calls=NUM_TRACED), calls=NUM_TRACED * accumulate)
    return GpuTime(round(busy, 4), kernels), [
        KernelTime(name, round(ms, 5), round(count, 3)) for name, ms, count in by_name
    ]


class _Memory:
    """Most MiB that were reserved inside, beyond what was before; 0 without a card."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        self.mib = 0

    def __enter__(self) -> '_Memory':
        if self._device.type == 'cuda':
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_reserved(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        if self._device.type == 'cuda':
            self.mib = (torch.cuda.max_memory_reserved(self._device) - self._before) >> 20
