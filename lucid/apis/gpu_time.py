"""How long a card is busy with what a callable launches, and with how many kernels."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile


class GpuTime(NamedTuple):
    """Of one call: ``busy`` milliseconds in which at least one kernel, copy or fill ran, and the number of them."""

    busy: float
    kernels: int


def gpu_time(run: Callable[[], object], *, calls: int = 4) -> GpuTime:
    """Profile ``calls`` calls of ``run`` on the current CUDA card; the average of one.

    Tracing slows down the host, not the kernels: the figures are those of the card alone.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    ran = [
        (event.time_range.start, event.time_range.end)
        for event in trace.events() or ()
        if event.device_type.name == 'CUDA' and not event.is_user_annotation
    ]
    return GpuTime(union(ran) / 1e3 / calls, round(len(ran) / calls))


def union(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of what intervals cover together."""
    covered, reached = 0.0, float('-inf')
    for start, end in sorted(intervals):
        covered += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return covered
