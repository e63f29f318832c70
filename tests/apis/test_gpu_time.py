"""Time that a card is busy, and with which kernels."""

import time
import warnings

import pytest
import torch
from torch.profiler import ProfilerActivity

from lucid.apis.gpu_time import GpuTime, KernelTime, Launch, gpu_time, launches, summary, trace, union


def test_what_overlaps_counts_once_and_gaps_do_not_count() -> None:
    assert union([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.25, 5.5)]) == 4.0
    assert union([]) == 0.0


def test_the_card_is_busy_once_with_kernels_that_overlap_while_each_has_its_own_time() -> None:
    # Two calls, microseconds: 0 to 4000 with an overlap of 1000, then 6000 to 8000.
    ran = [Launch('a', 0, 2000), Launch('b', 1000, 4000), Launch('a', 6000, 8000)]
    busy, kernels = summary(ran, calls=2)
    assert busy == GpuTime(3.0, 2)
    assert kernels == [KernelTime('a', 2.0, 1.0), KernelTime('b', 1.5, 0.5)]


def test_a_trace_keeps_its_events_so_that_no_torch_warns_that_it_does_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for _ in range(2):
            with trace(ProfilerActivity.CPU) as found:
                torch.ones(2).add_(1)
            assert [event.name for event in found.events()].count('aten::add_') == 1
    # What torch 2.11 looks at before it warns; later ones warn of a second cycle alone.
    assert found.acc_events


@pytest.mark.cuda
def test_a_card_that_waits_for_the_host_is_not_busy() -> None:
    matrix = torch.randn(4096, 4096, device='cuda')
    matrix @ matrix

    def run() -> None:
        for _ in range(3):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()
        time.sleep(0.05)

    start = time.perf_counter()
    run()
    wall = (time.perf_counter() - start) * 1e3
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        busy, kernels = gpu_time(run)
    assert 3 <= kernels <= 12
    assert 0 < busy < wall - 45


@pytest.mark.cuda
def test_the_kernels_of_a_card_have_their_names() -> None:
    tensor = torch.ones(1 << 20, device='cuda')
    names = [launch.name for launch in launches(lambda: tensor.clone().zero_().add_(1), calls=2)]
    assert sum('Memcpy DtoD' in name for name in names) == 2
    assert sum('elementwise_kernel' in name and 'add' in name for name in names) == 2
