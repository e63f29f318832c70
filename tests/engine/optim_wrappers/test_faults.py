"""Windows that fail: what lasts of them under each policy and precision, and that finite ones are computed as ever."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid.engine.ema import ExponentialMovingAverage
from lucid.engine.optim_wrappers import AmpOptimWrapper, OptimWrapper
from lucid.engine.optimizers import SGD, AdamW, DeviceOptimizer, MuSGD

PRECISIONS = ['float32', 'bfloat16', 'float16']
OPTIMIZERS: dict[str, Callable[..., DeviceOptimizer]] = {
    'SGD': lambda params: SGD(params, lr=0.01, momentum=0.9, weight_decay=1e-4),
    'MuSGD': MuSGD,
    'AdamW': AdamW,
}
CLIPS = [None, {'max_norm': 0.5}, {'type': 'value', 'clip_value': 0.01}]


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, 'deterministic', True)


def in_float32(value: Tensor) -> Tensor:
    return value.float().square().mean()


class Training:
    """A model with BatchNorm, its optimizer and its average."""

    def __init__(
        self, precision: str, *, optimizer: str = 'SGD', device: torch.device | str = 'cpu', **options: Any
    ) -> None:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 16, 4)]
        self.model = nn.Sequential(*layers).to(device)
        self.device = device
        built = OPTIMIZERS[optimizer](self.model.parameters())
        scale = {'init_scale': options.pop('init_scale', 2.0**10)} if precision == 'float16' else {}
        if precision == 'float32':
            self.wrapper = OptimWrapper(built, **options)
        else:
            self.wrapper = AmpOptimWrapper(built, dtype=precision, **scale, **options)
        if self.wrapper.faults is not None:
            self.wrapper.faults.watch(self.model)
        self.ema = ExponentialMovingAverage(self.model, decay=0.9, warmup=2.0)
        self.wrapper.add_post_step(self.ema)

    def loss(self, step: int, fault: str | None = None) -> Tensor:
        """The loss of a batch, which is not finite in an image, in itself only, or in gradients only."""
        batch = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(step)).to(self.device)
        if fault == 'image':
            batch[1, 0, 2, 2] = math.nan
        with self.wrapper.optim_context(self.model):
            loss = in_float32(self.model(batch))
        if fault == 'loss':
            loss = loss + math.inf
        if fault == 'gradient':
            weight = self.model[4].weight
            loss = loss + (weight - weight.detach()).square().sum().sqrt()  # adds 0; the root's slope there is inf
        return loss

    def micro(self, step: int, fault: str | None = None) -> None:
        self.wrapper.update_params(self.loss(step, fault))

    def state(self) -> dict[str, Tensor]:
        """Everything that a window writes and that may last."""
        values = dict(self.model.state_dict())
        values |= {f'ema.{name}': value for name, value in self.ema.shadow.items()}
        for i, state in enumerate(self.wrapper.optimizer.state.values()):
            values |= {f'optimizer.{i}.{key}': value for key, value in state.items()}
        return {name: value.clone() for name, value in values.items()}


def differences(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    """Names of what differs in a bit."""
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(bits(a[name]), bits(b[name]))]


def bits(value: Tensor) -> Tensor:
    return value.contiguous().flatten().view(torch.uint8)


def finite(values: dict[str, Tensor]) -> bool:
    return all(bool(value.isfinite().all()) for value in values.values())


def run_backward_as_before(wrapper: OptimWrapper, loss: Tensor) -> None:
    """``run_backward`` as it was before windows were judged."""
    scaler = getattr(wrapper, 'loss_scaler', None)
    (loss if scaler is None else scaler.scale(loss)).backward()


@torch.no_grad()
def update_as_before(optimizer: DeviceOptimizer, found_inf: Tensor | None) -> None:
    """``update`` as it was before windows were judged: with a loss scale, all that it wrote was undone."""
    params = [param for group in optimizer.param_groups for param in group['params']]
    touched = [*params, *(tensor for param in params for tensor in optimizer.state[param].values())]
    kept = [tensor.detach().clone() for tensor in touched]
    for group, hyper in zip(optimizer.param_groups, optimizer._hyper, strict=True):
        optimizer.update_group(group, hyper, group['params'])
    if found_inf is not None and found_inf != 0:
        torch._foreach_copy_(touched, kept)


def apply_as_before(wrapper: OptimWrapper) -> None:
    """``apply`` as it was before windows were judged."""
    found_inf = wrapper.unscale()
    if wrapper.clip_grad_kwargs:
        params = [p for group in wrapper.optimizer.param_groups for p in group['params'] if p.grad is not None]
        norm = wrapper.clip_func(params, **wrapper.clip_grad_kwargs)
        if wrapper.grad_norm is not None:
            wrapper.grad_norm.copy_(norm)
    update_as_before(wrapper.optimizer, found_inf)
    wrapper.update_scale()
    for post_step in wrapper._post_steps:
        post_step.update()
    wrapper.zero_grad()


@pytest.mark.parametrize('clip', CLIPS)
@pytest.mark.parametrize('accumulate', [1, 2])
@pytest.mark.parametrize('optimizer', ['SGD', 'MuSGD'])
@pytest.mark.parametrize('precision', PRECISIONS)
def test_finite_windows_and_the_skips_of_float16_are_computed_as_before(
    precision: str, optimizer: str, accumulate: int, clip: dict[str, Any] | None
) -> None:
    options = {'optimizer': optimizer, 'accumulative_counts': accumulate, 'clip_grad': clip}
    scale = {'init_scale': 2.0**24} if precision == 'float16' else {}  # so that the first steps are skipped
    new, old = (Training(precision, on_nonfinite=word, **options, **scale) for word in ('raise', 'ignore'))
    for step in range(5 * accumulate):
        new.micro(step)
        run_backward_as_before(old.wrapper, old.wrapper.scale_loss(old.loss(step)))
        old.wrapper.advance()
        if old.wrapper.window_ended:
            old.wrapper.refresh()
            apply_as_before(old.wrapper)
        assert differences(new.state(), old.state()) == []
    assert new.wrapper.faults.count == 0
    if precision == 'float16':
        assert new.wrapper.loss_scaler.state_dict() == old.wrapper.loss_scaler.state_dict()
        assert new.wrapper.loss_scaler.get_scale() < 2.0**24  # control: there were skips


@pytest.mark.parametrize('fault', ['image', 'loss', 'gradient'])
@pytest.mark.parametrize('policy', ['raise', 'skip'])
@pytest.mark.parametrize('precision', ['float32', 'bfloat16'])
def test_nothing_of_a_window_that_fails_lasts(precision: str, policy: str, fault: str) -> None:
    training = Training(precision, on_nonfinite=policy, clip_grad={'max_norm': 1.0})
    verdicts = []
    for step in range(4):
        before = training.state()
        training.micro(step, fault if step in (1, 2) else None)
        after = training.state()
        verdicts.append(bool(training.wrapper.faults.failed))
        assert (differences(before, after) == []) == (step in (1, 2))
    assert verdicts == [False, True, True, False]
    assert training.wrapper.faults.count == 2
    assert training.wrapper.num_steps == 4


@pytest.mark.parametrize('fault', ['image', 'loss'])
@pytest.mark.parametrize('policy', ['raise', 'skip'])
def test_a_loss_that_is_not_finite_fails_in_float16_too_and_the_scale_moves(policy: str, fault: str) -> None:
    training = Training('float16', on_nonfinite=policy)
    training.micro(0)
    before = training.state()
    training.micro(1, fault)
    assert differences(before, training.state()) == []
    assert training.wrapper.faults.count == 1
    assert training.wrapper.loss_scaler.get_scale() == {'image': 2.0**9, 'loss': 2.0**10}[fault]
    training.micro(2)
    assert training.wrapper.faults.count == 1
    assert differences(before, training.state()) != []
    assert finite(training.state())


def test_gradients_of_float16_that_overflow_are_the_scales_business_until_it_has_fallen_below_1() -> None:
    training = Training('float16', init_scale=4.0)
    weights = [value.clone() for value in training.model.parameters()]
    counts, scales = [], []
    for step in range(6):
        training.micro(step, 'gradient')
        counts.append(int(training.wrapper.faults.count))
        scales.append(training.wrapper.loss_scaler.get_scale())
    assert scales == [2, 1, 0.5, 0.25, 0.125, 0.0625]
    assert counts == [0, 0, 0, 1, 2, 3]  # the scale of step 3 was 0.5
    assert all(torch.equal(a, b) for a, b in zip(weights, training.model.parameters(), strict=True))


@pytest.mark.parametrize('optimizer', sorted(OPTIMIZERS))
@pytest.mark.parametrize('clip', CLIPS)
@pytest.mark.parametrize('position', [0, 1, 2])
def test_one_bad_micro_batch_fails_its_window_and_no_other(
    position: int, clip: dict[str, Any] | None, optimizer: str
) -> None:
    options = {'optimizer': optimizer, 'accumulative_counts': 3, 'clip_grad': clip}
    faulty, without = Training('float32', **options), Training('float32', **options)
    for step in (0, 1, 2, 6, 7, 8):
        without.micro(step)
    for step in range(9):
        faulty.micro(step, 'image' if step == 3 + position else None)
    assert faulty.wrapper.faults.count == 1
    # The average counts windows, this one too, so that its decay is another.
    assert {name.split('.')[0] for name in differences(faulty.state(), without.state())} == {'ema'}


@pytest.mark.parametrize('clip', CLIPS)
def test_an_infinite_gradient_is_seen_before_clipping_makes_it_finite(clip: dict[str, Any] | None) -> None:
    training = Training('float32', clip_grad=clip)
    training.model[4].weight.register_hook(lambda grad: grad.fill_(math.inf))
    before = training.state()
    training.micro(0)
    assert training.wrapper.faults.failed
    assert differences(before, training.state()) == []


@pytest.mark.parametrize('precision', PRECISIONS)
def test_ignore_takes_values_as_they_come(precision: str) -> None:
    """The control of the tests above: without the undo, the NaN lasts."""
    training = Training(precision, on_nonfinite='ignore')
    training.micro(0, 'image')
    state = training.state()
    assert training.wrapper.faults is None
    assert state['1.running_mean'].isnan().any()
    assert state['ema.1.running_mean'].isnan().any()
    if precision != 'float16':  # whose scaler has skipped the step
        assert state['0.weight'].isnan().any()
        assert state['optimizer.0.momentum_buffer'].isnan().any()
        assert state['ema.0.weight'].isnan().any()


@pytest.mark.parametrize('guard', ['buffers', 'average', 'loss', 'gradients'])
def test_each_part_of_the_undo_is_needed(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training('float32')
    faults: Any = training.wrapper.faults
    fault = 'image'
    if guard == 'buffers':
        monkeypatch.setattr(faults, 'restore', lambda: None)
    elif guard == 'average':
        update = training.ema.update
        monkeypatch.setattr(training.ema, 'update', lambda failed: update())
    elif guard == 'loss':
        fault = 'loss'
        monkeypatch.setattr(faults, 'note', lambda loss: None)
    else:
        fault = 'gradient'
        monkeypatch.setattr(training.wrapper, 'fault', lambda found_inf, size: None)
    training.micro(0)
    before = training.state()
    training.micro(1, fault)
    assert differences(before, training.state()) != []


def test_a_new_epoch_takes_the_buffers_as_they_are_and_forgets_the_window() -> None:
    training = Training('float32', accumulative_counts=2)
    training.wrapper.start_epoch(4)
    training.micro(0, 'loss')
    training.model[1].running_mean.fill_(3.0)  # as loading a checkpoint does
    training.wrapper.start_epoch(4)
    before = training.state()
    training.micro(1)
    training.micro(2)
    assert not training.wrapper.faults.failed
    training.wrapper.start_epoch(4)
    training.model[1].running_mean.copy_(before['1.running_mean'])
    training.wrapper.start_epoch(4)
    training.micro(1)
    training.micro(2, 'image')
    assert training.model[1].running_mean.unique().tolist() == [3.0]


def test_the_runner_names_the_model_and_buffers_that_were_replaced_are_found_again() -> None:
    training = Training('float32')
    wrapper = OptimWrapper(training.wrapper.optimizer)
    assert wrapper.faults.watched == ()
    wrapper.initialize_count_status(training.model, 0, 10)
    buffers = dict(training.model.named_buffers())
    assert wrapper.faults.watched == tuple(map(id, buffers.values()))
    baked = wrapper.baked()
    training.model[1].running_var = torch.full((8,), 5.0)
    wrapper.start_epoch(2)
    assert wrapper.baked() != baked
    with wrapper.optim_context(training.model):
        wrapper.update_params(training.loss(0, 'image'))
    assert training.model[1].running_var.unique().tolist() == [5.0]


def test_frozen_buffers_and_those_that_no_checkpoint_holds_are_left_to_their_owners() -> None:
    training = Training('float32')
    training.model.register_buffer('mine', torch.zeros(2), persistent=False)
    training.model.frozen_state = frozenset({'1.running_mean'})  # type: ignore[assignment]
    training.wrapper.start_epoch(1)
    others = {id(training.model.mine), id(training.model[1].running_mean)}
    assert len(training.wrapper.faults.watched) == 2
    assert not others & set(training.wrapper.faults.watched)


def test_a_window_without_a_gradient_is_judged_by_its_loss() -> None:
    wrapper = OptimWrapper(SGD([torch.ones(2, requires_grad=True)]), clip_grad={'max_norm': 1.0})
    for value, failed in ((1.0, False), (math.nan, True), (1.0, False)):
        wrapper.amplify(torch.tensor(value))
        wrapper.step()
        assert bool(wrapper.faults.failed) == failed


@pytest.mark.parametrize('precision', PRECISIONS)
def test_a_failed_window_reads_nothing_on_the_host_and_addresses_stay(
    precision: str, no_host_read: Callable[[], Any]
) -> None:
    training = Training(precision, accumulative_counts=2)
    faults = training.wrapper.faults

    def addresses() -> list[int]:
        return [tensor.data_ptr() for tensor in (faults.pending, faults.failed, faults.count, *faults._kept)]

    before = addresses()
    with no_host_read():
        training.micro(0)
        training.micro(1, 'image')
        training.wrapper.start_epoch(2)
    assert addresses() == before


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="on_nonfinite='warn'; choose one of raise, skip, ignore"):
        Training('float32', on_nonfinite='warn')
    with pytest.raises(ValueError, match="on_nonfinite='warn'; choose one of raise, skip, ignore"):
        Training('bfloat16', on_nonfinite='warn')


def test_the_policy_is_baked_in() -> None:
    seen = [Training('float32', on_nonfinite=policy).wrapper.baked()[3] for policy in ('raise', 'skip', 'ignore')]
    assert seen == ['raise', 'skip', 'ignore']


@pytest.mark.cuda
@pytest.mark.parametrize('precision', PRECISIONS)
def test_a_recorded_step_undoes_what_eager_undoes(precision: str) -> None:
    runs = []
    for capture in (False, True):
        training = Training(precision, optimizer='MuSGD', device='cuda', clip_grad={'max_norm': 1.0})
        sums = [torch.zeros_like(param) for param in training.model.parameters()]
        graph = None
        for step in range(8):
            training.wrapper.run_backward(
                training.wrapper.scale_loss(training.loss(step, 'image' if step == 5 else None))
            )
            for buffer, param in zip(sums, training.model.parameters(), strict=True):
                param.grad = buffer.copy_(param.grad)
            training.wrapper.refresh()
            before = training.state()
            if capture and step == 2:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    training.wrapper.apply(set_to_none=False)
            if graph is None:
                training.wrapper.apply(set_to_none=False)
            else:
                graph.replay()
            unmoved = {name for name in before if 'running' not in name and 'num_batches' not in name}
            moved = unmoved & set(differences(before, training.state()))
            assert (not moved) == (step == 5)
            for param in training.model.parameters():
                param.grad = None
        assert training.wrapper.faults.count == 1
        assert finite(training.state())
        runs.append(training.state())
    assert differences(*runs) == []
