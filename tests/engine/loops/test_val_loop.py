from collections.abc import Callable
from typing import Any

import pytest
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine.loops import TestLoop, ValLoop


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


class Paths(BaseMetric):
    """A metric that wants paths, and notes by which the model predicted."""

    def __init__(self, model: Any, *paths: str) -> None:
        super().__init__(prefix='+'.join(paths))
        self.model, self.paths = model, paths

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results += [self.model.paths] * len(data_samples)

    def compute_metrics(self, results: list) -> dict[str, Any]:
        assert set(results) == {('one_to_one', 'nms')}
        return {'seen': 1.0}


def test_the_model_predicts_by_the_paths_of_all_metrics_for_the_time_of_the_run(
    line_runner: Callable[..., Runner],
) -> None:
    runner = line_runner(scores=[0.25])
    model: Any = runner.model
    model.known_paths, model.paths = ('one_to_one', 'nms'), ('one_to_one',)
    metrics = [Paths(model, 'one_to_one'), Paths(model, 'one_to_one', 'nms')]
    loop = ValLoop(runner, runner._val_dataloader, Evaluator(metrics))
    assert loop.run() == {'one_to_one/seen': 1.0, 'one_to_one+nms/seen': 1.0}
    assert model.paths == ('one_to_one',)


def test_the_paths_are_set_back_after_a_failure_too(line_runner: Callable[..., Runner]) -> None:
    runner = line_runner([Undo(fail=True)], scores=[0.25])
    model: Any = runner.model
    model.known_paths, model.paths = ('one_to_one', 'nms'), ('one_to_one',)
    with pytest.raises(ArithmeticError):
        ValLoop(runner, runner._val_dataloader, Evaluator([Paths(model, 'nms')])).run()
    assert model.paths == ('one_to_one',)


@pytest.mark.parametrize('loop', [ValLoop, TestLoop])
def test_a_path_that_the_model_lacks_is_refused_when_the_loop_is_built(
    line_runner: Callable[..., Runner], loop: type
) -> None:
    runner = line_runner(scores=[0.25])
    with pytest.raises(ValueError, match=r"'nms', but Line predicts by one_to_one only; set the metric's paths="):
        loop(runner, runner._val_dataloader, Evaluator([Paths(runner.model, 'one_to_one', 'nms')]))
    loop(runner, runner._val_dataloader, Evaluator([Paths(runner.model, 'one_to_one')]))  # control
