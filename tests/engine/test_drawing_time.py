from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from lucid.engine import drawing as module
from lucid.engine.drawing import DrawingError, DrawingTime, Drawn


def finished(seconds: float) -> Future[Drawn]:
    future: Future[Drawn] = Future()
    future.set_result(Drawn([], [], seconds))
    return future


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that is read is ``now``."""
    found = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, 'time', SimpleNamespace(monotonic=lambda: found.now))
    return found


def test_time_is_left_for_the_first_picture_and_then_as_the_process_was_busy(clock: SimpleNamespace) -> None:
    share = DrawingTime(0.1)
    assert share.left
    share.count(finished(2.0))
    for now, expected in ((0.0, False), (19.9, False), (20.0, True)):  # two seconds are a tenth of twenty
        clock.now = now
        assert share.left == expected
    share.count(finished(1.0))
    for now, expected in ((29.0, False), (30.0, True)):
        clock.now = now
        assert share.left == expected


def test_no_time_is_left_while_a_picture_is_being_drawn(clock: SimpleNamespace) -> None:
    share, slow = DrawingTime(1.0), Future[Drawn]()
    share.count(slow)
    clock.now = 1000.0
    assert not share.left
    slow.set_exception(DrawingError('no such colour'))  # told by ``collect``
    assert share.left
    # Control: without a share every picture is drawn, and ``MOST_WAITING`` is all that holds it up.
    share = DrawingTime(None)
    share.count(Future())
    assert share.left


def test_a_share_that_cannot_be_meant_is_refused() -> None:
    for wrong in (0.0, 1.5, -0.1):
        with pytest.raises(ValueError, match=r'time_share=.* must be above 0 and at most 1'):
            DrawingTime(wrong)
