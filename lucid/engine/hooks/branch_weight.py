"""The progressive weight between the one-to-many and the one-to-one loss."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor, nn

from lucid.registry import HOOKS


@HOOKS.register_module()
class BranchWeightHook(Hook):
    """Fills ``branch_weight`` of the model's losses, in place, at the start of each epoch.

    Epoch e (from 0) of E has ``max(1 - e / max(E - 1, 1), 0) * (first - last) + last``. It follows from the epoch
    alone, so that resuming needs no state. A loop that does not count epochs leaves the loss's own value.

    Args:
        first: Weight of the one-to-many loss in the first epoch; the one-to-one loss has the rest.
        last: The same in the last epoch.

    Raises:
        ValueError: A weight is outside 0 to 1.

    Source: YOLO26 (arXiv:2606.03748), equations 2 and 3.
    """

    priority = 'NORMAL'

    def __init__(self, *, first: float = 0.8, last: float = 0.1) -> None:
        if not (0 <= first <= 1 and 0 <= last <= 1):
            raise ValueError(f'BranchWeightHook: first={first}, last={last}; give weights from 0 to 1')
        self.first = first
        self.last = last
        self._losses: list[nn.Module] = []

    def before_train(self, runner: Runner) -> None:
        """Find the losses.

        Args:
            runner: The runner that starts training.

        Raises:
            ValueError: No module of the model has a ``branch_weight``.
        """
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        self._losses = [module for module in model.modules() if isinstance(_weight(module), Tensor)]
        if not self._losses:
            raise ValueError(
                f'BranchWeightHook: no module of {type(model).__name__} has a branch_weight; '
                "take the hook out of custom_hooks, or use a loss that has one, such as 'DetectionLoss'"
            )

    def before_train_epoch(self, runner: Runner) -> None:
        """Fill the weight of the epoch that starts.

        Args:
            runner: The runner.
        """
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            return
        left = max(1 - runner.epoch / max(runner.max_epochs - 1, 1), 0)
        for loss in self._losses:
            _weight(loss).fill_(left * (self.first - self.last) + self.last)  # in place: a recording holds its address


def _weight(module: nn.Module) -> Any:
    return getattr(module, 'branch_weight', None)
