"""Validation captured by the hook, beside a captured training."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import Tensor, nn

from lucid.capture import CaptureError, CudaMemory, Parts, TapeMemory
from lucid.capture.compiling import SLOT
from lucid.engine.hooks import CaptureHook
from lucid.engine.hooks.capture import FILE

Make = Callable[..., Runner]
TRAINING, EVALUATION = {'type': 'ModuleRegion', 'target': 'network'}, {'type': 'EvalRegion', 'target': 'network'}


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    torch.backends.cudnn.deterministic = True
    memory = CudaMemory if request.param == 'cuda' else lambda device: TapeMemory()
    monkeypatch.setattr(CaptureHook, 'parts', Parts(memory=memory))
    yield request.param
    torch.backends.cudnn.deterministic = False


BACKENDS = pytest.mark.parametrize('backend', ['tape', pytest.param('cuda', marks=pytest.mark.cuda)], indirect=True)


class Classifier(BaseModel):
    """Predicts one row of scores per image; ``seen`` has those of evaluation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
        )
        self.seen: list[Tensor] = []

    def forward(self, inputs: Tensor, mode: str = 'tensor') -> Any:
        scores = self.network(inputs)
        if mode == 'loss':
            return {'loss': scores.square().mean() - scores[:, 0].mean()}
        self.seen.append(scores)
        return [{'scores': row} for row in scores]


class Mean(BaseMetric):
    default_prefix = 'toy'

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results += [sample['scores'].mean().item() for sample in data_samples]

    def compute_metrics(self, results: list[float]) -> dict[str, float]:
        return {'mean': sum(results)}


@pytest.fixture
def make(toy_runner: Make) -> Make:
    """Three epochs, each with a validation, over eight images in batches of three, three and two."""

    def build(regions: list[dict[str, Any]] | None, *hooks: Hook, **options: Any) -> Runner:
        captures = [] if regions is None else [{'type': 'CaptureHook', 'regions': regions, **options}]
        runner = toy_runner(
            model=Classifier(), val_evaluator=[Mean()], custom_hooks=[*captures, *hooks], randomness={'seed': 0}
        )
        runner._train_dataloader['batch_size'] = runner._val_dataloader['batch_size'] = 3
        return runner

    return build


def hook_of(runner: Runner) -> CaptureHook:
    return next(hook for hook in runner.hooks if isinstance(hook, CaptureHook))


@BACKENDS
@pytest.mark.parametrize('regions', [[EVALUATION], [TRAINING, EVALUATION], [EVALUATION, TRAINING]])
def test_a_foreign_model_under_a_plain_runner_is_validated_as_by_eager(
    make: Make, backend: str, regions: list[dict[str, Any]], tmp_path: Path
) -> None:
    reference, candidate = make(None), make(regions)
    for runner in (reference, candidate):
        runner.train()
    expected, found = reference.model.seen, candidate.model.seen
    assert len(expected) == len(found) == 9
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert not torch.equal(expected[0], expected[3])  # control: the training moves them
    report = json.loads((tmp_path / FILE).read_text())
    assert report['problems'] == []
    routes = report['regions']['eval/network']
    assert (routes['replays'], routes['captures'], routes['calls']) == (6, 1, 9)
    assert [(e['reason'], e['calls']) for e in routes['eager']] == [('new_signature', 3)]
    if TRAINING in regions:
        assert report['regions']['network']['replays'] == 6
    assert SLOT not in vars(candidate.model.network)


class Look(Hook):
    """Notes whether the regions lie in one memory, at the end of each validation."""

    def __init__(self) -> None:
        self.shared: list[bool] = []

    def after_val_epoch(self, runner: Runner, metrics: Any = None) -> None:
        first, second = hook_of(runner).regions
        assert first._pool is not None
        assert second._pool is not None
        self.shared.append(first._pool.memory is second._pool.memory)


@BACKENDS
def test_validation_lies_in_the_memory_of_the_training_also_when_that_is_captured_anew(
    make: Make, backend: str
) -> None:
    class Change(Hook):
        def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
            if runner.iter == 4:
                runner.model.network[0].weight.data = runner.model.network[0].weight.data.clone()

    look = Look()
    runner = make([TRAINING, EVALUATION], look, Change())
    runner.train()
    assert look.shared == [True] * 3
    training, evaluation = hook_of(runner).report.routes
    assert (training.captures, evaluation.captures) == (2, 2)
    assert (training.replays, evaluation.replays) == (6, 6)


class AddHook(Hook):
    """Puts a hook on a module in the second validation."""

    def before_val_epoch(self, runner: Runner) -> None:
        if runner.epoch == 2:
            runner.model.network[0].register_forward_hook(lambda *_: None)


@BACKENDS
def test_strict_fails_a_validation_at_its_first_unexpected_eager_call(make: Make, backend: str) -> None:
    runner = make([EVALUATION], AddHook(), strict=True)
    with pytest.raises(CaptureError, match='strict: eval/network: a hook that a replay would not run'):
        runner.train()
    assert len(runner.model.seen) == 4


@BACKENDS
def test_strict_fails_a_validation_that_went_round_its_target_and_no_training_before_it(
    make: Make, backend: str
) -> None:
    runner = make([EVALUATION], strict=True)
    runner.model.forward = lambda inputs, mode='tensor': (
        {'loss': runner.model.network(inputs).mean()}
        if mode == 'loss'
        else [{'scores': row} for row in runner.model.network.forward(inputs)]
    )
    with pytest.raises(CaptureError, match='strict: eval/network: never called'):
        runner.train()
    assert runner.epoch == 1


@BACKENDS
def test_a_training_without_validation_does_not_miss_one(make: Make, backend: str, tmp_path: Path) -> None:
    runner = make([TRAINING, EVALUATION], strict=True)
    runner._val_dataloader = runner._val_loop = runner._val_evaluator = None
    runner.train()
    assert json.loads((tmp_path / FILE).read_text())['problems'] == []


@BACKENDS
def test_a_model_without_infer_is_told_to_name_a_module(make: Make, backend: str) -> None:
    with pytest.raises(ValueError, match=r"Classifier has no infer, .*name a module: dict\(type='EvalRegion'"):
        make([{'type': 'EvalRegion'}]).train()
