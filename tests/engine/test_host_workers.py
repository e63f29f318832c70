import gc
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lucid.engine import host_workers
from lucid.engine.host_workers import HostWorkers


def squared(number: int, array: np.ndarray) -> dict[str, Any]:
    time.sleep(0.05 * (number == 0))  # the first comes last, were they not in order
    return {'number': number**2, 'tensor': torch.from_numpy(array) + number, 'array': array, 'process': os.getpid()}


def broken(number: int) -> int:
    return 1 // number


def killed(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted(number: int) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    return number


def terminated(number: int) -> int:
    os.kill(os.getpid(), signal.SIGTERM)
    return number


@pytest.fixture
def workers() -> Any:
    found = HostWorkers(2)
    yield found
    found.close()


def test_results_come_in_order_from_other_processes_as_the_callers_tensors(workers: HostWorkers) -> None:
    arrays = np.arange(8.0).reshape(4, 2)
    found = list(workers.map(squared, range(4), arrays))
    assert [each['number'] for each in found] == [0, 1, 4, 9]
    assert [each['tensor'].tolist() for each in found] == [[0, 1], [3, 4], [6, 7], [9, 10]]
    assert os.getpid() not in {each['process'] for each in found}
    assert all(isinstance(each['array'], np.ndarray) for each in found)  # arrays stay arrays
    found[0]['tensor'].add_(1)  # writable, and nobody else's
    assert arrays.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_the_processes_stay_from_one_use_to_the_next_until_they_are_closed(workers: HostWorkers) -> None:
    def used() -> set[int]:
        return {each['process'] for each in workers.map(squared, range(6), np.zeros((6, 1)))}

    first = used() | used()
    assert len(first) <= 2
    workers.close()
    assert not first & used()


def test_an_error_comes_in_its_turn_and_the_workers_go_on(workers: HostWorkers) -> None:
    results = workers.map(broken, [1, 0, 1])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert list(workers.map(broken, [1, 1])) == [1, 1]


def test_an_interrupt_is_the_main_processes(workers: HostWorkers) -> None:
    assert list(workers.map(interrupted, [1, 2])) == [1, 2]


@pytest.fixture
def deaf() -> Iterator[list[int]]:
    """A main process with a handler of its own, as training has; what it hears."""
    heard: list[int] = []
    kept = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, kept)


def test_a_termination_of_all_processes_is_the_main_ones(workers: HostWorkers, deaf: list[int]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert list(workers.map(terminated, [1, 2])) == [1, 2]


def test_a_termination_by_the_main_process_ends_one_whatever_handler_that_has(
    workers: HostWorkers, deaf: list[int]
) -> None:
    assert list(workers.map(broken, [1, 1])) == [1, 1]
    assert workers._pool is not None
    process = next(iter(workers._pool._processes.values()))
    process.terminate()
    process.join(5)
    assert not process.is_alive()
    assert deaf == []


def terminated_by_another(number: int) -> int:
    # From a process of its own, as by a scheduler; to any thread that takes it.
    subprocess.run(['kill', '-TERM', str(os.getpid())], check=True)
    time.sleep(0.1)
    return number


def num_threads(number: int) -> int:
    return len(os.listdir('/proc/self/task'))


def test_a_termination_of_all_reaches_no_thread_of_a_process_that_is_no_fork(
    monkeypatch: pytest.MonkeyPatch, deaf: list[int]
) -> None:
    monkeypatch.setenv('OMP_NUM_THREADS', '2')  # threads that are there before ``_begin``
    spawn = multiprocessing.get_context('spawn')
    monkeypatch.setattr(host_workers, 'multiprocessing', SimpleNamespace(get_context=lambda: spawn))
    workers = HostWorkers(1)
    try:
        assert list(workers.map(terminated_by_another, [1])) == [1]
        assert list(workers.map(num_threads, [1])) > [2]  # control: main, ``_end_with``, and others
    finally:
        workers.close()
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert deaf == []


def test_a_process_whose_parent_had_gone_before_it_looked_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended

    monkeypatch.setattr(os, '_exit', end)
    monkeypatch.setattr(multiprocessing, 'parent_process', lambda: SimpleNamespace(is_alive=lambda: False))
    with pytest.raises(Ended):
        host_workers._end_with(0, os.getppid())


def test_a_process_that_dies_is_named_with_the_remedy_and_replaced(workers: HostWorkers) -> None:
    with pytest.raises(RuntimeError, match=r'one of 2 processes .* died.*lower num_workers'):
        list(workers.map(killed, [1]))
    assert list(workers.map(broken, [1])) == [1]


def test_a_process_that_died_while_it_had_nothing_to_do_is_named_too(workers: HostWorkers) -> None:
    assert list(workers.map(broken, [1, 1])) == [1, 1]
    assert workers._pool is not None
    for process in workers._pool._processes.values():
        process.kill()
        process.join(5)
    with pytest.raises(RuntimeError, match=r'one of 2 processes .* died.*lower num_workers'):
        list(workers.map(broken, [1]))
    assert list(workers.map(broken, [1])) == [1]


def noted(path: Path) -> None:
    time.sleep(0.05)
    path.touch()


def test_what_was_not_begun_when_the_results_are_closed_is_not_done(workers: HostWorkers, tmp_path: Path) -> None:
    results = workers.map(noted, [tmp_path / str(i) for i in range(30)])
    next(results)
    results.close()
    assert list(workers.map(broken, [1, 1])) == [1, 1]  # behind all that is done of them
    assert 1 <= len(list(tmp_path.iterdir())) < 15
    list(workers.map(noted, [tmp_path / f'all{i}' for i in range(4)]))
    assert len(list(tmp_path.glob('all*'))) == 4  # control


def test_a_single_call_is_waited_for_when_its_result_is_asked_for(workers: HostWorkers) -> None:
    slow, other = workers.submit(squared, 0, np.zeros(1)), workers.submit(squared, 3, np.zeros(1))
    assert workers.result(other)['tensor'].tolist() == [3]
    assert workers.result(slow)['number'] == 0
    with pytest.raises(ZeroDivisionError):
        workers.result(workers.submit(broken, 0))


def test_one_process_of_a_kind_is_named_with_its_own_remedy() -> None:
    lone = HostWorkers(1, purpose='pictures', remedy='draw less')
    with pytest.raises(RuntimeError, match=r'^the process for pictures died, .*; draw less$'):
        lone.result(lone.submit(killed, 1))


def garbage() -> bool:
    return bool(gc.get_freeze_count())


def test_garbage_of_the_main_process_is_not_collected_in_others(workers: HostWorkers) -> None:
    assert workers.result(workers.submit(garbage))
    assert not gc.get_freeze_count()  # control


def test_no_processes_are_refused() -> None:
    with pytest.raises(ValueError, match='use 1 or more'):
        HostWorkers(0)
