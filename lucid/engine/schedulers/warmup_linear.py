"""Linear warm-up, then linear decay, over optimizer steps."""

from typing import Any

from mmengine.optim import BaseOptimWrapper, _ParamScheduler
from torch.optim import Optimizer

from lucid.registry import PARAM_SCHEDULERS


@PARAM_SCHEDULERS.register_module()
class WarmupLinearLR(_ParamScheduler):
    """Learning rate of each optimizer step, as a factor of the group's initial one.

    Of T steps the first ``W = round(T * warmup_epochs / end)``, at most T - 1, have ``(step + 1) / W``; from the last
    of them, factor 1, it falls on a line to exactly ``lrf`` in step T - 1, and stays there. With ``lrf >= 1`` and no
    warm-up it is constant. T is ``end`` times the steps of an epoch, which ``SchedulerHook`` tells before training.

    The factor follows from the number of the step, so that resuming restores that and the initial rates only: a run
    resumed with another length follows the new schedule.

    Args:
        optimizer: Optimizer or wrapper.
        warmup_epochs: Length of the warm-up; 0 or less for none.
        lrf: Factor of the last step.
        end: Epochs of the whole schedule; the runner fills in those of the run.
        steps_per_epoch: Optimizer steps of an epoch, where no ``SchedulerHook`` tells it.

    Raises:
        ValueError: A number is out of range.

    Source: YOLO26 (arXiv:2606.03748), section 3.3.1.
    """

    def __init__(
        self,
        optimizer: BaseOptimWrapper | Optimizer,
        *,
        warmup_epochs: float = 3.0,
        lrf: float = 0.01,
        end: float,
        steps_per_epoch: int | None = None,
    ) -> None:
        if not (end > 0 and lrf >= 0) or (steps_per_epoch is not None and steps_per_epoch < 1):
            raise ValueError(
                f'WarmupLinearLR: end={end}, lrf={lrf}, steps_per_epoch={steps_per_epoch}; '
                'use end > 0, lrf >= 0 and steps_per_epoch >= 1 or None'
            )
        self.warmup_epochs = warmup_epochs
        self.lrf = lrf
        self.num_epochs = end
        self.steps_per_epoch = steps_per_epoch
        super().__init__(optimizer, 'lr', by_epoch=False)

    def configure(self, steps_per_epoch: int) -> None:
        """Set the number of optimizer steps of an epoch, and the rate of the step that comes next.

        Args:
            steps_per_epoch: At least one.
        """
        self.steps_per_epoch = steps_per_epoch
        for group, value in zip(self.optimizer.param_groups, self._get_value(), strict=True):
            group['lr'] = value
        self._last_value = [group['lr'] for group in self.optimizer.param_groups]

    def factor(self, step: int) -> float:
        """Return the factor of step ``step``, counted from 0.

        Args:
            step: Number of the optimizer step.

        Returns:
            What multiplies the initial rates.

        Raises:
            RuntimeError: The number of steps is not known.
        """
        if self.steps_per_epoch is None:
            raise RuntimeError(
                'WarmupLinearLR does not know the number of steps; set default_hooks=dict(param_scheduler=dict(type='
                "'SchedulerHook')), or give steps_per_epoch"
            )
        total = max(round(self.num_epochs * self.steps_per_epoch), 1)
        warmup = min(round(total * max(self.warmup_epochs, 0.0) / self.num_epochs), total - 1)
        if self.lrf >= 1 and self.warmup_epochs <= 0:
            return 1.0
        if step < warmup:
            return (step + 1) / warmup
        if step >= total - 1:
            return self.lrf
        peak = max(warmup - 1, 0)
        return 1 + (self.lrf - 1) * (step - peak) / (total - 1 - peak)

    def _get_value(self) -> list[float]:
        if self.steps_per_epoch is None and self.last_step == 0:  # under construction: configure comes before step 0
            return list(self.base_values)
        factor = self.factor(self.last_step)
        return [base * factor for base in self.base_values]

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the step and the initial rates, as plain numbers."""
        return {
            'last_step': self.last_step,
            '_global_step': self._global_step,
            'base_values': [float(value) for value in self.base_values],
        }
