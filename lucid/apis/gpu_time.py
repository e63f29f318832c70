"""How long a card is busy with what a callable launches, and with which kernels."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile


class GpuTime(NamedTuple):
    """Of one call: ``busy`` milliseconds in which at least one kernel, copy or fill ran, and the number of them."""

    busy: float
    kernels: int


class KernelTime(NamedTuple):
    """Of one call: the launches of one kernel, copy or fill, and their milliseconds, added up."""

    name: str
    ms: float
    num_launches: float


class Launch(NamedTuple):
    """One launch: what ran, and from when to when on the card, in microseconds."""

    name: str
    start: float
    end: float


def gpu_time(run: Callable[[], object], *, calls: int = 4) -> GpuTime:
    """Profile ``calls`` calls of ``run`` on the current CUDA card; the average of one.

    Tracing slows down the host, not the kernels: the figures are those of the card alone.
    """
    return summary(launches(run, calls=calls), calls=calls)[0]


def launches(run: Callable[[], object], *, calls: int) -> list[Launch]:
    """Profile ``calls`` calls of ``run`` on the current CUDA card; each launch of them."""
    torch.cuda.synchronize()
    with trace(ProfilerActivity.CUDA) as found:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    return [
        Launch(event.name, event.time_range.start, event.time_range.end)
        for event in found.events() or ()
        if event.device_type.name == 'CUDA' and not event.is_user_annotation
    ]


def trace(activity: ProfilerActivity) -> Any:
    """A profiler of one cycle, whose events are read when it has ended."""
    # acc_events says that they are to be kept: without it torch 2.11 warns at each start that a cycle clears them.
    return profile(activities=[activity], acc_events=True)


def summary(ran: Iterable[Launch], *, calls: int) -> tuple[GpuTime, list[KernelTime]]:
    """What launches of ``calls`` calls come to for one call.

    Args:
        ran: In any order; some may overlap, on streams of their own.
        calls: Over which they are averaged.

    Returns:
        The card's time, in which overlaps count once, and the kernels by name, the longest first, in which they do not.
    """
    ran = list(ran)
    spent, counts = defaultdict[str, float](float), Counter(launch.name for launch in ran)
    for launch in ran:
        spent[launch.name] += launch.end - launch.start
    kernels = [KernelTime(name, us / 1e3 / calls, counts[name] / calls) for name, us in spent.items()]
    busy = union((launch.start, launch.end) for launch in ran) / 1e3 / calls
    return GpuTime(busy, round(len(ran) / calls)), sorted(kernels, key=lambda kernel: -kernel.ms)


def union(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of what intervals cover together."""
    covered, reached = 0.0, float('-inf')
    for start, end in sorted(intervals):
        covered += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return covered
