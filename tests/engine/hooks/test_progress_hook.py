import io
import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import pytest
from mmengine.hooks import LoggerHook
from mmengine.runner import Runner

from lucid.engine.hooks import CheckpointHook, DeferredInfoHook, ProgressHook
from lucid.engine.hooks import progress as module

Toy = Callable[..., Runner]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """For ``redirect_stdout`` in the test: pytest sets sys.stdout anew after fixtures."""
    monkeypatch.setattr(module, 'REFRESH', 0.0)
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '200')
    return Terminal()


def run(make: Toy, terminal: Terminal | None = None, **options: object) -> Runner:
    hooks = [DeferredInfoHook(interval=2), ProgressHook(**options), LoggerHook(interval=2)]
    with redirect_stdout(terminal) if terminal else nullcontext():
        runner = make([*hooks, CheckpointHook(save_best='toy/score')], scores=[0.25, 0.75])
        runner.train()
    return runner


def log_of(runner: Runner) -> str:
    return next(Path(runner.work_dir).glob('*/*.log')).read_text()


def test_on_a_terminal_a_bar_shows_epoch_batches_losses_rate_speed_and_time(
    line_runner: Toy, terminal: Terminal
) -> None:
    run(line_runner, terminal)
    shown = terminal.getvalue()
    for text in ('epoch 1/2', 'epoch 2/2', '5/5', 'loss 0.', 'lr 1.00e-01', 'img/s', '0:00:00 left', 'validation'):
        assert text in shown, text


def test_the_lines_of_iterations_go_to_the_file_and_others_to_both(line_runner: Toy, terminal: Terminal) -> None:
    runner = run(line_runner, terminal)
    assert 'Epoch(train) [1][2/5]' in log_of(runner)
    assert 'Epoch(train)' not in terminal.getvalue()
    assert 'toy/score: 0.7500' in terminal.getvalue()


def test_elsewhere_there_is_no_bar_and_lines_are_printed(line_runner: Toy, capsys: pytest.CaptureFixture) -> None:
    run(line_runner)
    shown = capsys.readouterr().out
    assert 'Epoch(train) [1][2/5]' in shown
    assert 'epoch 1/2' not in shown


def test_the_end_says_what_was_reached_and_how_to_go_on(line_runner: Toy) -> None:
    runner = run(line_runner)
    text = log_of(runner)
    best = Path(runner.work_dir, 'best.pth')
    assert f'best toy/score: 0.7500 after epoch 2: {best}' in text
    assert f'predict: python tools/predict.py IMAGE_OR_FOLDER --checkpoint {best}' in text
    assert f'tensorboard --logdir {runner.work_dir}' in text


def test_after_a_failure_the_log_has_its_stream_back(line_runner: Toy, terminal: Terminal) -> None:
    hook = ProgressHook()
    with redirect_stdout(terminal):
        runner = line_runner([DeferredInfoHook(interval=1), hook])
        handler = next(h for h in runner.logger.handlers if type(h) is logging.StreamHandler)
        runner.model.poison = 3
        with pytest.raises(FloatingPointError):
            runner.train()
        assert sys.stdout is terminal
    assert handler.stream is terminal
    assert 'epoch 1/2' in terminal.getvalue()
    assert hook._progress is None


def test_a_bar_can_be_refused(line_runner: Toy, terminal: Terminal) -> None:
    run(line_runner, terminal, bar=False)
    assert 'epoch 1/2' not in terminal.getvalue()
