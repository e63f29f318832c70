import threading

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
