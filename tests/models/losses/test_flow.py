import copy
import math

import pytest
import torch
from torch import Tensor

from lucid.models.losses.flow import RealNVP


def make(seed: int = 0, *, spread: float = 1.0, **options: int) -> RealNVP:
    torch.manual_seed(seed)
    flow = RealNVP(**options).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.mul_(spread)
    return flow


def reference(flow: RealNVP, x: float, y: float) -> float:
    """Number by number: the first coupling moves y by what its network makes of x, the next one x, and so on."""

    def leaky(value: float) -> float:
        return value if value > 0 else 0.01 * value

    def layer(linear: torch.nn.Linear, values: list[float]) -> list[float]:
        rows = zip(linear.weight.tolist(), linear.bias.tolist(), strict=True)
        return [leaky(sum(w * v for w, v in zip(weights, values, strict=True)) + bias) for weights, bias in rows]

    point, stretch = [x, y], 0.0
    for index, coupling in enumerate(flow.couplings):
        given, moved = index % 2, 1 - index % 2
        raw, shift = layer(coupling.last, layer(coupling.second, layer(coupling.first, [point[given]])))
        log_scale = coupling.scale.item() * math.tanh(raw)
        point[moved] = (point[moved] - shift) * math.exp(-log_scale)
        stretch -= log_scale
    return stretch - (point[0] ** 2 + point[1] ** 2) / 2 - math.log(2 * math.pi)


def test_it_has_the_published_number_of_parameters() -> None:
    layers = (1 * 64 + 64) + (64 * 64 + 64) + (64 * 2 + 2)
    assert sum(parameter.numel() for parameter in RealNVP().parameters()) == 6 * (layers + 1) == 26_514


def test_six_couplings_number_by_number() -> None:
    flow = make(spread=2.0)
    points = torch.randn(20, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    expected = torch.tensor([reference(flow, *point) for point in points.tolist()], dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(flow(points), expected, rtol=1e-12, atol=0)
        assert (flow(points) - flow(points.flip(-1))).abs().min() > 1e-6  # the coordinates play different parts


def test_a_flow_whose_networks_give_zero_is_the_standard_normal() -> None:
    flow = make(spread=0.0)
    with torch.no_grad():
        found = flow(torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64))
    assert found.tolist() == [pytest.approx(-math.log(2 * math.pi)), pytest.approx(-math.log(2 * math.pi) - 12.5)]


@pytest.mark.parametrize('seed', [0, 2])
def test_it_is_a_density(seed: int) -> None:
    flow = make(seed)
    points = torch.cartesian_prod(*[torch.linspace(-24, 24, 241, dtype=torch.float64)] * 2)
    with torch.no_grad():
        density = flow(points).exp()
    assert (density.sum() * 0.2**2).item() == pytest.approx(1, abs=1e-3)
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(points).sum(-1).exp()
    assert (density - normal).abs().max() > 0.01  # and not the one that it started from


def test_the_first_coupling_moves_y_and_leaves_x() -> None:
    flow = make(num_couplings=1)
    points = torch.zeros(3, 2, dtype=torch.float64)
    points[:, 1] = torch.tensor([0.0, 1.0, 2.0])
    with torch.no_grad():
        first, second, third = flow(points).tolist()
    # Along y at one x it is a normal, whose second difference is minus one over its variance, a tanh away from one.
    curvature = first - 2 * second + third
    assert -math.exp(2) < curvature < -math.exp(-2)
    points[:, 0] = 5.0
    with torch.no_grad():
        first, second, third = flow(points).tolist()
    assert first - 2 * second + third != pytest.approx(curvature, rel=1e-6)


def test_parameters_and_points_have_the_numeric_gradient() -> None:
    flow = make(num_couplings=2, hidden=3)
    points = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    parameters = tuple(flow.parameters())
    assert torch.autograd.gradcheck(lambda points, *_: flow(points), (points, *parameters))


@pytest.mark.parametrize('far', [27.0, 1e4, 1e9])
def test_a_point_far_away_costs_its_square_and_not_more(far: float) -> None:
    # With a scale that is not bounded a residual of 27 made a loss of 7e22.
    flow = make(spread=3.0).float()
    points = torch.tensor([[far, -far], [-far, far]], requires_grad=True)
    found = flow(points)
    # Shifts grow with the coordinates; three couplings move each, and each stretches by less than exp(scale).
    assert found.isfinite().all()
    (gradient,) = torch.autograd.grad(found.sum(), points)
    assert gradient.isfinite().all()


def test_it_computes_in_the_dtype_of_the_points() -> None:
    flow = make().float()
    points = torch.randn(5, 2, dtype=torch.float64)
    with torch.no_grad():
        assert flow(points).dtype == torch.float64
        assert torch.equal(flow(points), copy.deepcopy(flow).double()(points))
        assert make().half()(points.float()).dtype == torch.float32


def test_leading_dimensions_are_kept() -> None:
    flow, points = make(), torch.randn(2, 3, 4, 2, dtype=torch.float64)
    with torch.no_grad():
        found: Tensor = flow(points)
        assert found.shape == (2, 3, 4)
        torch.testing.assert_close(found[1, 2, 3], flow(points[1, 2, 3]))
