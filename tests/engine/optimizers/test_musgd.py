import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lucid.engine.optimizers import MuSGD

SHAPES = [(16, 3, 3, 3), (16, 1, 3, 3), (32, 16, 1, 1), (16, 32, 1, 1), (7, 5), (5, 7), (12,), ()]


class Reference:
    """MuSGD matrix by matrix, as the formula reads."""

    def __init__(self, params: list[Tensor], **options: float) -> None:
        self.params = [param.detach().clone() for param in params]
        self.momenta = [torch.zeros_like(param) for param in self.params]
        self.options = options

    def step(self, grads: list[Tensor | None]) -> None:
        lr, mu, decay, w_muon, w_sgd = (self.options[k] for k in ('lr', 'momentum', 'weight_decay', 'w_muon', 'w_sgd'))
        for i, g in enumerate(grads):
            if g is None:
                continue
            self.momenta[i] = mu * self.momenta[i] + g
            n = g + mu * self.momenta[i]
            u = n
            if g.ndim >= 2:
                u = w_sgd * n + decay * self.params[i]
                if w_muon:
                    u = u + w_muon * self.orthogonal(n.reshape(n.shape[0], -1)).reshape(n.shape)
            self.params[i] = self.params[i] - lr * u

    @staticmethod
    def orthogonal(m: Tensor) -> Tensor:
        x = m / (m.square().sum().sqrt() + 1e-7)
        x = x.T if m.shape[0] > m.shape[1] else x
        for _ in range(5):
            g = x @ x.T
            x = 3.4445 * x + (-4.7750 * g + 2.0315 * (g @ g)) @ x
        x = x.T if m.shape[0] > m.shape[1] else x
        return 0.2 * math.sqrt(max(m.shape)) * x


OPTIONS = {'lr': 0.02, 'momentum': 0.9, 'weight_decay': 0.05, 'w_muon': 0.4, 'w_sgd': 0.7}


def make(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in SHAPES]


def gradients(step: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in SHAPES]


def give(params: list[Tensor], grads: list[Tensor | None]) -> None:
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad


@pytest.mark.parametrize('w_muon', [0.4, 0.0])
def test_ten_steps_equal_the_formula_matrix_by_matrix(w_muon: float) -> None:
    params = make()
    options = {**OPTIONS, 'w_muon': w_muon}
    optimizer, reference = MuSGD(params, **options), Reference(params, **options)
    for step in range(10):
        grads: list[Tensor | None] = list(gradients(step))
        grads[step % 8] = None
        give(params, grads)
        optimizer.step()
        reference.step(grads)
    for param, expected in zip(params, reference.params, strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-12, atol=1e-12)


def test_a_vector_has_neither_decay_nor_muon_and_a_depthwise_kernel_has_both() -> None:
    vector, kernel = torch.ones(4, requires_grad=True), torch.ones(4, 1, 3, 3, requires_grad=True)
    optimizer = MuSGD([vector, kernel], lr=1.0, momentum=0.0, weight_decay=0.5, w_muon=0.0, w_sgd=0.0)
    give([vector, kernel], [torch.zeros(4), torch.zeros(4, 1, 3, 3)])
    optimizer.step()
    assert torch.equal(vector, torch.ones(4))
    assert torch.equal(kernel, torch.full((4, 1, 3, 3), 0.5))


def test_zero_w_muon_leaves_the_iteration_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError('iterated')

    monkeypatch.setattr('lucid.engine.optimizers.musgd.muon_directions', fail)
    params = make()
    give(params, list(gradients(0)))
    MuSGD(params, w_muon=0.0).step()
    with pytest.raises(AssertionError, match='iterated'):
        MuSGD(params, w_muon=0.1).step()


def test_channels_last_changes_no_bit_and_momentum_keeps_the_format() -> None:
    params, strided = make(torch.float32), make(torch.float32)
    for param in strided:
        if param.ndim == 4:
            param.data = param.data.to(memory_format=torch.channels_last)
    optimizers = [MuSGD(params, **OPTIONS), MuSGD(strided, **OPTIONS)]
    for step in range(3):
        grads = gradients(step, torch.float32)
        give(params, list(grads))
        give(
            strided, [g.clone().as_strided_(p.shape, p.stride()).copy_(g) for g, p in zip(grads, strided, strict=True)]
        )
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(params, strided, strict=True):
        assert torch.equal(a, b)
        assert optimizers[1].state[b]['momentum_buffer'].stride() == b.stride()
    assert strided[0].is_contiguous(memory_format=torch.channels_last)  # control
    assert not strided[0].is_contiguous()


def test_bfloat16_iteration_stays_close() -> None:
    moved = []
    for ns_dtype in ('float32', 'bfloat16'):
        params = make(torch.float32)
        give(params, list(gradients(0, torch.float32)))
        MuSGD(params, ns_dtype=ns_dtype, **OPTIONS).step()
        moved.append(params)
    for a, b in zip(*moved, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)
    assert not torch.equal(moved[0][0], moved[1][0])  # control: the option does something


def test_lists_of_a_fused_operator_lie_alike_in_channels_last_too() -> None:
    """Else torch._foreach_* launches a kernel for each tensor, in place of one for about fifty."""

    class Unlike(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []
            self.number = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func._schema.name.startswith('aten::_foreach'):
                lists = [arg for arg in args if isinstance(arg, list)]
                self.number += len(lists) > 1
                strides = [[tensor.stride() for tensor in one] for one in lists]
                if any(other != strides[0] for other in strides):
                    self.names.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    params = make(torch.float32)
    for param in params:
        if param.ndim == 4:
            param.data = param.data.to(memory_format=torch.channels_last)
    optimizer = MuSGD(params, **OPTIONS)
    give(params, [torch.zeros_like(param) for param in params])
    with Unlike() as mode, torch.no_grad():
        optimizer.update()
        assert mode.names == []
        assert mode.number >= 4
        torch._foreach_add([params[0]], [params[0].contiguous()])  # control
    assert mode.names == ['aten::_foreach_add']


@pytest.mark.parametrize('lanes', [1, 6])
def test_its_groups_of_matrices_are_given_the_lanes_of_the_option(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def note(calls: Any, *, lanes: int | None = None) -> list[Any]:
        asked.append(lanes)
        return [call() for call in calls]

    monkeypatch.setattr('lucid.engine.optimizers.newton_schulz.side_by_side', note)
    params = make(torch.float32)
    optimizer = MuSGD(params, **OPTIONS, ns_lanes=lanes)
    give(params, [torch.ones_like(param) for param in params])
    optimizer.step()
    assert asked == [lanes]


def test_a_toy_regression_needs_fewer_steps_than_momentum_sgd() -> None:
    def steps_to(goal: float, w_muon: float) -> int:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(256, 16, generator=generator)
        y = x @ torch.randn(16, 8, generator=generator)
        weight = torch.zeros(8, 16, requires_grad=True)
        optimizer = MuSGD([weight], lr=0.05, w_muon=w_muon, momentum=0.9, weight_decay=0.0)
        for step in range(400):
            loss = (x @ weight.T - y).square().mean()
            if loss < goal:
                return step
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        raise AssertionError('not reached')

    assert steps_to(0.1, 0.5) < steps_to(0.1, 0.0)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'lr': -0.1}, r'MuSGD: lr=-0.1; give a number in \[0, inf\)'),
        ({'lr': float('nan')}, 'lr=nan'),
        ({'momentum': 1.0}, r'momentum=1.0; give a number in \[0, 1\)'),
        ({'weight_decay': '5e-4'}, "weight_decay='5e-4'; give a number"),
        ({'w_muon': -1}, 'w_muon=-1'),
        ({'ns_steps': 0}, 'ns_steps=0; give a whole number from 1'),
        ({'ns_lanes': 0}, 'ns_lanes=0; give a whole number from 1, 1 runs nothing side by side'),
        ({'ns_lanes': True}, 'ns_lanes=True; give a whole number from 1, 1 runs nothing side by side'),
        ({'ns_steps': True}, 'ns_steps=True; give a whole number from 1, 5 is usual'),
        ({'ns_dtype': 'float16'}, r"ns_dtype='float16'; choose one of \['bfloat16', 'float32'\]"),
    ],
)
def test_an_option_that_no_run_can_mean_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MuSGD(make(), **options)


def test_a_misspelt_option_of_a_group_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="unknown option 'weight_dcay' of a parameter group; write 'weight_decay'"):
        MuSGD([{'params': make(), 'weight_dcay': 0.0}])
    with pytest.raises(TypeError, match='momentun'):
        MuSGD(make(), momentun=0.9)  # type: ignore[call-arg]


def test_an_update_reads_nothing_on_the_host(no_host_read: Callable[[], Any]) -> None:
    params = make(torch.float32)
    optimizer = MuSGD(params, **OPTIONS)
    give(params, list(gradients(0, torch.float32)))
    with no_host_read():
        optimizer.refresh()
        optimizer.update()
        optimizer.update(torch.tensor(1.0))
    with no_host_read(), pytest.raises(AssertionError, match='reads the device'):
        params[0].sum().item()  # control


def test_a_state_survives_a_file_of_plain_types_and_continues_bitwise(tmp_path: Path) -> None:
    params, copies = make(torch.float32), make(torch.float32)
    straight, first = MuSGD(params, **OPTIONS), MuSGD(copies, **OPTIONS)
    for step in range(2):
        for optimizer, tensors in ((straight, params), (first, copies)):
            give(tensors, list(gradients(step, torch.float32)))
            optimizer.step()
    torch.save(first.state_dict(), tmp_path / 'state.pth')
    resumed = MuSGD(copies, lr=0.5)
    addresses = [resumed.state[p]['momentum_buffer'].data_ptr() for p in copies]
    resumed.load_state_dict(torch.load(tmp_path / 'state.pth', weights_only=True))
    assert addresses == [resumed.state[p]['momentum_buffer'].data_ptr() for p in copies]
    assert resumed.param_groups[0]['lr'] == OPTIONS['lr']
    for optimizer, tensors in ((straight, params), (resumed, copies)):
        give(tensors, list(gradients(2, torch.float32)))
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(params, copies, strict=True))
