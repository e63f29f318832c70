import pytest
import torch
from mmengine.optim import StepLR
from torch import nn

from lucid.engine.optimizers import SGD
from lucid.engine.resumed import (
    group_options,
    restore_group_options,
    restore_scheduler_options,
    scheduler_options,
)


def stepped(lr: float, momentum: float, gamma: float, steps: int = 0) -> tuple[SGD, StepLR]:
    param = nn.Parameter(torch.ones(2))
    optimizer = SGD([param], lr=lr, momentum=momentum)
    scheduler = StepLR(optimizer, step_size=1, gamma=gamma, by_epoch=False)
    for _ in range(steps):
        param.grad = torch.ones(2)
        optimizer.step()
        scheduler.step()
    return optimizer, scheduler


def test_options_stay_and_state_goes_on() -> None:
    before, schedule = stepped(1.0, 0.9, gamma=0.5, steps=2)
    assert before.param_groups[0]['lr'] == 0.25
    after, scheduler = stepped(0.1, 0.8, gamma=0.1)
    options, wanted = group_options(after), scheduler_options(scheduler)
    after.load_state_dict(before.state_dict())
    scheduler.load_state_dict(schedule.state_dict())
    # The control: loading alone takes everything from the state.
    assert (after.param_groups[0]['lr'], after.param_groups[0]['momentum'], scheduler.gamma) == (0.25, 0.9, 0.5)
    restore_group_options(after, options)
    restore_scheduler_options(scheduler, wanted)
    group = after.param_groups[0]
    assert (group['initial_lr'], group['momentum'], scheduler.gamma) == (0.1, 0.8, 0.1)
    assert group['lr'] == pytest.approx(0.025)  # the schedule had come to a quarter
    assert (scheduler.base_values, scheduler.last_step) == ([0.1], 2)
    (old,), (new,) = before.state.values(), after.state.values()
    assert all(torch.equal(old[key], new[key]) for key in old)


def test_the_same_options_change_no_bit() -> None:
    before, _ = stepped(0.3, 0.9, gamma=0.7, steps=3)
    after, _ = stepped(0.3, 0.9, gamma=0.7)
    options = group_options(after)
    after.load_state_dict(before.state_dict())
    restore_group_options(after, options)
    assert after.param_groups[0]['lr'] == before.param_groups[0]['lr']


def test_a_rate_that_is_scheduled_no_longer_is_that_of_the_config() -> None:
    before, _ = stepped(1.0, 0.9, gamma=0.5, steps=2)
    after = SGD([nn.Parameter(torch.ones(2))], lr=0.2, momentum=0.9)
    options = group_options(after)
    after.load_state_dict(before.state_dict())
    restore_group_options(after, options)
    assert after.param_groups[0]['lr'] == 0.2
    assert 'initial_lr' not in after.param_groups[0]
