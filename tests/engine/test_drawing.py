import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine import drawing as module
from lucid.engine import host_workers
from lucid.engine.drawing import MOST_WAITING, Drawing, DrawingError, begun_drawing
from lucid.engine.hooks import CurvesHook
from lucid.engine.pictures import Picture
from lucid.registry import VISUALIZERS


class Run:
    """What drawing asks of a runner: no TensorBoard, and a log that is kept."""

    epoch = 3

    def __init__(self) -> None:
        self.visualizer = SimpleNamespace(get_backend=lambda name: None)
        self.warned: list[str] = []
        self.logger = SimpleNamespace(warning=lambda text, **_: self.warned.append(text))


def filled(value: Any, path: Path, seconds: float = 0.0) -> Iterator[Picture | str]:
    """A picture of one value; the process says who it is."""
    time.sleep(seconds)
    yield Picture(np.full((4, 4, 3), np.asarray(value).reshape(-1)[0], np.uint8), path)
    yield f'{os.getpid()}'


def failing(path: Path) -> Iterator[Picture]:
    yield Picture(np.zeros((4, 4, 3), np.uint8), path)
    raise KeyError('no such colour')


def dying(path: Path) -> Iterator[Picture]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield Picture(np.zeros((4, 4, 3), np.uint8), path)


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def drawing(run: Run) -> Iterator[Drawing]:
    found = begun_drawing(run)
    yield found
    found.close(run)


def test_all_pictures_of_a_run_are_drawn_by_one_other_process(drawing: Drawing, run: Run, tmp_path: Path) -> None:
    assert begun_drawing(run) is drawing
    for i in range(3):
        drawing.draw(run, 'hook', filled, i, tmp_path / f'{i}.png')
    drawing.finish(run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['0.png', '1.png', '2.png']
    assert len(run.warned) == 3
    assert len(set(run.warned)) == 1
    assert run.warned[0] != str(os.getpid())
    # Control: when all is finished, this process draws, and at once.
    drawing.draw(run, 'hook', filled, 3, tmp_path / '3.png')
    assert run.warned[3:] == [str(os.getpid())]
    assert (tmp_path / '3.png').is_file()


def test_nothing_starts_before_the_first_picture_and_nothing_stays_after_the_last(
    drawing: Drawing, run: Run, tmp_path: Path
) -> None:
    before = set(multiprocessing.active_children())
    drawing.collect(run)
    assert drawing._workers is not None
    assert drawing._workers._pool is None
    drawing.draw(run, 'hook', filled, 1, tmp_path / 'a.png')
    (process,) = set(multiprocessing.active_children()) - before
    drawing.finish(run)
    # Not by is_alive: the pool's own thread takes the process's end away from whoever asks at the same time.
    end = time.monotonic() + 20
    while _state(process.pid) != 'Z' and time.monotonic() < end:
        time.sleep(0.05)
    assert _state(process.pid) == 'Z'


def test_a_picture_is_of_what_was_handed_over(drawing: Drawing, run: Run, tmp_path: Path) -> None:
    values = np.full(3, 7)
    drawing.draw(run, 'hook', filled, 0, tmp_path / 'slow.png', 0.3)
    drawing.draw(run, 'hook', filled, values, tmp_path / 'a.png')
    values[:] = 9  # before its turn has come
    drawing.finish(run)
    here = Run()
    Drawing().draw(here, 'hook', filled, 7, tmp_path / 'b.png')
    assert (tmp_path / 'a.png').read_bytes() == (tmp_path / 'b.png').read_bytes()


def test_no_more_than_a_few_pictures_wait(drawing: Drawing, run: Run, tmp_path: Path) -> None:
    waiting = []
    for i in range(MOST_WAITING + 3):
        drawing.draw(run, 'hook', filled, i, tmp_path / f'{i}.png', 0.05)
        waiting.append(len(drawing._waiting))
    assert max(waiting) == MOST_WAITING
    drawing.finish(run)
    assert len(list(tmp_path.iterdir())) == MOST_WAITING + 3


def test_a_failure_comes_with_the_next_picture_and_shows_where_it_was(
    drawing: Drawing, run: Run, tmp_path: Path
) -> None:
    drawing.draw(run, CurvesHook(), failing, tmp_path / 'a.png').exception(timeout=30)
    with pytest.raises(DrawingError, match=r"CurvesHook could not draw: KeyError: 'no such colour'; .* None") as caught:
        drawing.draw(run, 'hook', filled, 1, tmp_path / 'b.png')
    assert "raise KeyError('no such colour')" in str(caught.value.__cause__)
    # It is told once, and the process goes on.
    drawing.draw(run, 'hook', filled, 1, tmp_path / 'c.png')
    drawing.finish(run)
    assert (tmp_path / 'a.png').is_file()
    assert (tmp_path / 'c.png').is_file()


def test_a_failure_comes_at_the_end_and_costs_no_other_picture(drawing: Drawing, run: Run, tmp_path: Path) -> None:
    drawing.draw(run, 'hook', filled, 0, tmp_path / 'slow.png', 0.2)
    drawing.draw(run, 'hook', failing, tmp_path / 'a.png')
    drawing.draw(run, 'hook', filled, 1, tmp_path / 'b.png')
    with pytest.raises(DrawingError, match='no such colour'):
        drawing.finish(run)
    assert (tmp_path / 'b.png').is_file()
    drawing.finish(run)  # nothing is left


def test_a_failure_here_is_the_same_error(run: Run, tmp_path: Path) -> None:
    with pytest.raises(DrawingError, match='no such colour') as caught:
        Drawing().draw(run, 'hook', failing, tmp_path / 'a.png')
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_process_that_is_killed_is_named_with_the_remedy(drawing: Drawing, run: Run, tmp_path: Path) -> None:
    drawing.draw(run, 'hook', dying, tmp_path / 'a.png')
    with pytest.raises(RuntimeError, match=r'the process for pictures died, .*; resume the run.*val_images'):
        drawing.finish(run)
    assert not list(tmp_path.iterdir())


def test_where_training_may_have_failed_a_failure_is_a_warning(drawing: Drawing, run: Run, tmp_path: Path) -> None:
    drawing.draw(run, 'hook', filled, 0, tmp_path / 'slow.png', 0.2)
    drawing.draw(run, 'hook', failing, tmp_path / 'a.png')
    drawing.close(run)
    assert 'the last pictures are missing' in run.warned[-1]
    assert 'no such colour' in run.warned[-1]


def test_a_full_disk_of_tensorboard_costs_no_other_picture_and_does_not_hide_what_ended_training(
    drawing: Drawing, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(run: Run, shown: Any, *, epoch: int) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(module, 'show_pictures', full)
    for i in range(2):
        drawing.draw(run, 'hook', filled, i, tmp_path / f'{i}.png', 0.2)
    with pytest.raises(OSError, match='No space left'):
        drawing.finish(run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['0.png', '1.png']
    assert len(run.warned) == 2
    drawing.begin(run)
    drawing.draw(run, 'hook', filled, 2, tmp_path / '2.png', 0.2)
    drawing.close(run)
    assert 'the last pictures are missing: [Errno 28] No space left' in run.warned[-1]


def test_what_cannot_be_handed_over_is_refused_with_the_remedy(drawing: Drawing, run: Run, tmp_path: Path) -> None:
    class Local:
        pass

    with pytest.raises(DrawingError, match=r'Local.*define the class of its painter at the top level of a module'):
        drawing.draw(run, CurvesHook(), filled, Local(), tmp_path / 'a.png')


def test_a_painter_of_ones_own_is_found_by_a_process_that_is_no_fork(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ``custom_imports``: of a module that only the path leads to."""
    (tmp_path / 'own_painter.py').write_text(
        'import numpy as np\nfrom lucid.registry import VISUALIZERS\n\n\n'
        '@VISUALIZERS.register_module(force=True)\nclass OwnPainter:\n'
        '    def draw_curves(self, training, validations):\n'
        '        return np.full((4, 4, 3), len(training), np.uint8)\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(VISUALIZERS, '_module_dict', dict(VISUALIZERS.module_dict))
    monkeypatch.setitem(sys.modules, 'own_painter', None)
    del sys.modules['own_painter']
    importlib.import_module('own_painter')
    spawn = multiprocessing.get_context('spawn')
    monkeypatch.setattr(host_workers, 'multiprocessing', SimpleNamespace(get_context=lambda: spawn))
    hook = CurvesHook(painter={'type': 'OwnPainter'})
    run.work_dir = tmp_path
    hook._drawing = begun_drawing(run)
    hook.training = [{'epoch': 1.0}]
    hook.after_train(run)
    assert (tmp_path / 'pictures' / 'curves.png').is_file()


class Fails(Hook):
    def after_train_epoch(self, runner: Runner) -> None:
        if runner.epoch == 1:
            raise ArithmeticError('training failed')


class Slow(Hook):
    """Hands a picture over with each epoch."""

    def before_train(self, runner: Runner) -> None:
        self.drawing = begun_drawing(runner)

    def before_train_epoch(self, runner: Runner) -> None:
        self.drawing.draw(runner, self, filled, 1, Path(runner.work_dir, f'{runner.epoch}.png'), 0.2)

    def close(self, runner: Runner) -> None:
        self.drawing.close(runner)


def test_a_training_that_fails_ends_with_its_own_error_its_pictures_and_no_process(
    line_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(ArithmeticError, match='training failed'):
        line_runner([Slow(), Fails()], epochs=3).train()
    assert sorted(path.name for path in tmp_path.glob('*.png')) == ['0.png', '1.png']
    for process in set(multiprocessing.active_children()) - before:
        process.join(5)
    assert set(multiprocessing.active_children()) <= before


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from types import SimpleNamespace
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from lucid.engine.drawing import begun_drawing
from lucid.engine.pictures import Picture

class Run:
    epoch = 0
    visualizer = SimpleNamespace(get_backend=lambda name: None)
    logger = SimpleNamespace(warning=lambda text, **_: print(text, flush=True))

def begin(path):
    time.sleep(0.5)  # until the main process waits: Python drops an interrupt that comes in its hooks of a fork
    print('begun', os.getpid(), flush=True)
    time.sleep(1)
    yield Picture(np.zeros((4, 4, 3), np.uint8), path)

run = Run()
drawing = begun_drawing(run)
try:
    drawing.draw(run, 'hook', begin, Path(sys.argv[1]))
    time.sleep(60)
finally:
    drawing.close(run)
"""


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_of_all_waits_for_the_picture_and_a_main_process_that_is_killed_leaves_no_orphan(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / 'a.png'
    script = tmp_path / 'script.py'
    script.write_text(SCRIPT)
    main = subprocess.Popen(
        [sys.executable, str(script), str(path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert main.stdout is not None
    word, process = main.stdout.readline().split()
    assert word == 'begun'
    if number == signal.SIGINT:
        os.killpg(main.pid, number)  # as by Ctrl-C: the process that draws gets it too
    else:
        main.kill()
    assert main.wait(60) != 0
    assert path.is_file() or number == signal.SIGKILL
    end = time.monotonic() + host_workers.ORPHAN_CHECK + 5
    while Path(f'/proc/{process}').exists() and _state(int(process)) != 'Z' and time.monotonic() < end:
        time.sleep(0.1)
    assert not Path(f'/proc/{process}').exists() or _state(int(process)) == 'Z'


def _state(process: int) -> str:
    try:
        return Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[0]
    except OSError:
        return 'Z'
