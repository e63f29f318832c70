from collections.abc import Callable
from typing import Any

import pytest
from mmengine.model import BaseModel
from mmengine.runner import Runner


def test_the_weight_falls_from_first_to_last_over_the_epochs_in_place(toy_runner: Callable[..., Runner]) -> None:
    runner = toy_runner(custom_hooks=[{'type': 'BranchWeightHook'}])
    buffer = runner.model.criterion.branch_weight
    runner.train()
    assert runner.model.weights_seen == pytest.approx([0.8] * 4 + [0.45] * 4 + [0.1] * 4)
    assert runner.model.criterion.branch_weight is buffer


def test_one_epoch_has_the_first_weight_and_other_ends_can_be_set(toy_runner: Callable[..., Runner]) -> None:
    runner = toy_runner(
        custom_hooks=[{'type': 'BranchWeightHook', 'first': 0.6, 'last': 0.2}],
        train_cfg={'type': 'EpochBasedTrainLoop', 'max_epochs': 1},
    )
    runner.train()
    assert runner.model.weights_seen == pytest.approx([0.6] * 4)


def test_a_resumed_run_has_the_weight_of_its_epoch(toy_runner: Callable[..., Runner]) -> None:
    runner = toy_runner(custom_hooks=[{'type': 'BranchWeightHook'}])
    runner.train_loop._epoch, runner.train_loop._iter = 2, 8
    runner.train()
    assert runner.model.weights_seen == pytest.approx([0.1] * 4)


def test_a_loop_without_epochs_leaves_the_losss_own_weight(toy_runner: Callable[..., Runner]) -> None:
    runner = toy_runner(
        custom_hooks=[{'type': 'BranchWeightHook'}],
        train_cfg={'type': 'IterBasedTrainLoop', 'max_iters': 3, 'val_interval': 100},
    )
    runner.train()
    assert runner.model.weights_seen == [0.5] * 3


def test_a_model_without_such_a_loss_is_refused(toy_runner: Callable[..., Runner]) -> None:
    class Plain(BaseModel):
        def forward(self, *args: Any, **kwargs: Any) -> None:
            return None

    runner = toy_runner(custom_hooks=[{'type': 'BranchWeightHook'}])
    runner.model = Plain()
    with pytest.raises(ValueError, match='take the hook out of custom_hooks'):
        runner.call_hook('before_train')


@pytest.mark.parametrize('options', [{'first': 1.5}, {'last': -0.1}])
def test_a_weight_out_of_range_is_refused(toy_runner: Callable[..., Runner], options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match='give weights from 0 to 1'):
        toy_runner(custom_hooks=[{'type': 'BranchWeightHook', **options}])
