import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lucid.engine.background import Background


@pytest.fixture
def background() -> Background:
    return Background('test')


def test_jobs_are_done_in_order_by_one_other_thread_that_ends(background: Background) -> None:
    done: list[int] = []
    threads: set[threading.Thread] = set()

    def job(number: int) -> None:
        done.append(number)
        threads.add(threading.current_thread())

    for number in range(50):
        background.submit(lambda number=number: job(number))
    background.finish()
    assert done == list(range(50))
    (thread,) = threads
    assert thread is not threading.current_thread()
    assert thread.name.startswith('test')
    assert not thread.is_alive()


def test_submitting_does_not_wait_and_finishing_does(background: Background) -> None:
    go, done = threading.Event(), []

    def job() -> None:
        assert go.wait(60)
        done.append(1)

    future = background.submit(job)
    background.check()
    assert not future.done()
    assert not done
    go.set()
    background.finish()
    assert future.done()
    assert done == [1]


def test_an_error_comes_once_as_it_was_and_what_follows_the_job_is_left_out(background: Background) -> None:
    done: list[int] = []
    go, error = threading.Event(), OSError(28, 'No space left on device')

    def fail() -> None:
        go.wait(60)
        raise error

    background.submit(fail)
    future = background.submit(lambda: done.append(1))
    go.set()
    future.result()
    with pytest.raises(OSError, match='No space left') as caught:
        background.check()
    assert caught.value is error
    assert done == []
    background.check()
    background.finish()
    background.submit(lambda: done.append(2))
    background.finish()
    assert done == [2]


def test_finishing_twice_or_without_a_job_does_nothing(background: Background) -> None:
    background.finish()
    background.check()
    background.finish()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises, though a shell has started the tests in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures('interruptible')
def test_an_interrupt_ends_the_waiting_and_nothing_else(background: Background) -> None:
    go, done = threading.Event(), []

    def job() -> None:
        assert go.wait(60)
        done.append(1)

    background.submit(job)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        background.finish()
    assert not done
    background.submit(lambda: done.append(2))
    threading.Timer(0.1, go.set).start()
    background.finish()
    assert done == [1, 2]


SCRIPT = """
import os, signal, sys, threading, time
from collections.abc import Iterator
from pathlib import Path
from lucid.engine.background import Background
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def job():
    time.sleep(1)
    Path(sys.argv[1]).touch()

background = Background('test')
background.submit(job)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
background.finish()
"""


def test_a_job_is_done_though_an_interrupt_of_waiting_for_it_ends_the_program(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, '-c', SCRIPT, str(tmp_path / 'done')], stderr=subprocess.PIPE, check=False)
    assert b'KeyboardInterrupt' in done.stderr
    assert (tmp_path / 'done').exists()
