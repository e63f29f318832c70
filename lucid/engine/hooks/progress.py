"""A progress bar on a terminal, and what to look at when training has ended."""

import datetime
import logging
import sys
import time
from collections.abc import Sized
from pathlib import Path
from typing import Any, TextIO

from mmengine.hooks import Hook
from mmengine.runner import Runner
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from lucid.engine.hooks.checkpoint import CheckpointHook
from lucid.registry import HOOKS

TERMS = ('loss_box', 'loss_cls', 'loss_l1')
WIDE = 120  # columns from which on the terms of the loss are shown
REFRESH = 0.2  # seconds


class _HideIterations(logging.Filter):
    """Drops the lines that the logger hook writes inside an epoch: the bar shows the same."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.module == 'logger_hook' and record.funcName.endswith('_iter'))


@HOOKS.register_module()
class ProgressHook(Hook):
    """Shows epoch, batch, losses, learning rate, images per second and remaining time, and sums up at the end.

    On a terminal a bar takes the place of the logger hook's lines, which still go to the log file; elsewhere the bar
    stays off. Other log lines are printed above the bar. There is no refreshing thread, because data loader workers
    fork while the bar is shown.

    Args:
        bar: Whether to draw a bar; None does on a terminal.
    """

    priority = 'LOWEST'  # the summary names the checkpoints, which are written before it

    def __init__(self, *, bar: bool | None = None) -> None:
        self.bar = bar
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._redirected: list[tuple[logging.StreamHandler, TextIO]] = []
        self._hide = _HideIterations()
        self._drawn = 0.0

    def before_train(self, runner: Runner) -> None:
        """Open the bar."""
        self._open(runner)

    def before_train_epoch(self, runner: Runner) -> None:
        """Start a line for the epoch."""
        done = runner.iter - runner.epoch * len(runner.train_dataloader)
        self._begin(f'epoch {runner.epoch + 1}/{runner.max_epochs}', runner.train_dataloader, done)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict[str, Any] | None = None
    ) -> None:
        """Advance by one batch."""
        self._advance(runner, batch_idx, 'train')

    def after_train_epoch(self, runner: Runner) -> None:
        """End the epoch's line."""
        self._end()

    def before_val_epoch(self, runner: Runner) -> None:
        """Start a line for the validation."""
        self._open(runner)
        self._begin('validation', runner.val_dataloader)

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Advance by one batch."""
        self._advance(runner, batch_idx, 'val')

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """End the validation's line."""
        self._end()

    def before_test_epoch(self, runner: Runner) -> None:
        """Start a line for the test."""
        self._open(runner)
        self._begin('test', runner.test_dataloader)

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Advance by one batch."""
        self._advance(runner, batch_idx, 'test')

    def undo_test(self, runner: Runner) -> None:
        """Close the bar, however the test ended."""
        self.close(runner)

    def after_train(self, runner: Runner) -> None:
        """Log what was reached and where it is, when the files are there."""
        self.close(runner)
        for hook in runner.hooks:
            if isinstance(hook, CheckpointHook):
                hook.finish(runner)
        runner.logger.info(summary(runner))

    def close(self, runner: Runner) -> None:
        """Close the bar and give the log its stream back; safe to call twice."""
        if self._progress is not None:
            self._end()
            self._progress.stop()
            self._progress = None
        for handler, stream in self._redirected:
            handler.setStream(stream)
            handler.removeFilter(self._hide)
        self._redirected.clear()

    def _open(self, runner: Runner) -> None:
        wanted = sys.stdout.isatty() if self.bar is None else self.bar
        if not wanted or runner.rank != 0 or self._progress is not None:
            return
        columns = (
            TextColumn('{task.description}'),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn('{task.fields[status]}'),
        )
        self._progress = Progress(*columns, console=Console(), auto_refresh=False, transient=True)
        self._progress.start()
        for handler in runner.logger.handlers:
            if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                # The bar replaced sys.stdout; a handler that kept the old one would write into the bar's line.
                self._redirected.append((handler, handler.stream))
                handler.setStream(sys.stdout)
                handler.addFilter(self._hide)

    def _begin(self, what: str, batches: Sized, done: int = 0) -> None:
        if self._progress is not None:
            self._task = self._progress.add_task(what, total=len(batches), completed=done, status='')

    def _end(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

    def _advance(self, runner: Runner, batch_idx: int, mode: str) -> None:
        if self._progress is None or self._task is None:
            return
        self._progress.update(self._task, completed=batch_idx + 1)
        if time.monotonic() - self._drawn > REFRESH:
            self._drawn = time.monotonic()
            text = status(runner, terms=self._progress.console.width >= WIDE) if mode == 'train' else ''
            self._progress.update(self._task, status=text)
            self._progress.refresh()


def status(runner: Runner, *, terms: bool) -> str:
    """Return loss, its terms at will, learning rate, speed and remaining time as of the last logging iteration."""
    hub = runner.message_hub
    values = {
        key.removeprefix('train/'): buffer.current() for key, buffer in hub.log_scalars.items() if 'train/' in key
    }
    names = ('loss', *(TERMS if terms else ()))
    parts = [f'{name.removeprefix("loss_")} {values[name]:.3f}' for name in names if name in values]
    if 'lr' in values:
        parts.append(f'lr {values["lr"]:.2e}')
    if 'img_s' in values:
        parts.append(f'{values["img_s"]:.0f} img/s')
    if 'eta' in hub.runtime_info:
        parts.append(f'{datetime.timedelta(seconds=int(hub.get_info("eta")))} left')
    return '  '.join(parts)


def summary(runner: Runner) -> str:
    """Return what was reached, where weights, pictures and logs are, and how to go on."""
    work_dir = Path(runner.work_dir)
    saver = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
    lines = [f'Trained {runner.epoch} epoch{"" if runner.epoch == 1 else "s"}.']
    weights = None
    if saver is not None:
        weights = saver.path(runner, 'last')
        if saver.best_score is not None:
            weights = saver.path(runner, 'best')
            lines.append(f'best {saver.save_best}: {saver.best_score:.4f} after epoch {saver.best_epoch}: {weights}')
        lines.append(f'last weights: {saver.path(runner, "last")}')
    if (work_dir / 'pictures').is_dir():
        lines.append(f'pictures: {work_dir / "pictures"}')
    lines.append(f'log: {runner.log_dir}; curves: tensorboard --logdir {work_dir}')
    if weights is not None:
        lines.append(f'predict: python tools/predict.py IMAGE_OR_FOLDER --checkpoint {weights}')
    return '\n  '.join(lines)
