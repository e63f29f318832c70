"""Wall time of work on a device, and the time of the processor that asks for it."""

import statistics
import time
from collections.abc import Callable

import torch


def wait(device: torch.device) -> None:
    """Return when the device has done all that it was asked for."""
    if device.type == 'cuda':
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device, *, times: int = 1) -> float:
    """Wall time of ``times`` calls, from an idle device until it is idle again."""
    wait(device)
    begin = time.perf_counter()
    for _ in range(times):
        run()
    wait(device)
    return time.perf_counter() - begin


def host_seconds(run: Callable[[], object], device: torch.device, *, calls: int = 7) -> float:
    """What one call of ``run`` costs the processor until it has asked the device for everything; the median of calls.

    That is the time of all threads of this process, since autograd runs an eager backward in a thread of its own. Each
    call begins when the device is idle, so that none waits for room in its queue; what waits inside ``run`` for the
    device, as reading a tensor does, keeps a processor busy and is counted too.
    """
    spent = []
    for _ in range(calls):
        wait(device)
        begin = time.process_time()
        run()
        spent.append(time.process_time() - begin)
    wait(device)
    return statistics.median(spent)
