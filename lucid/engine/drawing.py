"""Drawing the pictures of a run beside its training, in a process: its host has kernels to launch meanwhile."""

import pickle
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

from mmengine.runner import Runner

from lucid.engine.host_workers import HostWorkers
from lucid.engine.pictures import Picture, ShownPicture, show_pictures, to_show, write_picture

MOST_WAITING = 4
"""Pictures that are handed over and not finished, at most; one more waits for the first of them."""

Draw = Callable[..., Iterator[Picture | str]]
"""Yields pictures, each of which is written before the next is drawn, and warnings for the log."""


class DrawingError(RuntimeError):
    """A picture could not be drawn or written; the cause says where that failed, in whatever process."""


class Drawn(NamedTuple):
    """What comes back from drawing.

    shown:    pictures for TensorBoard
    warnings: for the log
    seconds:  that it took, with writing the files
    """

    shown: list[ShownPicture]
    warnings: list[str]
    seconds: float


class Drawing:
    """Draws and writes the pictures of a run, one after the other.

    Between ``begin`` and ``finish``, that is in training, in one process for all hooks, which starts with the first
    picture and in the way of the data loader's workers. Otherwise, in a test for instance, here and at once. What a
    picture is drawn from is pickled as it is when it is handed over: painters are of classes at the top level of a
    module, and what they keep of a picture in themselves is lost. Files and their content are the same either way.
    """

    def __init__(self) -> None:
        self._workers: HostWorkers | None = None
        self._waiting: deque[tuple[Future[Drawn], int]] = deque()

    def begin(self, runner: Runner) -> None:
        """Draw in a process from now on; none starts yet, and none outlives the runner."""
        if self._workers is None:
            remedy = (
                'resume the run; if it dies again, draw fewer images (val_images, num_worst) or set the hook to None'
            )
            self._workers = HostWorkers(1, purpose='pictures', remedy=remedy)
            weakref.finalize(runner, self._workers.close)

    def draw(
        self, runner: Runner, hook: object, draw: Draw, *arguments: Any, epoch: int | None = None
    ) -> Future[Drawn]:
        """Draw, or have it drawn: then this takes milliseconds, unless ``MOST_WAITING`` are being drawn.

        Args:
            runner: Of the run.
            hook: Whose pictures they are, for errors.
            draw: A generator function at the top level of a module.
            *arguments: Its arguments, which must be picklable and on the host; they may be changed afterwards.
            epoch: Epochs done, for TensorBoard; None is now.

        Returns:
            What ``DrawingTime.count`` takes.

        Raises:
            DrawingError: This picture could not be drawn, or one handed over before.
            RuntimeError: The process died.
        """
        name, epoch = type(hook).__name__, runner.epoch if epoch is None else epoch
        if self._workers is None:
            future: Future[Drawn] = Future()
            future.set_result(_drawn(name, draw, arguments))
        else:
            self.collect(runner)
            while len(self._waiting) >= MOST_WAITING:
                self._take(runner)
            future = self._workers.submit(_drawn_from, name, _pickled(name, draw, arguments))
        self._waiting.append((future, epoch))
        self.collect(runner)
        return future

    def collect(self, runner: Runner) -> None:
        """Take what is finished, without waiting: pictures go to TensorBoard, warnings to the log.

        Args:
            runner: Of the run.

        Raises:
            DrawingError: A picture that was handed over could not be drawn.
            RuntimeError: The process died.
        """
        while self._waiting and self._waiting[0][0].done():
            self._take(runner)

    def finish(self, runner: Runner) -> None:
        """Wait for all that was handed over, and end the process; one failure does not cost the other pictures.

        Args:
            runner: Of the run.

        Raises:
            DrawingError: A picture could not be drawn; of several, the first.
            RuntimeError: The process died.
            OSError: TensorBoard's file could not be written.
        """
        failure: Exception | None = None
        try:
            while self._waiting:
                try:
                    self._take(runner)
                except Exception as error:  # noqa: BLE001 (raised below)
                    failure = failure or error
        finally:
            self._waiting.clear()
            if self._workers is not None:
                self._workers.close()
                self._workers = None
        if failure is not None:
            raise failure

    def close(self, runner: Runner) -> None:
        """``finish`` where training may have failed: an error of drawing is a warning, which does not hide another."""
        try:
            self.finish(runner)
        except Exception as error:
            runner.logger.warning(f'the last pictures are missing: {error}', exc_info=error)

    def _take(self, runner: Runner) -> None:
        """Wait for the first that was handed over."""
        future, epoch = self._waiting.popleft()
        drawn = future.result() if self._workers is None else self._workers.result(future)
        for warning in drawn.warnings:
            runner.logger.warning(warning)
        show_pictures(runner, drawn.shown, epoch=epoch)


class DrawingTime:
    """Keeps drawing to a share of the time since the first picture, and to one picture at a time.

    Args:
        share: The share of the time that a process may be busy drawing, above 0 to 1; None does not limit.

    Raises:
        ValueError: The share is out of range.
    """

    def __init__(self, share: float | None) -> None:
        if share is not None and not 0 < share <= 1:
            raise ValueError(f'time_share={share} must be above 0 and at most 1, or None; 0.05 is a twentieth')
        self._share = share
        self._started: float | None = None
        self._spent = 0.0
        self._unfinished: list[Future[Drawn]] = []

    @property
    def left(self) -> bool:
        """Whether to draw one now: the first one, and one when those before it are finished and were quick."""
        if self._share is None or self._started is None:
            return True
        done = [future for future in self._unfinished if future.done()]
        self._unfinished = [future for future in self._unfinished if not future.done()]
        self._spent += sum(future.result().seconds for future in done if _succeeded(future))
        return not self._unfinished and self._spent <= self._share * (time.monotonic() - self._started)

    def count(self, future: Future[Drawn]) -> None:
        """Add what was just handed over."""
        if self._share is not None:
            self._started = time.monotonic() if self._started is None else self._started
            self._unfinished.append(future)


_DRAWINGS: weakref.WeakKeyDictionary[Runner, Drawing] = weakref.WeakKeyDictionary()


def begun_drawing(runner: Runner) -> Drawing:
    """The one that all hooks of a run share, begun."""
    drawing = _DRAWINGS.setdefault(runner, Drawing())
    drawing.begin(runner)
    return drawing


def _succeeded(future: Future[Drawn]) -> bool:
    return not future.cancelled() and future.exception() is None


def _pickled(name: str, draw: Draw, arguments: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((draw, arguments), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise DrawingError(
            f'{name} cannot hand its picture to the process that draws: {error}; define the class of its painter at '
            'the top level of a module, and keep in it what can be pickled'
        ) from error


def _drawn_from(name: str, pickled: bytes) -> Drawn:
    try:
        draw, arguments = pickle.loads(pickled)  # noqa: S301  (of this run)
    except Exception as error:
        raise DrawingError(
            f'{name} could not hand its picture to the process that draws: {type(error).__name__}: {error}; '
            'let the class of its painter be importable by its name'
        ) from error
    return _drawn(name, draw, arguments)


def _drawn(name: str, draw: Draw, arguments: tuple[Any, ...]) -> Drawn:
    started = time.monotonic()
    shown: list[ShownPicture] = []
    warnings: list[str] = []
    try:
        for result in draw(*arguments):
            if isinstance(result, str):
                warnings.append(result)
                continue
            write_picture(result.pixels, result.path)
            if (small := to_show(result)) is not None:
                shown.append(small)
    except Exception as error:
        raise DrawingError(
            f'{name} could not draw: {type(error).__name__}: {error}; the hook set to None draws nothing'
        ) from error
    return Drawn(shown, warnings, time.monotonic() - started)
