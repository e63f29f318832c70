from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.runner import Runner as BaseRunner
from torch.utils.data import DataLoader

from lucid.engine.runner import Runner


class Nothing(BaseModel):
    def forward(self, inputs: torch.Tensor, mode: str = 'tensor') -> None: ...


def test_the_console_is_brief_and_the_file_complete(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    runner = Runner(Nothing(), str(tmp_path), default_scope='lucid', experiment_name='brief')
    runner.logger.info('shown')
    shown = capsys.readouterr().out
    written = next(tmp_path.glob('*/*.log')).read_text()
    assert 'shown' in shown
    assert 'shown' in written
    for text in ('System environment', 'Hooks will be executed'):
        assert text in written
        assert text not in shown


class Two(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor, mode: str = 'tensor') -> None: ...


OPTIMIZER = {'type': 'MuSGD', 'lr': 0.04, 'weight_decay': 0.1}


@pytest.fixture
def scaled(tmp_path: Path) -> Callable[..., Runner]:
    """A runner with batches of 8, whose lr was scaled as ``lucid.apis`` does it."""

    def build(auto_scale_lr: dict[str, Any] | None, **wrapper: Any) -> Runner:
        runner = Runner(
            Two(),
            str(tmp_path),
            train_dataloader=DataLoader(range(32), batch_size=8),  # type: ignore[arg-type]
            train_cfg={'type': 'EpochTrainLoop', 'max_epochs': 4},
            optim_wrapper={'type': 'OptimWrapper', 'optimizer': OPTIMIZER, **wrapper},
            param_scheduler={'type': 'WarmupLinearLR', 'warmup_epochs': 1.0},
            auto_scale_lr=auto_scale_lr,
            default_scope='lucid',
            experiment_name='scaled',
        )
        _ = runner.train_loop
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        runner.scale_lr(runner.optim_wrapper, runner.auto_scale_lr)
        return runner

    return build


BASE = {'enable': True, 'base_batch_size': 64}


@pytest.mark.parametrize(
    ('auto', 'counts', 'rate'),
    [
        (BASE, 1, 0.04 * 8 / 64),
        (BASE, 4, 0.04 * 32 / 64),  # mmengine alone would give 8 / 64
        ({**BASE, 'base_batch_size': 8}, 2, 0.08),
        ({**BASE, 'enable': False}, 4, 0.04),
        (None, 4, 0.04),
    ],
)
def test_the_rate_is_scaled_by_the_images_of_an_optimizer_step(
    scaled: Callable[..., Runner], auto: dict[str, Any] | None, counts: int, rate: float
) -> None:
    runner = scaled(auto, accumulative_counts=counts)
    (group,) = runner.optim_wrapper.param_groups
    assert group['lr'] == pytest.approx(rate)
    assert group['weight_decay'] == 0.1


def test_control_mmengines_own_does_not_know_micro_batches(scaled: Callable[..., Runner]) -> None:
    runner = scaled(None, accumulative_counts=4)
    BaseRunner.scale_lr(runner, runner.optim_wrapper, BASE)
    assert runner.optim_wrapper.param_groups[0]['lr'] == pytest.approx(0.04 * 8 / 64)


def test_all_parameter_groups_keep_their_proportion(scaled: Callable[..., Runner], tmp_path: Path) -> None:
    runner = scaled(BASE, accumulative_counts=4, paramwise_cfg={'custom_keys': {'other': {'lr_mult': 0.1}}})
    rates = {round(group['lr'], 6) for group in runner.optim_wrapper.param_groups}
    assert rates == {0.02, 0.002}
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert '32 images per optimizer step (8 per batch x 4 micro-batches x 1 process)' in log
    assert 'lr 0.04 -> 0.02, and the other 3 parameter groups alike' in log


def test_a_warm_up_is_scaled_with_the_rate(scaled: Callable[..., Runner]) -> None:
    runner = scaled(BASE, accumulative_counts=2)  # two steps per epoch: the warm-up's first has half of the rate
    (scheduler,) = runner.build_param_scheduler(runner.param_schedulers)
    scheduler.configure(2)
    assert runner.optim_wrapper.param_groups[0]['lr'] == pytest.approx(0.04 * 16 / 64 / 2)


def test_a_base_is_needed(scaled: Callable[..., Runner]) -> None:
    with pytest.raises(ValueError, match='auto_scale_lr has no base_batch_size; state'):
        scaled({'enable': True})
