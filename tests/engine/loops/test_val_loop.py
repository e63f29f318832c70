from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lucid.engine.loops import TestLoop, ValLoop, evaluation


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


def doubled(row: np.ndarray) -> dict[str, Any]:
    return {'value': torch.from_numpy(2 * row)}


class InParts(BaseModel):
    """Predicts twice the rows, in parts; notes what is done when."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))  # a runner wants something to train
        self.events: list[str] = []

    def prepare(self, data: dict[str, Any]) -> dict[str, Any]:
        return data

    def infer(self, inputs: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        self.events.append(f'infer {int(inputs[0, 0])}')
        return inputs + 0

    def select(self, inferred: Tensor) -> Tensor:
        self.events.append(f'select {int(inferred[0, 0])}')
        return inferred

    def place(self, selected: Tensor, metas: Any, *, run: Any) -> Iterator[dict[str, Any]]:
        found: Iterator[dict[str, Any]] = iter(run(doubled, selected.numpy()))
        return found

    def forward(self, inputs: Tensor, metas: Any = None, mode: str = 'tensor') -> Any:
        return list(self.place(self.select(self.infer(inputs)), metas, run=map))


class Values(BaseMetric):
    """Notes the batches as they come, and gives the sum of all values; ``fail_at`` that row."""

    def __init__(self, model: InParts, *, fail_at: int | None = None) -> None:
        super().__init__(prefix='toy')
        self.model, self.fail_at = model, fail_at

    def process(self, data_batch: Any, data_samples: Iterable[dict[str, Any]]) -> None:
        rows = data_batch['inputs'][:, 0].tolist()
        self.model.events.append(f'process {int(rows[0])}')
        if self.fail_at in rows:
            raise ArithmeticError
        assert [sample['value'][0].item() for sample in data_samples] == [2 * row for row in rows]
        self.results += rows

    def compute_metrics(self, results: list[float]) -> dict[str, float]:
        return {'sum': sum(results)}


class Iterations(Hook):
    def before_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        runner.model.events.append(f'before {batch_idx}')

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        assert [output['value'][0].item() for output in outputs] == (2 * data_batch['inputs'][:, 0]).tolist()
        runner.model.events.append(f'after {batch_idx}')


def in_parts(line_runner: Callable[..., Runner], *hooks: Hook, **options: Any) -> tuple[InParts, ValLoop]:
    """A loop over six rows in batches of two."""
    model = InParts()
    runner = line_runner([Iterations(), *hooks], model=model, length=6, scores=[0.0])
    loader: DataLoader = runner._val_dataloader
    fail_at = options.pop('fail_at', None)
    return model, ValLoop(runner, loader, Evaluator([Values(model, fail_at=fail_at)]), **options)


ONE_BATCH_AHEAD = [
    *('before 0', 'infer 0', 'before 1', 'infer 2', 'select 0', 'process 0', 'after 0'),
    *('before 2', 'infer 4', 'select 2', 'process 2', 'after 1', 'select 4', 'process 4', 'after 2'),
]


def test_a_batch_is_launched_before_the_host_works_on_the_one_before(line_runner: Callable[..., Runner]) -> None:
    model, loop = in_parts(line_runner)
    assert loop.run() == {'toy/sum': 15.0}
    assert model.events == ONE_BATCH_AHEAD


@pytest.mark.parametrize('num_workers', [1, 2])
def test_with_other_processes_results_and_their_order_are_the_same(
    line_runner: Callable[..., Runner], num_workers: int
) -> None:
    model, loop = in_parts(line_runner, num_workers=num_workers)
    for _ in range(2):
        model.events.clear()
        assert loop.run() == {'toy/sum': 15.0}
        assert [event for event in model.events if 'process' in event] == ['process 0', 'process 2', 'process 4']
        # What the processes do for a batch has begun before the one before is waited for.
        assert model.events.index('select 2') < model.events.index('process 0')
    assert loop.workers is not None
    loop.workers.close()


@pytest.mark.parametrize('kind', [ValLoop, TestLoop])
@pytest.mark.parametrize(('length', 'on_card', 'sizes'), [(5, True, [2, 2, 2]), (5, False, [2, 2, 1]), (1, True, [1])])
def test_on_a_card_a_partial_batch_behind_full_ones_is_filled_up(
    line_runner: Callable[..., Runner],
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    length: int,
    on_card: bool,
    sizes: list[int],
) -> None:
    class Cut(InParts):
        def infer(self, inputs: Tensor) -> Tensor:
            seen.append(len(inputs))
            return super().infer(inputs)

        def first(self, inferred: Tensor, count: int) -> Tensor:
            return inferred[:count]

    seen: list[int] = []
    monkeypatch.setattr(evaluation, '_on_card', lambda _: on_card)
    model = Cut()
    runner = line_runner(model=model, length=length, scores=[0.0])
    loop = kind(runner, runner._val_dataloader, Evaluator([Values(model)]))
    assert loop.run() == {'toy/sum': sum(range(length))}
    assert seen == sizes


def test_a_failure_of_the_host_stops_at_its_batch_and_hooks_undo(line_runner: Callable[..., Runner]) -> None:
    undo = Undo()
    model, loop = in_parts(line_runner, undo, fail_at=3)
    with pytest.raises(ArithmeticError):
        loop.run()
    assert undo.events == ['undo_val']
    assert model.events[-1] == 'process 2'
    assert 'after 0' in model.events


def test_a_failure_of_the_figures_ends_the_processes(line_runner: Callable[..., Runner]) -> None:
    _, loop = in_parts(line_runner, num_workers=1)
    loop.evaluator.metrics[0].compute_metrics = lambda _: 1 // 0
    with pytest.raises(ZeroDivisionError):
        loop.run()
    assert loop.workers is not None
    assert loop.workers._pool is None


class Broken(DataLoader):
    """Gives two batches, then fails."""

    error: BaseException = OSError()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = super().__iter__()
        yield next(batches)
        yield next(batches)
        raise self.error


@pytest.mark.parametrize('error', [OSError(), KeyboardInterrupt()])
def test_a_broken_image_fails_after_the_batches_before_it_and_an_interrupt_at_once(
    line_runner: Callable[..., Runner], error: BaseException
) -> None:
    model, loop = in_parts(line_runner)
    loop.dataloader.__class__ = Broken
    Broken.error = error
    with pytest.raises(type(error)):
        loop.run()
    assert ('after 1' in model.events) is isinstance(error, OSError)
    assert 'after 0' in model.events


def test_a_loop_or_a_model_of_the_users_own_is_run_batch_by_batch(line_runner: Callable[..., Runner]) -> None:
    class OwnLoop(ValLoop):
        def run_iter(self, idx: int, data_batch: Any) -> None:
            super().run_iter(idx, data_batch)

    model, loop = in_parts(line_runner)
    loop.__class__ = OwnLoop
    assert loop.run() == {'toy/sum': 15.0}
    assert model.events[:6] == ['before 0', 'infer 0', 'select 0', 'process 0', 'after 0', 'before 1']


def test_there_are_no_more_processes_than_processors(
    line_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('os.sched_getaffinity', lambda _: {0, 1, 2})
    numbers = [in_parts(line_runner, num_workers=asked)[1].workers.number for asked in (2, 8)]
    assert numbers == [2, 3]


def test_a_negative_number_of_processes_is_refused(line_runner: Callable[..., Runner]) -> None:
    with pytest.raises(ValueError, match='num_workers=-1 of ValLoop; use 0 or more'):
        in_parts(line_runner, num_workers=-1)
