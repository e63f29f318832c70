import warnings
from collections.abc import Callable
from typing import Any

import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner


class Rates(Hook):
    """Keeps the learning rate of each iteration as it is before it."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        self.seen.append(runner.optim_wrapper.get_lr()['lr'][0])


def wrapper(counts: int) -> dict[str, Any]:
    return {'type': 'OptimWrapper', 'optimizer': {'type': 'SGD', 'lr': 1.0}, 'accumulative_counts': counts}


@pytest.mark.parametrize('loop', ['EpochBasedTrainLoop', 'EpochTrainLoop'])
def test_the_schedule_spans_the_optimizer_steps_of_the_run(toy_runner: Callable[..., Runner], loop: str) -> None:
    rates = Rates()
    runner = toy_runner(
        custom_hooks=[rates],
        optim_wrapper=wrapper(2),
        train_cfg={'type': loop, 'max_epochs': 3},
        param_scheduler={'type': 'WarmupLinearLR', 'warmup_epochs': 1, 'lrf': 0.2},
    )
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        runner.train()
    # Three epochs of two steps: two of warm-up, then down to 0.2 in the sixth; each step has two batches.
    expected = [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]
    assert rates.seen == pytest.approx([rate for rate in expected for _ in range(2)])
    assert rates.seen[-1] == 0.2


def test_schedulers_of_mmengine_step_by_optimizer_step_or_by_epoch(toy_runner: Callable[..., Runner]) -> None:
    by_step, by_epoch = Rates(), Rates()
    for rates, scheduler in (
        (by_step, {'type': 'mmengine.MultiStepLR', 'milestones': [1, 3], 'by_epoch': False}),
        (by_epoch, {'type': 'mmengine.MultiStepLR', 'milestones': [1], 'by_epoch': True}),
    ):
        toy_runner(custom_hooks=[rates], optim_wrapper=wrapper(2), param_scheduler=scheduler).train()
    assert by_step.seen == pytest.approx([1, 1] + [0.1] * 4 + [0.01] * 6)
    assert by_epoch.seen == pytest.approx([1] * 4 + [0.1] * 8)


def test_a_wrapper_without_windows_steps_each_iteration(toy_runner: Callable[..., Runner]) -> None:
    rates = Rates()
    toy_runner(
        custom_hooks=[rates],
        optim_wrapper={'type': 'mmengine.OptimWrapper', 'optimizer': {'type': 'mmengine.SGD', 'lr': 1.0}},
        param_scheduler={'type': 'WarmupLinearLR', 'warmup_epochs': 0, 'lrf': 0.0},
    ).train()
    assert rates.seen == pytest.approx([1 - step / 11 for step in range(12)])


def test_a_run_without_schedulers_keeps_its_rate(toy_runner: Callable[..., Runner]) -> None:
    rates = Rates()
    toy_runner(custom_hooks=[rates], optim_wrapper=wrapper(1)).train()
    assert rates.seen == [1.0] * 12
