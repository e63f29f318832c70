"""Validation and test, which leave the model as they found it, however they end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmengine.evaluator import Evaluator
from mmengine.runner import Runner
from mmengine.runner import TestLoop as BaseTestLoop
from mmengine.runner import ValLoop as BaseValLoop
from torch.utils.data import DataLoader

from lucid.engine.distributed import unwrapped
from lucid.registry import LOOPS


@LOOPS.register_module()
class ValLoop(BaseValLoop):
    """mmengine's validation, after which hooks undo what ``before_val`` did even if it failed.

    Hooks may define ``undo_val(runner)``; it is called last, once, after ``after_val`` or instead of it.
    It runs in the model's own precision, float32, whatever precision training has: it is not under autocast.
    Where metrics have ``paths``, the model's are set to them for the time of the run; one that the model does not know
    is a ValueError when the loop is built.
    """

    def __init__(
        self, runner: Runner, dataloader: DataLoader | dict[str, Any], evaluator: Evaluator | dict | list
    ) -> None:
        super().__init__(runner, dataloader, evaluator)
        check_paths(runner, self.evaluator)

    def run(self) -> dict[str, Any]:
        """Validate once and return the metrics by name."""
        try:
            with predicting(self.runner, self.evaluator):
                return super().run()
        finally:
            self.runner.call_hook('undo_val')


@LOOPS.register_module()
class TestLoop(BaseTestLoop):
    """mmengine's test, after which hooks undo what ``before_test`` did even if it failed (``undo_test``).

    Where metrics have ``paths``, the model's are set to them for the time of the run; one that the model does not know
    is a ValueError when the loop is built.
    """

    __test__ = False  # pytest collects classes whose name begins like this

    def __init__(
        self, runner: Runner, dataloader: DataLoader | dict[str, Any], evaluator: Evaluator | dict | list
    ) -> None:
        super().__init__(runner, dataloader, evaluator)
        check_paths(runner, self.evaluator)

    def run(self) -> dict[str, Any]:
        """Test once and return the metrics by name."""
        try:
            with predicting(self.runner, self.evaluator):
                return super().run()
        finally:
            self.runner.call_hook('undo_test')


def wanted_paths(evaluator: Evaluator) -> tuple[str, ...]:
    """The paths that the metrics evaluate, each once, in their order; none where no metric says."""
    return tuple(dict.fromkeys(path for metric in evaluator.metrics for path in getattr(metric, 'paths', ())))


def check_paths(runner: Runner, evaluator: Evaluator) -> None:
    """Refuse a metric's path that the model does not know, before anything runs."""
    wanted = wanted_paths(evaluator)
    if not wanted:
        return
    model = unwrapped(runner.model)
    known = getattr(model, 'known_paths', ('one_to_one',))
    if unknown := [path for path in wanted if path not in known]:
        raise ValueError(
            f'a metric evaluates the path {unknown[0]!r}, but {type(model).__name__} predicts by {", ".join(known)} '
            f"only; set the metric's paths={known!r}"
        )


@contextmanager
def predicting(runner: Runner, evaluator: Evaluator) -> Iterator[None]:
    """Let the model predict by the paths of the metrics, and afterwards by its own again."""
    model: Any = unwrapped(runner.model)
    wanted = wanted_paths(evaluator)
    if not wanted or not hasattr(model, 'paths'):
        yield
        return
    before, model.paths = model.paths, wanted
    try:
        yield
    finally:
        model.paths = before
