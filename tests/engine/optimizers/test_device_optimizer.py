import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lucid.engine.optimizers import SGD, AdamW, DeviceOptimizer, MuSGD
from lucid.engine.optimizers.selection import as_bits, restored_if, undone_if

Build = Callable[[list[Tensor]], DeviceOptimizer]
BUILDS: dict[str, Build] = {
    'MuSGD': lambda params: MuSGD(params, lr=0.1),
    'SGD': lambda params: SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    'AdamW': lambda params: AdamW(params, lr=0.1),
}


@pytest.fixture(params=list(BUILDS))
def build(request: pytest.FixtureRequest) -> Build:
    return BUILDS[request.param]


def make(device: torch.device | str = 'cpu') -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3, 3, 3), (4,), (5, 4), (3, 1, 3, 3)]
    params = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    params[0] = params[0].to(memory_format=torch.channels_last)
    params[1][0] = -0.0  # a bit that arithmetic loses
    return [param.requires_grad_() for param in params]


def give_gradients(params: list[Tensor], fill: float | None = None) -> None:
    for index, param in enumerate(params):
        generator = torch.Generator().manual_seed(index)
        param.grad = torch.randn(param.shape, generator=generator).to(param.device)
        if fill is not None:
            param.grad.view(-1)[0] = fill


def bits(optimizer: DeviceOptimizer) -> list[Tensor]:
    """Bit patterns of parameters and state: torch.equal would take -0.0 for 0.0, and nan for unequal."""
    params = [param for group in optimizer.param_groups for param in group['params']]
    tensors = params + [tensor for param in params for tensor in optimizer.state[param].values()]
    sizes = {4: torch.int32, 8: torch.int64}
    return [tensor.detach().clone().view(sizes[tensor.element_size()]) for tensor in tensors]


def same(a: list[Tensor], b: list[Tensor]) -> list[bool]:
    return [torch.equal(x, y) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize('bad', [float('nan'), float('inf'), None])
def test_found_inf_keeps_every_bit_of_weights_and_state(build: Build, bad: float | None, device: torch.device) -> None:
    optimizer = build(params := make(device))
    for _ in range(2):
        give_gradients(params)
        optimizer.step()
    params[1].data[0] = -0.0
    before = bits(optimizer)
    give_gradients(params, bad)
    optimizer.refresh()
    optimizer.update(torch.ones((), device=device))
    assert all(same(before, bits(optimizer)))
    optimizer.update(torch.zeros((), device=device))  # control: without it everything moves
    assert not any(same(before, bits(optimizer)))


def test_an_update_that_found_nothing_equals_one_that_did_not_look(build: Build, device: torch.device) -> None:
    optimizers = [build(make(device)), build(make(device))]
    for optimizer, found in zip(optimizers, (None, torch.zeros((), device=device)), strict=True):
        for _ in range(3):
            give_gradients(optimizer.param_groups[0]['params'])
            optimizer.refresh()
            optimizer.update(found)
    assert all(same(bits(optimizers[0]), bits(optimizers[1])))


def test_gradients_stay_as_they_are(build: Build) -> None:
    optimizer = build(params := make())
    give_gradients(params)
    before = [param.grad.clone() for param in params if param.grad is not None]
    optimizer.step()
    assert all(torch.equal(a, p.grad) for a, p in zip(before, params, strict=True) if p.grad is not None)


def test_addresses_of_scalars_and_state_never_change(build: Build) -> None:
    optimizer = build(params := make())

    def addresses() -> list[int]:
        tensors = [t for hyper in optimizer._hyper for t in hyper.values()]
        tensors += [t for param in params for t in optimizer.state[param].values()]
        return [tensor.data_ptr() for tensor in tensors + params]

    before = addresses()
    saved = copy.deepcopy(optimizer.state_dict())
    for _ in range(2):
        give_gradients(params)
        optimizer.param_groups[0]['lr'] *= 0.5
        optimizer.step()
    optimizer.load_state_dict(saved)
    assert addresses() == before


def test_loading_a_state_from_before_the_first_step_starts_afresh(build: Build) -> None:
    optimizer, fresh = build(params := make()), build(make())
    empty = {'state': {}, 'param_groups': optimizer.state_dict()['param_groups']}
    give_gradients(params)
    optimizer.step()
    optimizer.load_state_dict(empty)
    states = [[t for p in o.param_groups[0]['params'] for t in o.state[p].values()] for o in (optimizer, fresh)]
    assert all(same(*states))


def test_a_state_that_was_loaded_is_written_with_the_same_options_and_loads_again(build: Build) -> None:
    first, second, third = (build(make()) for _ in range(3))
    groups = [sorted(group) for group in first.state_dict()['param_groups']]
    second.load_state_dict(first.state_dict())
    assert [sorted(group) for group in second.state_dict()['param_groups']] == groups
    assert sorted(second.defaults) == sorted(first.defaults)
    third.load_state_dict(second.state_dict())
    # What a run wrote that had been resumed before this was so.
    written = second.state_dict()
    written['param_groups'][0]['differentiable'] = False
    third.load_state_dict(written)


def test_a_rate_changed_between_steps_takes_effect_at_refresh_and_not_before(build: Build) -> None:
    optimizer = build(params := make())
    give_gradients(params)
    optimizer.step()
    before = [param.detach().clone() for param in params]
    optimizer.param_groups[0]['lr'] = 0.0
    optimizer.update()
    assert not any(same(before, [param.detach() for param in params]))  # control: still the old rate
    before = [param.detach().clone() for param in params]
    optimizer.refresh()
    optimizer.update()
    assert all(same(before, [param.detach() for param in params]))


def test_the_first_update_takes_the_same_operators_as_the_second(build: Build) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    optimizer, runs = build(params := make()), []
    give_gradients(params)
    for _ in range(2):
        with Names() as names:
            optimizer.refresh()
            optimizer.update()
        runs.append(names.names)
    assert runs[0] == runs[1]


def test_a_parameter_without_gradient_is_left_out(build: Build) -> None:
    optimizer = build(params := make())
    give_gradients(params)
    params[2].grad = None
    before = [param.detach().clone() for param in params]
    optimizer.step()
    assert same(before, [param.detach() for param in params]) == [False, False, True, False]
    optimizer.zero_grad()
    optimizer.step()  # nothing to do is no error


def test_a_closure_runs_with_gradients_and_its_value_is_returned(build: Build) -> None:
    optimizer = build(params := make())

    def closure() -> float:
        optimizer.zero_grad()
        loss = torch.stack([param.square().sum() for param in params]).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) > optimizer.step(closure)  # type: ignore[operator]


def test_torchs_scaler_drives_it_without_a_host_read(build: Build, no_host_read: Callable[[], Any]) -> None:
    optimizers = [build(make()), build(make())]
    scaler = torch.amp.GradScaler('cpu', init_scale=8.0)
    params, plain = (optimizer.param_groups[0]['params'] for optimizer in optimizers)
    give_gradients(plain)
    give_gradients(params)
    scaler.scale(torch.ones(()))
    for param in params:
        param.grad.mul_(8.0)
    with no_host_read():
        scaler.step(optimizers[0])
        scaler.update()
    optimizers[1].step()
    assert all(same(bits(optimizers[0]), bits(optimizers[1])))
    before = bits(optimizers[0])
    give_gradients(params, float('inf'))
    scaler.step(optimizers[0])
    assert all(same(before, bits(optimizers[0])))


def test_a_copy_has_its_own_scalars_and_computes_the_same(build: Build) -> None:
    optimizer = build(params := make())
    give_gradients(params)
    optimizer.step()
    twin = copy.deepcopy(optimizer)
    for one in (optimizer, twin):
        give_gradients(one.param_groups[0]['params'])
        one.step()
    assert all(same(bits(optimizer), bits(twin)))
    assert optimizer._hyper[0]['lr'].data_ptr() != twin._hyper[0]['lr'].data_ptr()


def test_groups_have_their_own_options() -> None:
    params = make()
    optimizer = SGD([{'params': params[:2]}, {'params': params[2:], 'lr': 0.0}], lr=1.0)
    give_gradients(params)
    before = [param.detach().clone() for param in params]
    optimizer.step()
    assert same(before, [param.detach() for param in params]) == [False, False, True, True]


def test_a_state_of_another_optimizer_or_model_is_refused() -> None:
    state = MuSGD(make()).state_dict()
    with pytest.raises(ValueError, match=r"'w_muon'.*SGD does not know: another optimizer wrote it; resume with that"):
        SGD(make()).load_state_dict(state)
    other = [torch.ones(1, requires_grad=True) for _ in range(4)]
    with pytest.raises(ValueError, match='of another model; load its weights only'):
        MuSGD(other).load_state_dict(state)


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(ValueError, match='a parameter group has no parameters; leave it out'):
        SGD([{'params': make()}, {'params': []}])


def test_undoing_keeps_nan_payloads_and_signed_zeros_of_every_width() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        tensor = torch.tensor([float('nan'), -0.0, 0.0, float('inf'), 1.5], dtype=dtype)
        integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        tensor.view(integer)[0] += 3  # another nan
        before = tensor.clone()
        for condition in (True, False):
            with undone_if(torch.tensor(condition), as_bits([tensor])):
                tensor.copy_(torch.tensor([2.0, 0.0, -0.0, float('nan'), 7.0]))
            assert torch.equal(tensor.view(integer), before.view(integer)) is condition


def test_restoring_takes_the_kept_bits_of_every_width_or_keeps_the_new_ones() -> None:
    for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64):
        old = torch.tensor([1.0, -0.0, 0.0, 5.0]).to(dtype)
        new = torch.tensor([float('nan'), 0.0, -0.0, float('inf')]).to(dtype)
        for condition, expected in ((True, old), (False, new)):
            tensors, kept = [new.clone(), new[:0].clone()], [old.clone(), old[:0].clone()]
            restored_if(torch.tensor(condition), as_bits(tensors), kept=as_bits(kept))
            for value in (tensors[0], kept[0]):
                assert torch.equal(value.view(torch.uint8), expected.view(torch.uint8))
    restored_if(torch.tensor(True), as_bits([]), kept=as_bits([]))


@pytest.mark.cuda
def test_parameters_on_two_devices_are_refused() -> None:
    params = [torch.ones(1, requires_grad=True), torch.ones(1, device='cuda', requires_grad=True)]
    with pytest.raises(ValueError, match='move the model to one device first'):
        SGD(params)


@pytest.mark.cuda
def test_an_update_on_cuda_never_waits_for_the_device(build: Build) -> None:
    optimizer = build(params := make('cuda'))
    give_gradients(params)
    found = torch.zeros((), device='cuda')
    optimizer.step()
    torch.cuda.set_sync_debug_mode('error')
    try:
        optimizer.refresh()
        optimizer.update()
        optimizer.update(found)
        with pytest.raises(RuntimeError, match='synchroniz'):
            found.item()  # control
    finally:
        torch.cuda.set_sync_debug_mode('default')


@pytest.mark.cuda
def test_a_recorded_update_replays_what_eager_computes(build: Build) -> None:
    eager, captured = build(make('cuda')), build(make('cuda'))
    params = captured.param_groups[0]['params']
    for optimizer in (eager, captured):
        give_gradients(optimizer.param_groups[0]['params'])
    before = copy.deepcopy(captured.state_dict()), [param.detach().clone() for param in params]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        captured.update()  # warm-up
    torch.cuda.current_stream().wait_stream(stream)
    captured.load_state_dict(before[0])
    for param, value in zip(params, before[1], strict=True):
        param.data.copy_(value)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.update()
    for step in range(4):
        for optimizer in (eager, captured):
            optimizer.param_groups[0]['lr'] = 0.1 / (step + 1)
            optimizer.refresh()
        eager.update()
        graph.replay()
        assert all(same(bits(eager), bits(captured)))
