"""Fused BatchNorm and SiLU beside the two modules in float64: torch's operators, and the kernels interpreted."""

import copy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid.models.layers import ConvUnit, fuse_norms
from lucid.models.layers.norm import MAX_CELLS, _has_kernels, backward_op, can_fuse, eval_op, fused_norm, train_op
from lucid.registry import MODELS

SCRIPT = Path(__file__).with_name('interpreted_norm.py')
LAST, FIRST = torch.channels_last, torch.contiguous_format
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STEP = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}  # of rounding, relative


def make_case(
    shape: Sequence[int],
    *,
    memory_format: torch.memory_format = LAST,
    dtype: torch.dtype = torch.float32,
    training: bool = True,
    silu: bool = True,
    sums: bool = True,
    sliced: bool = False,
    offset: float = 0.0,
) -> dict[str, Any]:
    """Inputs; ``sliced`` gives the gradient as channels 1 to C + 1 of a larger map, ``offset`` moves the values."""
    generator = torch.Generator().manual_seed(sum(shape))

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    batch, channels, height, width = shape
    dy = draw(batch, channels + 2, height, width).to(memory_format=memory_format)[:, 1 : channels + 1]
    return {
        'x': (3 * draw(*shape) + offset).to(dtype).to(memory_format=memory_format),
        'dy': (dy if sliced else dy.clone(memory_format=memory_format)).to(dtype),
        'weight': draw(channels) + 0.5,
        'bias': draw(channels),
        'running_mean': draw(channels) + offset,
        'running_var': draw(channels).square() + 0.5,
        'training': training,
        'silu': silu,
        'sums': sums,
    }


def expected(case: dict[str, Any]) -> dict[str, Tensor]:
    """What nn.BatchNorm2d and SiLU give in float64."""
    norm = nn.BatchNorm2d(case['x'].shape[1]).double().train(case['training'])
    norm.load_state_dict(
        {
            **{name: case[name].double() for name in ('weight', 'bias', 'running_mean', 'running_var')},
            'num_batches_tracked': torch.zeros((), dtype=torch.int64),
        }
    )
    x = case['x'].double().requires_grad_()
    y = norm(x)
    y = nn.functional.silu(y) if case['silu'] else y
    y.backward(case['dy'].double())
    return {
        'y': y.detach(),
        'dx': x.grad,
        'dweight': norm.weight.grad,
        'dbias': norm.bias.grad,
        **{name: value.detach() for name, value in norm.named_buffers()},
    }


def check(found: dict[str, Tensor], case: dict[str, Any]) -> None:
    step = STEP[case['x'].dtype]
    for name, want in expected(case).items():
        if name in ('dweight', 'dbias') and not case['sums']:
            assert found[name].numel() == 0
            continue
        if not want.is_floating_point():
            assert int(found[name]) == int(want)
            continue
        # What is rounded to the map's dtype may be off by its step; sums are in float32.
        tolerance = step if name in ('y', 'dx') else 3e-6
        error = (found[name].cpu().double() - want).norm() / want.norm().clamp(min=1e-12)
        assert error < tolerance, (name, float(error), case['x'].shape)


SHAPES = {
    'several parts': (3, 11, 5, 5),
    'whole tiles': (2, 8, 4, 8),
    'one cell': (5, 3, 1, 1),
    'one channel': (2, 1, 5, 4),
}
SMALL = (2, 5, 3, 4)
CASES = {
    **{f'{name}, channels_last': make_case(shape) for name, shape in SHAPES.items()},
    **{
        f'{name}, contiguous': make_case(SHAPES[name], memory_format=FIRST) for name in ('several parts', 'one channel')
    },
    **{f'{dtype}': make_case(SMALL, dtype=dtype) for dtype in (torch.bfloat16, torch.float16)},
    'evaluation, channels_last': make_case(SMALL, training=False),
    'evaluation, contiguous': make_case(SMALL, training=False, memory_format=FIRST),
    'evaluation without sums': make_case(SMALL, training=False, sums=False),
    'without SiLU': make_case(SMALL, silu=False),
    'evaluation without SiLU': make_case(SMALL, silu=False, training=False),
    'sliced gradient, channels_last': make_case(SMALL, sliced=True),
    'sliced gradient, contiguous': make_case(SMALL, sliced=True, memory_format=FIRST),
}


@pytest.fixture(scope='module')
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the kernels give for all cases, and for three more that have names of their own."""
    pytest.importorskip('triton')
    far = make_case((3, 11, 5, 5), offset=1000.0)
    cases = {**CASES, 'far': far, 'broken': make_broken(), 'again': CASES['several parts, channels_last']}
    folder = tmp_path_factory.mktemp('norm')
    torch.save(list(cases.values()), folder / 'cases.pt')
    command = [sys.executable, str(SCRIPT), str(folder / 'cases.pt'), str(folder / 'found.pt')]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(f"Triton's interpreter does not work here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(folder / 'found.pt')
    return {'cases': cases, 'found': dict(zip(cases, found, strict=True))}


@pytest.mark.parametrize('name', CASES)
def test_kernels_in_the_interpreter_equal_the_modules_in_float64(interpreted: Any, name: str) -> None:
    found, case = interpreted['found'][name], CASES[name]
    check(found, case)
    assert found['y'].dtype == found['dx'].dtype == case['x'].dtype
    assert found['y'].stride() == found['dx'].stride() == case['x'].stride()


def test_kernels_lose_no_digits_far_from_zero(interpreted: Any) -> None:
    """Values near 1000 with a deviation of 3: float32 holds them to 3e-5, and the variance is as good as that."""
    found, case = interpreted['found']['far'], interpreted['cases']['far']
    want = expected(case)
    torch.testing.assert_close(found['running_var'].double(), want['running_var'], rtol=1e-5, atol=0)
    torch.testing.assert_close(found['y'].double(), want['y'], rtol=1e-3, atol=1e-3)
    naive = (case['x'].square().mean((0, 2, 3)) - case['x'].mean((0, 2, 3)).square()).double()
    exact = case['x'].double().var((0, 2, 3), correction=0)
    assert ((naive - exact).abs() / exact).max() > 1e-3  # control: what squares of raw values would give


def make_broken() -> dict[str, Any]:
    case = make_case(SHAPES['whole tiles'])
    case['x'][1, 3, 2, 2], case['x'][0, 5, 1, 1] = float('nan'), float('inf')
    return case


def test_kernels_pass_on_what_is_not_finite_in_its_channel_alone(interpreted: Any) -> None:
    check_broken(interpreted['found']['broken'], interpreted['cases']['broken'])


def check_broken(found: dict[str, Tensor], case: dict[str, Any]) -> None:
    found = {name: value.cpu() for name, value in found.items()}
    sound = torch.tensor([c not in (3, 5) for c in range(8)])
    for name in ('y', 'dx'):
        finite = found[name].isfinite().all(dim=3).all(dim=2).all(dim=0)
        assert torch.equal(finite, sound), name
    for name in ('dweight', 'dbias', 'running_mean', 'running_var'):
        finite = found[name].isfinite()
        assert torch.equal(finite, sound) or name == 'running_mean', name
    assert not found['running_mean'][3].isfinite()
    want = expected(case)
    torch.testing.assert_close(found['dx'][:, sound].double(), want['dx'][:, sound], rtol=1e-4, atol=1e-5)


def test_kernels_give_the_same_bits_again(interpreted: Any) -> None:
    first, again = interpreted['found']['several parts, channels_last'], interpreted['found']['again']
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_map_is_found_as_it_lies_whatever_the_strides_of_dimensions_of_one() -> None:
    pytest.importorskip('triton')
    from lucid.models.layers.norm_plan import Rows, rows_of

    def last(*shape: int) -> Tensor:
        return torch.zeros(shape).to(memory_format=LAST)

    assert rows_of(last(2, 5, 3, 4)) == Rows(True, 5)
    assert rows_of(torch.zeros(2, 5, 3, 4)) == Rows(False, 60)
    assert rows_of(last(2, 9, 3, 4)[:, 2:7]) == Rows(True, 9)
    assert rows_of(torch.zeros(2, 9, 3, 4)[:, 2:7]) == Rows(False, 108)
    assert rows_of(last(1, 5, 3, 4).as_strided((1, 5, 3, 4), (7, 1, 20, 5))) == Rows(True, 5)
    assert rows_of(torch.zeros(60).as_strided((1, 5, 3, 4), (7, 12, 4, 1))) == Rows(False, 60)
    assert rows_of(last(6, 5, 1, 1)[::2]) == Rows(True, 10)
    assert rows_of(torch.zeros(6, 5, 1, 1)) == Rows(True, 5)
    assert rows_of(torch.zeros(4, 1, 3, 2)) == Rows(True, 1)
    # Not: a crop, every other image, an expanded gradient.
    assert rows_of(last(2, 5, 6, 6)[:, :, 1:4, 1:4]) is None
    assert rows_of(last(4, 5, 3, 4)[::2]) is None
    assert rows_of(torch.zeros(()).expand(2, 5, 3, 4)) is None


def through_layer(case: dict[str, Any], device: str = 'cpu') -> dict[str, Tensor]:
    norm = nn.BatchNorm2d(case['x'].shape[1]).train(case['training'])
    norm.to(dtype=torch.promote_types(case['x'].dtype, torch.float32), device=device)
    with torch.no_grad():
        for name in ('weight', 'bias', 'running_mean', 'running_var'):
            getattr(norm, name).copy_(case[name])
    norm.requires_grad_(case['sums'])
    x = case['x'].to(device).clone().requires_grad_()
    y = fused_norm(x, norm, silu=case['silu'])
    y.backward(case['dy'].to(device=device, dtype=y.dtype))
    empty = torch.empty(0)
    return {
        'y': y.detach(),
        'dx': x.grad,
        'dweight': empty if norm.weight.grad is None else norm.weight.grad,
        'dbias': empty if norm.bias.grad is None else norm.bias.grad,
        **dict(norm.named_buffers()),
    }


@pytest.mark.parametrize('name', CASES)
def test_the_layer_equals_the_modules_in_float64(name: str) -> None:
    check(through_layer(CASES[name]), CASES[name])


@pytest.mark.parametrize('training', [True, False])
def test_in_float64_it_is_the_modules_to_the_last_digits(training: bool) -> None:
    case = make_case((3, 11, 5, 5), training=training)
    case = {k: v.double() if isinstance(v, Tensor) else v for k, v in case.items()}
    found = through_layer(case)
    for name, want in expected(case).items():
        torch.testing.assert_close(found[name], want, rtol=1e-12, atol=1e-12)


@pytest.mark.cuda
@pytest.mark.parametrize('name', CASES)
def test_on_a_card_kernels_equal_the_modules_in_float64(name: str) -> None:
    check(through_layer(CASES[name], 'cuda'), CASES[name])


@pytest.mark.cuda
@pytest.mark.parametrize('shape', [(16, 16, 320, 320), (16, 64, 80, 80), (16, 21, 40, 40), (16, 256, 20, 20)])
@pytest.mark.parametrize('dtype', DTYPES)
def test_on_a_card_maps_of_a_training_step_equal_the_modules_in_float64(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    case = make_case(shape, dtype=dtype, sliced=True)
    found, again = through_layer(case, 'cuda'), through_layer(case, 'cuda')
    assert all(torch.equal(found[name], again[name]) for name in found)
    check(found, case)


def test_the_layer_passes_on_what_is_not_finite_in_its_channel_alone(device: torch.device) -> None:
    check_broken(through_layer(make_broken(), str(device)), make_broken())


def test_maps_that_32_bits_cannot_number_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and offsets of the kernels are int32."""

    def has_kernels(num_elements: int) -> bool:
        return _has_kernels(SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, numel=lambda: num_elements))  # type: ignore[arg-type]

    monkeypatch.setattr(torch.version, 'hip', None)
    assert has_kernels(MAX_CELLS - 1)
    assert not has_kernels(MAX_CELLS)


@pytest.mark.parametrize('last', [True, False])
def test_the_rows_of_a_map_are_divided_without_a_gap_and_stay_in_32_bits(last: bool) -> None:
    pytest.importorskip('triton')
    from lucid.models.layers.norm_plan import PROGRAMS, WRITERS, plan

    for channels in (1, 3, 16, 21, 96, 256, 1024):
        for num_rows in (2, 65, 400, 128 * 320 * 320, (MAX_CELLS - 1) // channels):
            for num_maps, num_programs in ((1, PROGRAMS), (2, PROGRAMS), (1, WRITERS), (2, WRITERS)):
                found = plan(num_rows, channels, last=last, num_maps=num_maps, num_programs=num_programs)
                assert (found.num_programs - 1) * found.rows_per_program < num_rows
                assert num_rows <= found.num_programs * found.rows_per_program < 2**31 - found.block_r
                assert channels <= found.num_blocks * found.block_c
                assert found.num_programs <= num_programs
                assert found.num_blocks < 2**16  # CUDA's limit of a grid's second dimension


def test_only_the_input_is_kept_of_the_activations() -> None:
    """Plain: the input of the norm and that of SiLU, for the same result."""
    kept: list[list[int]] = []
    for fused in (False, True):
        unit = ConvUnit(4, out_channels=8)
        fuse_norms(unit, fused=fused)
        sizes = dict[int, int]()

        def note(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            if tensor.numel() == 2 * 8 * 36:
                sizes[tensor.untyped_storage().data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            y = unit(torch.randn(2, 4, 6, 6))
        kept.append(sorted(sizes.values()))
        assert y.requires_grad
    assert kept == [[2304, 2304], [2304]]


def test_operators_say_what_they_write_and_what_they_return() -> None:
    case = make_case((3, 5, 4, 4))
    x, weight, bias, mean, var = (case[k] for k in ('x', 'weight', 'bias', 'running_mean', 'running_var'))
    check_op = torch.library.opcheck
    check_op(train_op, (x, weight, bias, mean, var, torch.tensor(0), 0.1, 1e-5, True))
    check_op(eval_op, (x, weight, bias, mean, var, 1e-5, True))
    for training, sums in ((True, True), (False, True), (False, False)):
        check_op(backward_op, (case['dy'], x, weight, bias, mean, var, training, sums, True))


def test_one_value_per_channel_is_refused_as_the_module_refuses_it() -> None:
    norm, x = nn.BatchNorm2d(3), torch.randn(1, 3, 1, 1)
    messages = []
    for call in (norm, lambda x: fused_norm(x, norm, silu=True)):
        with pytest.raises(ValueError, match='more than 1 value per channel') as error:
            call(x)
        messages.append(str(error.value).replace('torch.Size(', '').rstrip(')').strip('([])'))
    assert messages[0].split('size')[0] == messages[1].split('size')[0]
    assert fused_norm(x, norm.eval(), silu=True).shape == x.shape


STATE = ('weight', 'bias', 'running_mean', 'running_var')


def strided(name: str) -> nn.BatchNorm2d:
    """A norm of which one tensor is a column of a table: kernels count on one number after the other."""
    norm = nn.BatchNorm2d(4)
    table = torch.rand(4, 2)[:, 0]
    setattr(norm, name, nn.Parameter(table) if name in ('weight', 'bias') else table)
    return norm


@pytest.mark.parametrize(
    'norm',
    [
        nn.SyncBatchNorm(4),
        nn.BatchNorm2d(4, momentum=None),
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.Identity(),
        *map(strided, STATE),
    ],
    ids=['synchronised', 'cumulative', 'without weights', 'without running statistics', 'none', *STATE],
)
def test_another_norm_runs_as_the_module_that_it_is(norm: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_fuse(nn.BatchNorm2d(4))
    assert not can_fuse(norm)
    monkeypatch.setattr('lucid.models.layers.conv.fused_norm', lambda *a, **k: pytest.fail('fused'))
    unit = ConvUnit(4, out_channels=4)
    fuse_norms(unit)
    unit.norm = norm
    if not isinstance(norm, nn.SyncBatchNorm):  # which wants a card
        unit(torch.randn(2, 4, 3, 3))


@pytest.mark.parametrize('kind', [nn.ReLU, nn.Hardswish, nn.Identity])
def test_another_activation_runs_after_the_norm(kind: type[nn.Module]) -> None:
    results = []
    for fused in (False, True):
        torch.manual_seed(0)
        unit = ConvUnit(4, out_channels=4)
        unit.activation = kind()
        fuse_norms(unit, fused=fused)
        results.append(unit(torch.randn(2, 4, 3, 3)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize('training', [True, False])
def test_an_empty_batch_moves_no_running_statistics(training: bool) -> None:
    norms = [nn.BatchNorm2d(4).train(training) for _ in range(2)]
    for norm, call in zip(norms, (norms[0], lambda x: fused_norm(x, norms[1], silu=True)), strict=True):
        assert call(torch.empty(0, 4, 3, 3)).shape == (0, 4, 3, 3)
        assert norm.running_mean.isfinite().all()
    assert all(map(torch.equal, norms[0].buffers(), norms[1].buffers()))


@pytest.mark.parametrize('shape', [(2, 5, 3, 3), (2, 3, 3, 3), (2, 4, 9), (4, 3, 3)])
def test_a_map_of_other_channels_is_refused_before_a_kernel_reads_past_the_weights(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r'expected \(B, 4, H, W\), got input size'):
        fused_norm(torch.randn(shape), nn.BatchNorm2d(4), silu=True)


def make_detector(*, fused_norm: bool, **more: Any) -> Any:
    torch.manual_seed(0)
    return MODELS.build({'type': 'YOLODetector', 'num_classes': 3, 'fused_norm': fused_norm, **more})


def test_a_fused_detector_has_the_same_state_and_in_float64_the_same_training() -> None:
    plain, fused = make_detector(fused_norm=False), make_detector(fused_norm=True)
    assert list(plain.state_dict()) == list(fused.state_dict())
    assert all(map(torch.equal, plain.state_dict().values(), fused.state_dict().values()))
    units = [module for module in fused.network.modules() if isinstance(module, ConvUnit)]
    assert len(units) == 115
    assert all(unit.fused for unit in units)
    assert not any(module.fused for module in plain.network.modules() if isinstance(module, ConvUnit))
    images = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    for model in (plain, fused):
        model.double().train()
        for output in (outputs := model.network(images)):
            output.retain_grad()
        sum(output.square().mean() for output in outputs).backward()
    for (name, a), b in zip(plain.named_parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-9, msg=name)
    for (name, a), b in zip(plain.named_buffers(), fused.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=name)
    for model in (plain, fused):
        model.eval()
    torch.testing.assert_close(plain.network(images)[2], fused.network(images)[2], rtol=1e-9, atol=1e-12)
    assert all(m.fused for m in fused.network.deployed().modules() if isinstance(m, ConvUnit))


def test_frozen_parts_keep_their_statistics_and_pass_gradients_on() -> None:
    model = make_detector(fused_norm=True, frozen=('neck',)).train()
    before = copy.deepcopy(model.network.neck.state_dict())
    sum(output.square().mean() for output in model.network(torch.rand(2, 3, 64, 64))).backward()
    assert all(map(torch.equal, before.values(), model.network.neck.state_dict().values()))
    assert all(parameter.grad is None for parameter in model.network.neck.parameters())
    assert all(parameter.grad is not None for parameter in model.network.backbone.parameters())


def test_compiled_it_is_one_graph_with_the_operators_in_it() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    unit = ConvUnit(3, out_channels=4, kernel_size=3)
    fuse_norms(unit)
    other = copy.deepcopy(unit)
    compiled = torch.compile(other, fullgraph=True, dynamic=False)
    x = torch.randn(2, 3, 6, 6)
    for call in (unit, compiled):
        call(x).square().sum().backward()
    for a, b in zip(unit.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    assert all(map(torch.equal, unit.buffers(), other.buffers()))
    assert int(other.norm.num_batches_tracked) == 1


def test_an_exported_network_has_modules_of_torch_alone_where_units_are_not_fused() -> None:
    unit = ConvUnit(3, out_channels=4).eval()
    names = []
    for fused in (True, False):
        fuse_norms(unit, fused=fused)
        nodes = torch.export.export(unit, (torch.randn(2, 3, 4, 4),)).graph.nodes
        names.append([str(node.target) for node in nodes if str(node.target).startswith('lucid')])
    assert names == [['lucid.norm_eval.default'], []]
