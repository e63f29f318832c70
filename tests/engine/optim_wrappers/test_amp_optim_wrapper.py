from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid.engine.ema import ExponentialMovingAverage
from lucid.engine.optim_wrappers import AmpOptimWrapper, OptimWrapper
from lucid.engine.optimizers import SGD, MuSGD


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, 'deterministic', True)


def make_model(device: torch.device | str = 'cpu') -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 36, 4)]
    return nn.Sequential(*layers).to(device)


def make_batch(step: int, device: torch.device | str = 'cpu') -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(4, 3, 8, 8, generator=generator).to(device)


def forward(wrapper: OptimWrapper, model: nn.Module, batch: Tensor) -> Tensor:
    with wrapper.optim_context(model):
        return model(batch).float().square().mean()


def test_bfloat16_casts_the_forward_and_has_no_scale() -> None:
    wrapper, model = AmpOptimWrapper(SGD((model := make_model()).parameters())), model
    with wrapper.optim_context(model):
        assert model(make_batch(0)).dtype == torch.bfloat16
        assert not torch.is_autocast_cache_enabled()
    assert wrapper.loss_scaler is None
    assert 'loss_scaler' not in wrapper.state_dict()


def test_float16_from_a_scale_of_2_to_the_24_follows_torchs_scaler(device: torch.device) -> None:
    # More than twenty steps with skips and growth: scale, skipped steps and weights as torch's own scaler makes them
    # with an optimizer that is skipped on the host.
    model, theirs = make_model(device), make_model(device)
    wrapper = AmpOptimWrapper(
        SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01),
        dtype='float16',
        init_scale=2.0**24,
        growth_interval=4,
        clip_grad={'max_norm': 0.5},
    )
    assert wrapper.loss_scaler is not None
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24, growth_interval=4)
    optimizer = SGD(theirs.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    address, skipped = wrapper.loss_scaler._scale.data_ptr(), []  # type: ignore[union-attr]
    for step in range(24):
        batch = make_batch(step, device)
        wrapper.update_params(forward(wrapper, model, batch))

        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16, cache_enabled=False):
            loss = theirs(batch).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        found = scaler._found_inf_per_device(optimizer)
        skipped.append(bool(sum(value.item() for value in found.values())))
        if not skipped[-1]:
            optimizer.step()
        scaler.update()

        assert wrapper.loss_scaler.get_scale() == scaler.get_scale()
        for (name, a), b in zip(model.state_dict().items(), theirs.state_dict().values(), strict=True):
            assert torch.equal(a, b), (step, name)
    assert skipped[0]  # control: there are skipped steps,
    assert skipped.count(False) > 8  # others, and some after the scale grew again
    assert any(skipped[10:])
    assert wrapper.loss_scaler._scale.data_ptr() == address  # type: ignore[union-attr]
    assert wrapper.num_steps == 24


def test_a_nan_gradient_skips_the_step_and_halves_the_scale() -> None:
    model = make_model()
    wrapper = AmpOptimWrapper(MuSGD(model.parameters()), dtype='float16', init_scale=8.0)
    before = [param.detach().clone() for param in model.parameters()]
    wrapper.update_params(forward(wrapper, model, make_batch(0)) * float('nan'))
    assert wrapper.loss_scaler is not None
    assert wrapper.loss_scaler.get_scale() == 4.0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    wrapper.update_params(forward(wrapper, model, make_batch(0)))  # control
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_windows_accumulate_scaled_gradients_and_one_bad_batch_skips_its_window() -> None:
    model = make_model()
    wrapper = AmpOptimWrapper(SGD(model.parameters(), lr=0.1), dtype='float16', init_scale=64.0, accumulative_counts=2)
    wrapper.start_epoch(3)
    before = [param.detach().clone() for param in model.parameters()]
    wrapper.update_params(forward(wrapper, model, make_batch(0)) * float('inf'))
    wrapper.update_params(forward(wrapper, model, make_batch(1)))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    wrapper.update_params(forward(wrapper, model, make_batch(2)))
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize('precision', ['float32', 'bfloat16', 'float16'])
def test_a_whole_window_reads_nothing_on_the_host(precision: str, no_host_read: Callable[[], Any]) -> None:
    model = make_model()
    optimizer = MuSGD(model.parameters())
    options: dict[str, Any] = {'accumulative_counts': 2, 'clip_grad': {'max_norm': 10.0}}
    wrapper = OptimWrapper(optimizer, **options)
    if precision != 'float32':
        wrapper = AmpOptimWrapper(optimizer, dtype=precision, **options)
    wrapper.add_post_step(ExponentialMovingAverage(model))
    with no_host_read():
        wrapper.start_epoch(3)
        for step in range(3):
            wrapper.update_params(forward(wrapper, model, make_batch(step)))
        assert wrapper.num_steps == 2
        with pytest.raises(AssertionError, match='reads the device'):
            bool(wrapper.loss_factor > 0)  # control


def test_the_scaler_of_torch_alone_would_read_the_host(no_host_read: Callable[[], Any]) -> None:
    model = make_model()
    scaler, optimizer = torch.amp.GradScaler('cpu'), torch.optim.SGD(model.parameters())
    scaler.scale(model(make_batch(0)).mean()).backward()
    with no_host_read(), pytest.raises(AssertionError, match='reads the device'):
        scaler.step(optimizer)


def test_a_state_survives_a_file_of_plain_types_and_keeps_the_scales_address(tmp_path: Path) -> None:
    model = make_model()
    wrapper = AmpOptimWrapper(SGD(model.parameters()), dtype='float16', init_scale=2.0**24, growth_interval=7)
    for step in range(3):
        wrapper.update_params(forward(wrapper, model, make_batch(step)))
    torch.save(wrapper.state_dict(), tmp_path / 'state.pth')
    state = torch.load(tmp_path / 'state.pth', weights_only=True)
    resumed = AmpOptimWrapper(SGD(model.parameters()), dtype='float16')
    assert resumed.loss_scaler is not None
    assert wrapper.loss_scaler is not None
    address = resumed.loss_scaler._scale.data_ptr()  # type: ignore[union-attr]
    resumed.load_state_dict(state)
    expected = {**wrapper.loss_scaler.state_dict(), 'growth_interval': 2000}  # an option, not state
    assert resumed.loss_scaler.state_dict() == expected
    assert resumed.loss_scaler._scale.data_ptr() == address  # type: ignore[union-attr]
    assert 'loss_scaler' in state  # not eaten
    OptimWrapper(SGD(model.parameters())).load_state_dict(state)  # another precision resumes too


def test_the_loss_times_the_scale_is_what_is_differentiated() -> None:
    loss = torch.tensor(3.0)
    params = list(make_model().parameters())
    assert AmpOptimWrapper(SGD(params)).amplify(loss) is loss
    assert AmpOptimWrapper(SGD(params), dtype='float16', init_scale=8.0).amplify(loss).item() == 24
    param = torch.ones(2, requires_grad=True)
    AmpOptimWrapper(SGD([param]), dtype='float16', init_scale=8.0).run_backward(param.sum())
    assert param.grad.tolist() == [8, 8]  # type: ignore[union-attr]


def test_precision_and_the_way_the_scale_moves_are_baked_in_and_the_scale_is_not() -> None:
    params = list(make_model().parameters())
    optimizer = SGD(params)
    half, brain = (AmpOptimWrapper(optimizer, dtype=dtype) for dtype in ('float16', 'bfloat16'))
    assert half.baked() != brain.baked()
    before = half.baked()
    half.loss_scaler._scale.fill_(2.0)  # type: ignore[union-attr]
    assert half.baked() == before
    half.loss_scaler.set_growth_interval(7)  # type: ignore[union-attr]
    assert half.baked() != before
    assert isinstance(hash(before), int)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (
            {'dtype': 'float32'},
            r"dtype='float32'; choose one of \['bfloat16', 'float16'\], for float32 use OptimWrapper",
        ),
        ({'growth_factor': 1.0}, 'growth_factor=1.0'),
        ({'init_scale': 0}, 'init_scale=0'),
    ],
)
def test_an_option_that_no_run_can_mean_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AmpOptimWrapper(SGD(make_model().parameters()), **options)


@pytest.mark.cuda
@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_a_window_on_cuda_never_waits_for_the_device(dtype: str) -> None:
    model = make_model('cuda')
    wrapper = AmpOptimWrapper(MuSGD(model.parameters()), dtype=dtype, clip_grad={'max_norm': 10.0})
    wrapper.add_post_step(ExponentialMovingAverage(model))
    batch = make_batch(0, 'cuda')
    wrapper.update_params(forward(wrapper, model, batch))
    torch.cuda.set_sync_debug_mode('error')
    try:
        for _ in range(2):
            wrapper.update_params(forward(wrapper, model, batch))
        with pytest.raises(RuntimeError, match='synchroniz'):
            wrapper.loss_factor.item()  # control
    finally:
        torch.cuda.set_sync_debug_mode('default')


@pytest.mark.cuda
@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_a_recorded_step_replays_what_eager_computes(dtype: str) -> None:
    runs = []
    for capture in (False, True):
        model = make_model('cuda')
        wrapper = AmpOptimWrapper(
            MuSGD(model.parameters()), dtype=dtype, init_scale=2.0**24, growth_interval=3, clip_grad={'max_norm': 1.0}
        )
        ema = ExponentialMovingAverage(model)
        wrapper.add_post_step(ema)
        graph = None
        gradients = [torch.zeros_like(param) for param in model.parameters()]
        for step in range(8):
            wrapper.optimizer.param_groups[0]['lr'] = 0.01 * (step + 1)
            wrapper.run_backward(wrapper.scale_loss(forward(wrapper, model, make_batch(step, 'cuda'))))
            for buffer, param in zip(gradients, model.parameters(), strict=True):
                param.grad = buffer.copy_(param.grad)  # type: ignore[arg-type]
            wrapper.refresh()
            if capture and step == 2:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    wrapper.apply(set_to_none=False)
            if graph is None:
                wrapper.apply(set_to_none=False)
            else:
                graph.replay()
            for param in model.parameters():
                param.grad = None
        tensors = [*model.state_dict().values(), *ema.shadow.values(), wrapper.grad_norm]
        if wrapper.loss_scaler is not None:
            tensors.append(wrapper.loss_scaler._scale)
        runs.append([tensor.clone() for tensor in tensors if tensor is not None])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
