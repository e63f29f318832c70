"""Ending a training whose validation no longer improves."""

import math
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine import checkpoint as files
from lucid.engine.hooks.checkpoint import CheckpointHook
from lucid.engine.monitored import check_metric
from lucid.registry import HOOKS

ENTRY = 'early_stopping'


@HOOKS.register_module()
class EarlyStoppingHook(Hook):
    """Ends training after the validation with which ``patience`` epochs have passed since the last better one.

    mmengine's hook of this name counts validations, not epochs, and forgets them when a run resumes. This one writes
    its state into each checkpoint. ``best.pth`` is CheckpointHook's, as ever, and ``last.pth`` is written at the end.
    All processes get the same metrics and stop together. A resumed run that had stopped is refused, unless the config
    grants it more patience.

    The learning rate and the closing of the mosaic follow ``max_epochs``: a run that stops before skips their end.

    Args:
        patience: Epochs, at least as many as between two validations; None never stops.
        monitor: Metric, greater is better; None takes that of ``CheckpointHook.save_best``.
        min_delta: What a metric must gain to be better.

    Raises:
        ValueError: A number is out of range; at the start, if validation does not give the metric.
    """

    priority = 'BELOW_NORMAL'  # before CheckpointHook (VERY_LOW), which writes this hook's state

    def __init__(self, *, patience: int | None = None, monitor: str | None = None, min_delta: float = 0.0) -> None:
        if (patience is not None and patience < 1) or not 0 <= min_delta < math.inf:
            raise ValueError(
                f'EarlyStoppingHook: patience={patience}, min_delta={min_delta}; use patience >= 1 epochs or None, '
                'min_delta >= 0'
            )
        self.patience = patience
        self.monitor = monitor
        self.min_delta = min_delta
        self.best_score: float | None = None
        self.best_epoch = 0  # epochs done when the best score was reached
        self.stopped = False

    def check(self, runner: Runner) -> None:
        """Settle the metric, and refuse what can never stop or stops by itself, before training.

        Args:
            runner: The runner, complete.

        Raises:
            ValueError: There is no validation, it lacks the metric, or it comes less often than patience allows.
        """
        if self.patience is None:
            if self.monitor is not None and runner.val_loop is not None:  # a slip shows before it is switched on
                check_metric('EarlyStoppingHook.monitor', self.monitor, runner.val_loop.evaluator)
            return
        if runner.val_loop is None:
            raise ValueError('EarlyStoppingHook needs a validation: add val_dataloader, or set patience=None')
        if self.monitor is None:
            saver = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
            if saver is not None:
                saver.settle(runner)
                self.monitor = saver.save_best
        if self.monitor is None:
            raise ValueError('EarlyStoppingHook: no metric to watch, CheckpointHook.save_best names none; set monitor')
        check_metric('EarlyStoppingHook.monitor', self.monitor, runner.val_loop.evaluator)
        interval = runner.train_loop.val_interval
        if self.patience < interval:
            raise ValueError(
                f'EarlyStoppingHook.patience is {self.patience} epochs, and validation comes every {interval}, so that '
                f'the first one that gains nothing would stop; use {interval} or more, or lower train_cfg.val_interval'
            )

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Go on counting where a resumed run stopped, if it watched the same metric.

        Args:
            runner: The runner that loads.
            checkpoint: The loaded checkpoint.

        Raises:
            CheckpointError: The run had lost its patience, and this config grants no more.
        """
        state = checkpoint.get(ENTRY)
        if not runner._resume or state is None or self.patience is None:
            return
        self.check(runner)
        if state['monitor'] != self.monitor:
            runner.logger.warning(f'patience starts anew: it was with {state["monitor"]} and is with {self.monitor}')
            self.best_epoch = checkpoint['meta']['epoch']
            return
        self.best_score, self.best_epoch = state['best_score'], state['best_epoch']
        waited = checkpoint['meta']['epoch'] - self.best_epoch
        if state['stopped'] and waited >= self.patience:
            raise files.CheckpointError(
                f'{runner._load_from} is the end of a run that stopped early: {waited} epochs without a better '
                f'{self.monitor}; raise default_hooks.early_stopping.patience above {waited}, or set it to None, to '
                'train longer'
            )

    def before_train(self, runner: Runner) -> None:
        """Check, under runners that nobody checked."""
        self.check(runner)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Count, and stop the loop where patience has ended."""
        if self.patience is None or runner._train_loop is None or isinstance(runner._train_loop, dict):
            return  # off, or validation alone, outside training
        assert self.monitor is not None, 'check has settled it'
        if self.monitor not in (metrics or {}):
            raise KeyError(
                f'EarlyStoppingHook.monitor is {self.monitor!r}, but validation gives {", ".join(metrics or {})}: '
                'name one of these'
            )
        score = float((metrics or {})[self.monitor])
        if not math.isnan(score) and (self.best_score is None or score > self.best_score + self.min_delta):
            self.best_score, self.best_epoch = score, runner.epoch
            return
        waited = runner.epoch - self.best_epoch
        if waited >= self.patience and runner.epoch < runner.max_epochs:
            self.stopped = True
            runner.train_loop.stop_training = True
            best = (
                'was never a number'
                if self.best_score is None
                else (f'was best with {self.best_score:.4f} after epoch {self.best_epoch}')
            )
            runner.logger.info(
                f'early stopping after epoch {runner.epoch} of {runner.max_epochs}: {self.monitor} is {score:.4f} and '
                f'{best}, {waited} epochs ago (patience {self.patience}, min_delta {self.min_delta:g})'
            )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Add what a resumed run needs to go on counting.

        Args:
            runner: The runner that saves.
            checkpoint: Gets ``early_stopping``, if patience is limited.
        """
        if self.patience is not None:
            checkpoint[ENTRY] = {
                'monitor': self.monitor,
                'best_score': self.best_score,
                'best_epoch': self.best_epoch,
                'stopped': self.stopped,
            }
