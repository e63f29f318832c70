"""Validation and test, which leave the model as they found it, however they end."""

from typing import Any

from mmengine.evaluator import Evaluator
from mmengine.runner import Runner
from mmengine.runner import TestLoop as BaseTestLoop
from mmengine.runner import ValLoop as BaseValLoop
from torch.utils.data import DataLoader

from lucid.registry import LOOPS


@LOOPS.register_module()
class ValLoop(BaseValLoop):
    """mmengine's validation, after which hooks undo what ``before_val`` did even if it failed.

    Hooks may define ``undo_val(runner)``; it is called last, once, after ``after_val`` or instead of it.
    Precision follows the optimizer wrapper of training, not a flag of this loop.
    """

    def __init__(
        self, runner: Runner, dataloader: DataLoader | dict[str, Any], evaluator: Evaluator | dict | list
    ) -> None:
        super().__init__(runner, dataloader, evaluator)

    def run(self) -> dict[str, Any]:
        """Validate once and return the metrics by name."""
        try:
            return super().run()
        finally:
            self.runner.call_hook('undo_val')


@LOOPS.register_module()
class TestLoop(BaseTestLoop):
    """mmengine's test, after which hooks undo what ``before_test`` did even if it failed (``undo_test``)."""

    __test__ = False  # pytest collects classes whose name begins like this

    def __init__(
        self, runner: Runner, dataloader: DataLoader | dict[str, Any], evaluator: Evaluator | dict | list
    ) -> None:
        super().__init__(runner, dataloader, evaluator)

    def run(self) -> dict[str, Any]:
        """Test once and return the metrics by name."""
        try:
            return super().run()
        finally:
            self.runner.call_hook('undo_test')
