import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner
from torch import Tensor

from lucid.engine.hooks import EMAHook

EMA = {'type': 'EMAHook', 'decay': 0.9, 'warmup': 2.0}


class Watch(Hook):
    """Keeps the weights after each step and those that validation sees."""

    priority = 'VERY_LOW'

    def __init__(self, fail_in_epoch: int = -1) -> None:
        self.live: list[dict[str, Tensor]] = []
        self.validated: list[dict[str, Tensor]] = []
        self.addresses: set[int] = set()
        self.fail_in_epoch = fail_in_epoch

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.live.append(weights(runner))
        self.addresses.add(runner.model.conv.weight.data_ptr())

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if len(self.validated) == self.fail_in_epoch:
            raise KeyError('validation')
        self.addresses.add(runner.model.conv.weight.data_ptr())
        if batch_idx == 0:
            self.validated.append(weights(runner))


def weights(runner: Runner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in runner.model.state_dict().items() if tensor.is_floating_point()}


def hook_of(runner: Runner) -> EMAHook:
    return next(hook for hook in runner.hooks if isinstance(hook, EMAHook))


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def average(start: dict[str, Tensor], live: list[dict[str, Tensor]], done: int = 0) -> dict[str, Tensor]:
    shadow = {name: tensor.double() for name, tensor in start.items()}
    for t, values in enumerate(live, start=done + 1):
        d = 0.9 * (1 - math.exp(-t / 2.0))
        shadow = {name: d * tensor + (1 - d) * values[name].double() for name, tensor in shadow.items()}
    return shadow


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    for name in a:
        torch.testing.assert_close(a[name].double(), b[name].double(), rtol=1e-5, atol=1e-7)


def test_validation_sees_the_averages_and_training_its_own_weights(toy_runner: Callable[..., Runner]) -> None:
    watch = Watch()
    runner = toy_runner(custom_hooks=[dict(EMA), watch])
    start = weights(runner)
    runner.train()
    assert len(watch.live) == 12
    assert len(watch.validated) == 3
    for epoch, seen in enumerate(watch.validated, start=1):
        assert_close(seen, average(start, watch.live[: 4 * epoch]))
    assert equal(weights(runner), watch.live[-1])  # BatchNorm in eval changes nothing, and the swap is undone
    assert not equal(watch.validated[-1], watch.live[-1])  # control
    assert len(watch.addresses) == 1


def test_averaging_does_not_change_training(toy_runner: Callable[..., Runner]) -> None:
    runners = [toy_runner(custom_hooks=hooks) for hooks in ([dict(EMA)], [])]
    for runner in runners:
        runner.train()
    assert equal(weights(runners[0]), weights(runners[1]))


def test_a_window_of_several_batches_counts_once(toy_runner: Callable[..., Runner]) -> None:
    wrapper = {'type': 'OptimWrapper', 'optimizer': {'type': 'SGD', 'lr': 0.1}, 'accumulative_counts': 2}
    runner = toy_runner(custom_hooks=[dict(EMA)], optim_wrapper=wrapper)
    runner.train()
    ema = hook_of(runner).ema
    assert ema is not None
    assert ema.num_updates == 6


def test_an_exception_in_validation_leaves_a_swap_that_restore_undoes(toy_runner: Callable[..., Runner]) -> None:
    watch = Watch(fail_in_epoch=1)
    runner = toy_runner(custom_hooks=[dict(EMA), watch])
    with pytest.raises(KeyError, match='validation'):
        runner.train()
    assert not equal(weights(runner), watch.live[-1])  # control: mmengine's loop tidies nothing up
    runner.call_hook('undo_val')  # what lucid's loop does in its finally
    assert equal(weights(runner), watch.live[-1])
    hook_of(runner).restore(runner)
    assert equal(weights(runner), watch.live[-1])


def test_lucids_loops_undo_the_swap_by_themselves(toy_runner: Callable[..., Runner]) -> None:
    watch = Watch(fail_in_epoch=0)
    runner = toy_runner(
        custom_hooks=[dict(EMA), watch],
        train_cfg={'type': 'EpochTrainLoop', 'max_epochs': 3},
        val_cfg={'type': 'ValLoop'},
    )
    with pytest.raises(KeyError, match='validation'):
        runner.train()
    assert equal(weights(runner), watch.live[-1])


def test_resuming_restores_the_averages_in_place_and_continues_bitwise(
    toy_runner: Callable[..., Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')  # the checkpoints of mmengine hold its own classes
    straight, again = Watch(), Watch()
    toy_runner(custom_hooks=[dict(EMA), straight, CheckpointHook(interval=1)]).train()
    checkpoint = torch.load(tmp_path / 'epoch_1.pth', weights_only=False)
    assert set(checkpoint['ema']) == {'shadow', 'num_updates'}
    assert checkpoint['ema']['num_updates'] == 4
    assert torch.equal(checkpoint['state_dict']['conv.weight'], straight.live[3]['conv.weight'])  # the trained weights
    runner = toy_runner(custom_hooks=[dict(EMA), again], load_from=str(tmp_path / 'epoch_1.pth'), resume=True)
    runner.train()
    assert len(again.live) == 8
    assert all(equal(a, b) for a, b in zip(straight.validated[1:], again.validated, strict=True))


def test_a_checkpoint_without_averages_and_one_that_is_only_loaded_start_from_its_weights(
    toy_runner: Callable[..., Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    toy_runner(custom_hooks=[CheckpointHook(interval=1)]).train()
    path = tmp_path / 'epoch_1.pth'
    start = {k: v for k, v in torch.load(path, weights_only=False)['state_dict'].items() if v.is_floating_point()}
    for resume in (True, False):
        watch = Watch()
        toy_runner(custom_hooks=[dict(EMA), watch], load_from=str(path), resume=resume).train()
        assert_close(watch.validated[0], average(start, watch.live[:4]))
    log = '\n'.join(file.read_text() for file in tmp_path.rglob('*.log'))
    assert "no 'ema' entry: averaging starts from its weights" in log


def test_test_before_training_uses_the_models_own_weights(toy_runner: Callable[..., Runner]) -> None:
    watch = Watch()
    runner = toy_runner(custom_hooks=[dict(EMA), watch])
    before = weights(runner)
    runner.val()
    assert equal(watch.validated[0], before)


def test_a_wrapper_of_mmengine_is_refused(toy_runner: Callable[..., Runner]) -> None:
    wrapper = {'type': 'mmengine.OptimWrapper', 'optimizer': {'type': 'mmengine.SGD', 'lr': 0.1}}
    with pytest.raises(ValueError, match="use lucid's OptimWrapper or AmpOptimWrapper"):
        toy_runner(custom_hooks=[dict(EMA)], optim_wrapper=wrapper).train()
