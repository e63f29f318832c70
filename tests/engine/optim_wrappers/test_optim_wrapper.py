from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.optim import OptimWrapper as PlainOptimWrapper
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope
from torch import Tensor, nn

from lucid.engine.optim_wrappers import OptimWrapper
from lucid.engine.optimizers import SGD, AdamW, MuSGD


class Recorder(SGD):
    """Keeps the gradients of each update, and moves nothing."""

    def update(self, found_inf: Tensor | None = None) -> None:
        self.seen = [*getattr(self, 'seen', []), [p.grad.clone() for g in self.param_groups for p in g['params']]]


class Steps:
    """A post-step that counts."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def refresh(self) -> None:
        self.calls.append('refresh')

    def update(self, failed: Tensor | None = None) -> None:
        self.calls.append('update')


def make(value: float = 1.0) -> Tensor:
    return torch.full((3,), value, requires_grad=True)


def batch_loss(param: Tensor, index: int) -> Tensor:
    return (param * (index + 1)).sum()  # its gradient is index + 1


def test_five_batches_in_windows_of_two_average_over_two_two_and_one() -> None:
    param = make()
    optimizer = Recorder([param], lr=1.0)
    wrapper = OptimWrapper(optimizer, accumulative_counts=2)
    address = wrapper.loss_factor.data_ptr()
    factors, ended = [], []
    for _ in range(2):
        wrapper.start_epoch(5)
        for index in range(5):
            factors.append(wrapper.loss_factor.item())
            wrapper.update_params(batch_loss(param, index))
            ended.append(wrapper.window_ended)
    assert factors == [2, 2, 2, 2, 1] * 2
    assert ended == [False, True, False, True, True] * 2
    assert [grads[0][0].item() for grads in optimizer.seen] == [1.5, 3.5, 5.0] * 2  # means of 1, 2 | 3, 4 | 5
    assert wrapper.num_steps == 6
    assert wrapper.loss_factor.data_ptr() == address
    assert param.grad is None


def test_without_start_epoch_windows_run_over_epoch_ends_as_in_mmengine() -> None:
    param, theirs = make(), make()
    optimizer = Recorder([param], lr=1.0)
    wrapper = OptimWrapper(optimizer, accumulative_counts=2)
    plain = PlainOptimWrapper(torch.optim.SGD([theirs], lr=1.0), accumulative_counts=2)
    seen: list[Tensor] = []
    plain.optimizer.register_step_pre_hook(lambda *_: seen.append(theirs.grad.clone()))
    for one in (wrapper, plain):
        one.initialize_count_status(nn.Module(), 0, 5)
    for index in range(5):
        wrapper.update_params(batch_loss(param, index))
        plain.update_params(batch_loss(theirs, index))
    assert [grads[0][0].item() for grads in optimizer.seen] == [grad[0].item() for grad in seen] == [1.5, 3.5, 5.0]


def test_an_epoch_resumed_at_a_window_end_continues_its_windows() -> None:
    param = make()
    optimizer = Recorder([param], lr=1.0)
    wrapper = OptimWrapper(optimizer, accumulative_counts=2)
    wrapper.start_epoch(5, position=4)
    assert wrapper.loss_factor.item() == 1
    wrapper.update_params(batch_loss(param, 4))
    assert wrapper.window_ended
    assert optimizer.seen[0][0][0].item() == 5.0
    wrapper.start_epoch(5, position=5)  # the epoch was done


def test_a_position_inside_a_window_or_outside_the_epoch_is_refused() -> None:
    wrapper = OptimWrapper(SGD([make()]), accumulative_counts=2)
    with pytest.raises(
        ValueError, match='3 micro-batches end inside a window of 2; resume from a checkpoint of a window'
    ):
        wrapper.start_epoch(5, position=3)
    with pytest.raises(ValueError, match='6 of 5 micro-batches'):
        wrapper.start_epoch(5, position=6)


def test_more_batches_than_announced_are_refused() -> None:
    wrapper = OptimWrapper(SGD([param := make()]))
    wrapper.start_epoch(1)
    wrapper.update_params(batch_loss(param, 0))
    with pytest.raises(RuntimeError, match='call start_epoch before each epoch'):
        wrapper.update_params(batch_loss(param, 0))


def test_gradients_of_an_interrupted_window_are_dropped() -> None:
    param = make()
    optimizer = Recorder([param], lr=1.0)
    wrapper = OptimWrapper(optimizer, accumulative_counts=2)
    wrapper.start_epoch(4)
    wrapper.update_params(batch_loss(param, 8))
    wrapper.start_epoch(4)
    for index in range(2):
        wrapper.update_params(batch_loss(param, index))
    assert optimizer.seen[0][0][0].item() == 1.5


def test_a_window_of_one_divides_by_one_and_changes_no_bit() -> None:
    wrapper = OptimWrapper(SGD([make()]))
    loss = torch.tensor(1 / 3)
    assert torch.equal(wrapper.scale_loss(loss), loss)
    assert wrapper.scale_loss(torch.tensor(1 / 3, dtype=torch.float64)).dtype == torch.float64


def test_a_distributed_model_synchronises_at_window_ends_only() -> None:
    from contextlib import contextmanager

    class Distributed(nn.Module):
        quiet = 0

        @contextmanager
        def no_sync(self) -> Any:
            self.quiet += 1
            yield

    wrapper, model = OptimWrapper(SGD([param := make()]), accumulative_counts=2), Distributed()
    wrapper.start_epoch(3)
    quiet = []
    for index in range(3):
        before = model.quiet
        with wrapper.optim_context(model):
            loss = batch_loss(param, index)
        quiet.append(model.quiet - before)
        wrapper.update_params(loss)
    assert quiet == [1, 0, 0]


def test_clipping_is_by_the_norm_of_all_gradients_and_the_norm_stays_on_the_device() -> None:
    param, other = make(), make()
    optimizer = Recorder([param, other], lr=1.0)
    wrapper = OptimWrapper(optimizer, clip_grad={'max_norm': 5.0})
    assert wrapper.grad_norm is not None
    address = wrapper.grad_norm.data_ptr()
    wrapper.update_params((param * 8).sum() + (other * 6).sum())
    norm = (3 * (64 + 36)) ** 0.5
    assert wrapper.grad_norm.item() == pytest.approx(norm)
    assert optimizer.seen[0][0][0].item() == pytest.approx(8 * 5 / norm)
    wrapper.update_params(param.sum() * 0.5 + other.sum() * 0.0)  # below the limit: as it is
    assert optimizer.seen[1][0][0].item() == pytest.approx(0.5)
    assert wrapper.grad_norm.data_ptr() == address


def test_clipping_by_value_has_no_norm() -> None:
    param = make()
    optimizer = Recorder([param], lr=1.0)
    config = {'type': 'value', 'clip_value': 2.0}
    wrapper = OptimWrapper(optimizer, clip_grad=config)
    wrapper.update_params((param * 8).sum())
    assert optimizer.seen[0][0][0].item() == 2.0
    assert wrapper.grad_norm is None
    assert config == {'type': 'value', 'clip_value': 2.0}  # the config is not eaten


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'accumulative_counts': 0}, 'accumulative_counts=0; give a whole number from 1'),
        ({'clip_grad': {'max_nrom': 1.0}}, r"unknown \['max_nrom'\]; norm takes \['max_norm', 'norm_type'\]"),
        ({'clip_grad': {'max_norm': 1.0, 'error_if_nonfinite': True}}, 'would wait for the device in each step'),
        ({'clip_grad': {'max_norm': 0.0}}, 'max_norm=0.0; give a positive number'),
        ({'clip_grad': {'type': 'size'}}, "type='size'; choose 'norm' or 'value'"),
    ],
)
def test_an_option_that_no_run_can_mean_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimWrapper(SGD([make()]), **options)


def test_an_optimizer_of_torch_is_refused_with_the_name_to_use() -> None:
    with pytest.raises(
        ValueError, match=r"torch\.optim\.\S*SGD reads .* optimizer=dict\(type='SGD'\) with default_scope"
    ):
        OptimWrapper(torch.optim.SGD([make()]))
    with pytest.raises(ValueError, match=r"Adam reads .*type='AdamW'"):
        OptimWrapper(torch.optim.Adam([make()]))


def test_a_config_in_the_scope_of_lucid_builds_lucids_classes_and_one_outside_is_refused() -> None:
    model = nn.Linear(2, 2)
    config = {'type': 'OptimWrapper', 'optimizer': {'type': 'SGD', 'lr': 0.1}, 'clip_grad': {'max_norm': 10.0}}
    assert type(build_optim_wrapper(model, config)) is PlainOptimWrapper
    DefaultScope.get_instance('test', scope_name='lucid')
    wrapper = build_optim_wrapper(model, config)
    assert type(wrapper) is OptimWrapper
    assert type(wrapper.optimizer) is SGD
    with pytest.raises(ValueError, match="use lucid's optimizer="):
        build_optim_wrapper(model, {**config, 'optimizer': {'type': 'RMSprop', 'lr': 0.1}})


def test_paramwise_options_of_mmengine_give_groups_with_a_base_rate() -> None:
    DefaultScope.get_instance('test', scope_name='lucid')
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    config = {'optimizer': {'type': 'SGD', 'lr': 0.1, 'weight_decay': 0.5}, 'paramwise_cfg': {'bias_lr_mult': 2.0}}
    wrapper = build_optim_wrapper(model, config)
    assert wrapper.get_lr() == {'base_lr': [0.1], 'lr': [0.1, 0.2, 0.1, 0.1]}
    model(torch.randn(4, 2)).sum().backward()
    wrapper.step()
    state = wrapper.state_dict()
    wrapper.load_state_dict(state)
    assert 'base_param_settings' in state  # not eaten


def test_what_follows_a_step_is_refreshed_and_updated_once_per_step() -> None:
    wrapper, steps = OptimWrapper(SGD([param := make()]), accumulative_counts=2), Steps()
    wrapper.add_post_step(steps)
    wrapper.add_post_step(steps)
    for index in range(4):
        wrapper.update_params(batch_loss(param, index))
    assert steps.calls == ['refresh', 'update'] * 2


def test_step_arguments_are_refused_and_zero_arguments_passed_on() -> None:
    wrapper = OptimWrapper(SGD([param := make()]))
    wrapper.update_params(batch_loss(param, 0), zero_kwargs={'set_to_none': False})
    assert torch.equal(param.grad, torch.zeros(3))
    with pytest.raises(ValueError, match='take none; remove it'):
        wrapper.update_params(batch_loss(param, 0), step_kwargs={'closure': None})


def test_the_verbs_of_mmengine_make_a_step_by_hand() -> None:
    wrapper, param = OptimWrapper(SGD([param := make()], lr=1.0)), param
    wrapper.backward(wrapper.scale_loss(batch_loss(param, 0)))
    assert wrapper.should_update()
    wrapper.step()
    wrapper.zero_grad()
    assert torch.equal(param, torch.zeros(3))
    assert wrapper.inner_count == 1


def test_a_state_survives_a_file_of_plain_types(tmp_path: Path) -> None:
    wrapper = OptimWrapper(MuSGD([param := torch.ones(2, 3, requires_grad=True)]), clip_grad={'max_norm': 1.0})
    for index in range(3):
        wrapper.update_params(batch_loss(param, index))
    torch.save(wrapper.state_dict(), tmp_path / 'state.pth')
    resumed = OptimWrapper(MuSGD([param]))
    resumed.load_state_dict(torch.load(tmp_path / 'state.pth', weights_only=True))
    assert resumed.num_steps == 3
    momenta = [one.optimizer.state[param]['momentum_buffer'] for one in (wrapper, resumed)]
    assert torch.equal(*momenta)


def test_a_window_with_clipping_reads_nothing_on_the_host(no_host_read: Callable[[], Any]) -> None:
    param, weight = make(), torch.ones(2, 3, requires_grad=True)
    wrapper = OptimWrapper(MuSGD([param, weight]), accumulative_counts=2, clip_grad={'max_norm': 1.0})
    with no_host_read():
        for index in range(4):
            wrapper.update_params(batch_loss(param, index) + batch_loss(weight, index))
    plain = PlainOptimWrapper(torch.optim.SGD([param]), clip_grad={'max_norm': 1.0})
    with no_host_read(), pytest.raises(AssertionError, match='reads the device'):
        plain.update_params(batch_loss(param, 0))  # control: mmengine's reads the norm


def test_what_a_recording_bakes_in_tells_changes_of_options_groups_clipping_and_followers() -> None:
    param, matrix = make(), torch.ones(2, 3, requires_grad=True)
    wrapper = OptimWrapper(MuSGD([param]), clip_grad={'max_norm': 1.0})
    seen = [wrapper.baked()]
    for change in (
        lambda: wrapper.optimizer.param_groups[0].update(w_muon=0.0),
        lambda: wrapper.optimizer.param_groups[0].update(ns_steps=3),
        lambda: wrapper.optimizer.add_param_group({'params': [matrix]}),
        lambda: wrapper.clip_grad_kwargs.update(max_norm=2.0),
        lambda: wrapper.add_post_step(Steps()),
    ):
        assert wrapper.baked() == seen[-1]
        change()
        seen.append(wrapper.baked())
    assert len(set(seen)) == len(seen)  # hashable, and each change was seen


def test_what_refresh_fills_is_not_baked_in() -> None:
    for optimizer in (SGD([make()], momentum=0.9), MuSGD([make()]), AdamW([make()])):
        wrapper = OptimWrapper(optimizer, accumulative_counts=2)
        before = wrapper.baked()
        group = optimizer.param_groups[0]
        filled = {'lr', 'momentum', 'weight_decay', 'eps', 'w_muon', 'w_sgd'} & group.keys()
        group.update({key: group[key] / 2 for key in filled})
        if 'betas' in group:
            group['betas'] = (0.5, 0.6)
        wrapper.start_epoch(3, position=2)
        assert wrapper.baked() == before


def test_without_a_scale_nothing_is_amplified() -> None:
    loss = torch.ones(())
    assert OptimWrapper(SGD([make()])).amplify(loss) is loss
