import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lucid.engine.optimizers.newton_schulz import group_by_size, muon_directions, newton_schulz


def one_matrix(matrix: Tensor, steps: int) -> Tensor:
    """The formula for one matrix, tall or wide, in float64."""
    x = matrix.double()
    x = x / (x.square().sum().sqrt() + 1e-7)
    if tall := x.shape[0] > x.shape[1]:
        x = x.T
    for _ in range(steps):
        g = x @ x.T
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x.T if tall else x


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_singular_values_of_a_random_64_by_64_matrix_land_near_one() -> None:
    values = torch.linalg.svdvals(newton_schulz(random(1, 64, 64))[0])
    assert values.max() < 1.5
    assert values.median() > 0.6


def test_the_iteration_keeps_singular_vectors() -> None:
    u, s, vh = torch.linalg.svd(random(8, 20), full_matrices=False)
    x = s / s.square().sum().sqrt()
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5  # the same map on the singular values alone
    expected = u @ torch.diag(x) @ vh
    torch.testing.assert_close(newton_schulz(random(1, 8, 20))[0], expected, rtol=0, atol=1e-6)


def test_a_zero_matrix_stays_zero() -> None:
    assert torch.equal(newton_schulz(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def test_float64_is_iterated_in_float64_and_float32_in_float32() -> None:
    exact = newton_schulz(random(2, 8, 12))
    assert exact.dtype == torch.float64
    single = newton_schulz(random(2, 8, 12, dtype=torch.float32))
    assert single.dtype == torch.float32
    assert 1e-9 < (exact - single).abs().max() < 1e-5  # control: float32 would be seen


def test_a_bfloat16_iteration_is_close_and_returns_the_dtype_of_its_input() -> None:
    matrices = random(2, 16, 24, dtype=torch.float32)
    result = newton_schulz(matrices, dtype=torch.bfloat16)
    assert result.dtype == torch.float32
    error = (result - newton_schulz(matrices)).norm() / result.norm()
    assert 1e-4 < error < 0.05


@pytest.mark.parametrize('shape', [(6, 4, 3, 3), (64, 3), (16, 1, 3, 3), (5, 5), (1, 7), (4, 2, 2)])
def test_directions_follow_the_formula_for_each_shape(shape: tuple[int, ...]) -> None:
    tensors = [random(*shape, seed=seed) for seed in range(3)]
    rows, columns = shape[0], math.prod(shape[1:])
    for tensor, result in zip(tensors, muon_directions(tensors, steps=5, dtype=torch.float32), strict=True):
        expected = 0.2 * math.sqrt(max(rows, columns)) * one_matrix(tensor.reshape(rows, columns), 5)
        torch.testing.assert_close(result, expected.reshape(shape), rtol=1e-12, atol=1e-12)


def test_a_matrix_and_one_of_the_transposed_size_iterate_together() -> None:
    shapes = [(8, 2, 2, 2), (16, 8, 1, 1), (8, 8), (8, 16), (8,)]
    tensors = [torch.zeros(shape) for shape in shapes[:4]] + [torch.zeros(8, 16, dtype=torch.float64)]
    assert group_by_size(tensors) == [[0, 2], [1, 3], [4]]


def test_strides_change_no_bit() -> None:
    plain = [random(8, 4, 3, 3, seed=seed, dtype=torch.float32) for seed in range(4)]
    strided = [tensor.to(memory_format=torch.channels_last) for tensor in plain]
    assert not torch.equal(plain[0].as_strided((288,), (1,)), strided[0].as_strided((288,), (1,)))  # control
    for a, b in zip(*(muon_directions(t, steps=5, dtype=torch.float32) for t in (plain, strided)), strict=True):
        assert torch.equal(a, b)


def test_the_127_matrices_of_scale_n_iterate_in_40_groups() -> None:
    # 41 weight shapes, of which two are each other's transposed size.
    from lucid.registry import MODELS

    detector = MODELS.build({'type': 'YOLODetector', 'num_classes': 80})
    matrices = [param for param in detector.network.parameters() if param.ndim >= 2]
    assert len(matrices) == 127
    assert len({tuple(param.shape) for param in matrices}) == 41
    assert len(group_by_size(matrices)) == 40


def with_singular_values(rows: int, columns: int, values: Tensor) -> Tensor:
    u, v = torch.linalg.qr(random(rows, rows)).Q, torch.linalg.qr(random(columns, rows, seed=1)).Q
    return ((u * values) @ v.T).float()


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a.double() * b.double()).sum() / (a.double().norm() * b.double().norm()))


SIZES = [(9, 64), (21, 64), (64, 576), (128, 256)]


def hard_matrices(rows: int, columns: int) -> dict[str, Tensor]:
    """Random; condition 1e2, 1e4 and 1e8; and of rank 3."""
    found = {'random': random(rows, columns, dtype=torch.float32)}
    for k in (2, 4, 8):
        spectrum = torch.logspace(0, -k, rows, dtype=torch.float64)
        found[f'condition 1e{k}'] = with_singular_values(rows, columns, spectrum)
    found['rank 3'] = (random(rows, 3) @ random(3, columns, seed=1)).float()
    return found


@pytest.mark.parametrize(('rows', 'columns'), SIZES)
def test_in_float32_the_direction_is_that_of_float64_however_ill_conditioned(rows: int, columns: int) -> None:
    for name, matrix in hard_matrices(rows, columns).items():
        exact, found = one_matrix(matrix, 5), newton_schulz(matrix[None])[0]
        assert 1 - cosine(found, exact) < 1e-8, name
        assert (found.double() - exact).norm() / exact.norm() < 1e-4, name


@pytest.mark.parametrize(('rows', 'columns'), SIZES)
def test_in_bfloat16_the_direction_is_right_where_the_matrix_has_something_to_say(rows: int, columns: int) -> None:
    """The criterion of ``ns_dtype='bfloat16'``.

    Up to condition 100 the update has a cosine of 0.999 with that of float64. Beyond, it descends as steeply, its
    product with the matrix is within 1 %, and no singular value passes 1.25; but where the matrix has singular values
    below about 1 % of its largest, rounding of the iterate is orthogonalised too, and is noise in the update.
    """
    for name, matrix in hard_matrices(rows, columns).items():
        exact, found = one_matrix(matrix, 5), newton_schulz(matrix[None], dtype=torch.bfloat16)[0]
        if name in ('random', 'condition 1e2'):
            assert cosine(found, exact) > 0.999, name
        steepness = float((found.double() * matrix).sum() / (exact * matrix).sum())
        assert abs(steepness - 1) < 0.01, (name, steepness)
        assert torch.linalg.svdvals(found.double()).max() < 1.25, name
    assert cosine(found, exact) < 0.96  # control: of rank 3, noise is seen


def test_directions_lie_as_their_tensors_do() -> None:
    tensors = [
        random(8, 4, 3, 3).to(memory_format=torch.channels_last),
        random(4, 8, 1, 1).to(memory_format=torch.channels_last),
        random(16, 1, 3, 3).to(memory_format=torch.channels_last),
        random(3, 8),
        random(8, 3, 1, 1),
    ]
    for tensor, direction in zip(tensors, muon_directions(tensors, steps=1, dtype=torch.float32), strict=True):
        assert direction.stride() == tensor.stride()


def test_tensors_that_are_not_dense_follow_the_formula_too() -> None:
    wide = random(6, 9)
    for tensor in (wide[:, ::2], wide.T, wide[1:3]):
        (found,) = muon_directions([tensor], steps=5, dtype=torch.float32)
        torch.testing.assert_close(found, 0.2 * math.sqrt(max(tensor.shape)) * one_matrix(tensor, 5))


def test_a_group_is_gathered_and_handed_out_by_a_fixed_number_of_operators() -> None:
    class Count(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            views = 'view', 'as_strided', 'permute', 'transpose', 'unbind', 'split', 'empty'
            self.number += not any(word in func._schema.name for word in views)
            return result

    counts = []
    for number in (2, 12):
        tensors = [random(8, 4, 3, 3, seed=i).to(memory_format=torch.channels_last) for i in range(number)]
        with Count() as count:
            muon_directions(tensors, steps=1, dtype=torch.float32)
        counts.append(count.number)
    assert counts[0] == counts[1] < 14


@pytest.mark.cuda
@pytest.mark.parametrize('lanes', [3, 8, 100])
def test_on_a_card_lanes_change_no_bit_eager_or_captured(lanes: int) -> None:
    shapes = [
        (64, 64, 3, 3),
        (64, 64, 3, 3),
        (128, 256, 1, 1),
        (256, 128, 1, 1),
        (64, 1, 3, 3),
        (21, 64, 1, 1),
        (80, 21),
    ]
    tensors = [random(*shape, seed=i, dtype=torch.float32).cuda() for i, shape in enumerate(shapes)]
    expected = muon_directions(tensors, steps=5, dtype=torch.float32)
    for _ in range(20):
        found = muon_directions(tensors, steps=5, dtype=torch.float32, lanes=lanes)
        assert all(map(torch.equal, found, expected))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = muon_directions(tensors, steps=5, dtype=torch.float32, lanes=lanes)
    for _ in range(5):
        graph.replay()
        assert all(map(torch.equal, captured, expected))
