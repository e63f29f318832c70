import math

import pytest
import torch
from torch import Tensor

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
