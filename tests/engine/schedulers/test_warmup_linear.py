import json
import warnings
from typing import Any

import pytest
import torch
from mmengine.registry import PARAM_SCHEDULERS, DefaultScope

from lucid.engine.optim_wrappers import OptimWrapper
from lucid.engine.optimizers import SGD
from lucid.engine.schedulers import WarmupLinearLR


def make_wrapper(lr: float = 0.5) -> OptimWrapper:
    return OptimWrapper(SGD([torch.zeros(1, requires_grad=True)], lr=lr))


def rates(num_steps: int, **options: Any) -> list[float]:
    wrapper = make_wrapper(1.0)
    scheduler = WarmupLinearLR(wrapper, **options)
    seen = []
    for _ in range(num_steps):
        seen.append(wrapper.param_groups[0]['lr'])
        wrapper.step()
        scheduler.step()
    return seen


def test_ten_epochs_of_two_steps_with_a_warm_up_of_two_by_hand() -> None:
    seen = rates(20, end=10, steps_per_epoch=2, warmup_epochs=2.0, lrf=0.1)
    assert seen[:4] == [0.25, 0.5, 0.75, 1.0]
    assert seen[4:] == pytest.approx([1 - 0.9 * k / 16 for k in range(1, 17)])
    assert seen[19] == 0.1


def test_the_last_step_has_exactly_lrf_and_so_have_those_after_it() -> None:
    seen = rates(305, end=100, steps_per_epoch=3)
    assert seen[299:] == [0.01] * 6
    assert seen[298] > 0.01
    assert seen[8] == 1.0  # three epochs of three steps
    assert seen[7] < 1.0


@pytest.mark.parametrize(('end', 'steps'), [(2, 4), (3, 2), (1, 2), (1, 1)])
def test_a_warm_up_as_long_as_the_run_is_cut_below_it(end: int, steps: int) -> None:
    seen = rates(end * steps, end=end, steps_per_epoch=steps, warmup_epochs=5.0)
    assert seen[-1] == 0.01
    assert seen[:-1] == sorted(seen[:-1])
    assert end * steps == 1 or seen[-2] == 1.0


def test_it_is_off_without_warm_up_and_decay() -> None:
    assert rates(6, end=3, steps_per_epoch=2, warmup_epochs=0.0, lrf=1.0) == [1.0] * 6


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert rates(5, end=5, steps_per_epoch=1, warmup_epochs=0.0, lrf=0.0) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_each_group_has_its_own_initial_rate() -> None:
    params = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    optimizer = SGD([{'params': params[:1], 'lr': 1.0}, {'params': params[1:], 'lr': 0.1}])
    WarmupLinearLR(optimizer, end=4, steps_per_epoch=1, warmup_epochs=2.0)
    assert [group['lr'] for group in optimizer.param_groups] == [0.5, 0.05]


def test_configure_sets_the_rate_of_the_first_step_before_it() -> None:
    wrapper = make_wrapper(0.5)
    scheduler = WarmupLinearLR(wrapper, end=10)
    assert wrapper.param_groups[0]['lr'] == 0.5
    scheduler.configure(2)
    assert wrapper.param_groups[0]['lr'] == pytest.approx(0.5 / 6)
    assert scheduler.get_last_value() == [wrapper.param_groups[0]['lr']]


def test_stepping_without_the_number_of_steps_is_refused_with_the_remedy() -> None:
    wrapper = make_wrapper()
    scheduler = WarmupLinearLR(wrapper, end=10)
    wrapper.step()
    with pytest.raises(RuntimeError, match="'SchedulerHook'"):
        scheduler.step()


def test_resuming_needs_the_number_of_the_step_only_and_follows_a_new_length() -> None:
    wrapper = make_wrapper(1.0)
    scheduler = WarmupLinearLR(wrapper, end=10, steps_per_epoch=2)
    for _ in range(7):
        wrapper.step()
        scheduler.step()
    state = json.loads(json.dumps(scheduler.state_dict()))  # plain
    assert state == {'last_step': 7, '_global_step': 7, 'base_values': [1.0]}
    for end in (10, 20):
        other = make_wrapper(1.0)
        resumed = WarmupLinearLR(other, end=end)
        resumed.load_state_dict(state)
        resumed.configure(2)
        straight = rates(9, end=end, steps_per_epoch=2)
        assert other.param_groups[0]['lr'] == straight[7]
        other.step()
        resumed.step()
        assert other.param_groups[0]['lr'] == straight[8]


def test_a_config_builds_it_as_the_runner_does_and_stepping_after_a_step_warns_of_nothing() -> None:
    DefaultScope.get_instance('test', scope_name='lucid')
    wrapper = make_wrapper()
    config = {'type': 'WarmupLinearLR', 'warmup_epochs': 1, 'lrf': 0.5, 'end': 4}
    scheduler = PARAM_SCHEDULERS.build(config, default_args={'optimizer': wrapper, 'epoch_length': 2})
    assert isinstance(scheduler, WarmupLinearLR)
    scheduler.configure(2)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for _ in range(3):
            wrapper.param_groups[0]['params'][0].sum().backward()
            wrapper.step()
            scheduler.step()


@pytest.mark.parametrize('options', [{'lrf': -0.1}, {'end': 0}, {'steps_per_epoch': 0}])
def test_a_number_out_of_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match='use end > 0, lrf >= 0'):
        WarmupLinearLR(make_wrapper(), **{'end': 3, **options})
