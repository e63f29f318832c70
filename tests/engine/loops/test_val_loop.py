from collections.abc import Callable
from typing import Any

import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine.loops import ValLoop


class Undo(Hook):
    def __init__(self, *, fail: bool = False) -> None:
        self.fail = fail
        self.events: list[str] = []

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if self.fail:
            raise ArithmeticError

    def after_val(self, runner: Runner) -> None:
        self.events.append('after_val')

    def undo_val(self, runner: Runner) -> None:
        self.events.append('undo_val')


def test_metrics_are_returned_and_hooks_undo_last(line_runner: Callable[..., Runner]) -> None:
    undo = Undo()
    runner = line_runner([undo], scores=[0.25])
    assert runner.val() == {'toy/score': 0.25}
    assert isinstance(runner.val_loop, ValLoop)
    assert undo.events == ['after_val', 'undo_val']


def test_hooks_undo_after_a_failure_too(line_runner: Callable[..., Runner]) -> None:
    undo = Undo(fail=True)
    with pytest.raises(ArithmeticError):
        line_runner([undo], scores=[0.25]).val()
    assert undo.events == ['undo_val']
