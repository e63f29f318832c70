from collections.abc import Callable
from typing import Any

import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine.loops import TestLoop


class Undo(Hook):
    def __init__(self, *, fail: bool = False) -> None:
        self.fail = fail
        self.events: list[str] = []

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if self.fail:
            raise ArithmeticError

    def after_test(self, runner: Runner) -> None:
        self.events.append('after_test')

    def undo_test(self, runner: Runner) -> None:
        self.events.append('undo_test')


def as_test(runner: Runner) -> Runner:
    """Test on what the runner would validate on."""
    runner._test_dataloader, runner._test_evaluator = runner._val_dataloader, runner._val_evaluator
    runner._test_loop = {'type': 'TestLoop'}
    return runner


def test_metrics_are_returned_and_hooks_undo_last(line_runner: Callable[..., Runner]) -> None:
    undo = Undo()
    runner = as_test(line_runner([undo], scores=[0.25]))
    assert runner.test() == {'toy/score': 0.25}
    assert isinstance(runner.test_loop, TestLoop)
    assert undo.events == ['after_test', 'undo_test']


def test_hooks_undo_after_a_failure_too(line_runner: Callable[..., Runner]) -> None:
    undo = Undo(fail=True)
    with pytest.raises(ArithmeticError):
        as_test(line_runner([undo], scores=[0.25])).test()
    assert undo.events == ['undo_test']
