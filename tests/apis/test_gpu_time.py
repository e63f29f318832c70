"""Time that a card is busy."""

import time

import pytest
import torch

from lucid.apis.gpu_time import gpu_time, union


def test_what_overlaps_counts_once_and_gaps_do_not_count() -> None:
    assert union([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.25, 5.5)]) == 4.0
    assert union([]) == 0.0


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
    busy, kernels = gpu_time(run)
    assert 3 <= kernels <= 12
    assert 0 < busy < wall - 45
