"""Clocks of the benchmark: wall time of the device, processor time of the host."""

import threading
import time

import torch

from lucid.apis.benchmark_clock import host_seconds, seconds

CPU = torch.device('cpu')


def burn() -> None:
    """Keep this thread's processor for a fiftieth of a second."""
    begin = time.thread_time()
    while time.thread_time() - begin < 0.02:
        pass


def test_wall_time_is_that_of_all_calls() -> None:
    calls: list[int] = []

    def run() -> None:
        calls.append(1)
        time.sleep(0.01)

    assert seconds(run, CPU, times=3) >= 0.03
    assert len(calls) == 3


def test_waiting_costs_the_host_nothing_and_work_in_any_thread_does() -> None:
    def in_another_thread() -> None:
        thread = threading.Thread(target=burn)
        thread.start()
        thread.join()

    assert host_seconds(lambda: time.sleep(0.02), CPU, calls=3) < 0.01
    assert host_seconds(burn, CPU, calls=3) >= 0.02
    assert host_seconds(in_another_thread, CPU, calls=3) >= 0.02
