"""Stepping the parameter schedulers once per optimizer step."""

import math
from typing import Any

from mmengine.hooks import ParamSchedulerHook
from mmengine.runner import Runner

from lucid.engine.schedulers import WarmupLinearLR
from lucid.registry import HOOKS


@HOOKS.register_module()
class SchedulerHook(ParamSchedulerHook):
    """mmengine's hook, whose iteration is an optimizer step: it steps at window ends, not at each micro-batch.

    Schedulers with ``by_epoch=True`` step at epoch ends, as ever. Before training it tells ``WarmupLinearLR`` how many
    optimizer steps an epoch has. It takes the place of ``default_hooks.param_scheduler``.
    """

    priority = 'LOW'  # mmengine's: after the hooks that log the lr of the step just made

    def before_train(self, runner: Runner) -> None:
        """Tell schedulers that need it the number of optimizer steps, before the first of them.

        Args:
            runner: The runner that starts training.
        """
        counts = getattr(runner.optim_wrapper, '_accumulative_counts', 1)
        num_batches = runner.max_iters / runner.max_epochs
        for scheduler in _all(runner.param_schedulers):
            if isinstance(scheduler, WarmupLinearLR):
                scheduler.configure(math.ceil(num_batches / counts))

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict[str, Any] | None = None
    ) -> None:
        """Step the schedulers that count iterations, if a step was made.

        Args:
            runner: The runner.
            batch_idx: Place in the epoch.
            data_batch: What collate returned.
            outputs: Log variables.
        """
        if getattr(runner.optim_wrapper, 'window_ended', True):
            super().after_train_iter(runner, batch_idx, data_batch, outputs)


def _all(schedulers: Any) -> list[Any]:
    """Flatten what the runner holds: None, a list, or lists by the optimizer's name."""
    if isinstance(schedulers, dict):
        return [scheduler for group in schedulers.values() for scheduler in group]
    return list(schedulers or [])
