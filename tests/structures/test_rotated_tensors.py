import itertools
import math
from collections.abc import Sequence

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from lucid.structures.rotated import rbox_envelopes
from lucid.structures.rotated_tensors import MIN_SIDE, compose_rboxes, hellinger_distance, inside_rboxes

PI = math.pi
NAN = float('nan')


def boxes(*rows: tuple[float, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(rows, dtype=dtype)


def random_rboxes(count: int, *, seed: int, aspect: float = 5.0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(count, 5, generator=generator, dtype=torch.float64)
    long = 20 + 80 * drawn[:, 2:3]
    return torch.cat((drawn[:, :2] * 200, long, long / aspect, drawn[:, 4:] * PI - PI / 4), dim=1).to(dtype)


def exact_distance(box: Sequence[float], target: Sequence[float]) -> mpmath.mpf:
    """The distance by its definition, with matrices, in 60 digits."""

    def covariance(values: Sequence[float]) -> mpmath.matrix:
        w, h = (max(mpmath.mpf(side), mpmath.mpf(MIN_SIDE)) for side in values[2:4])
        cos, sin = mpmath.cos(values[4]), mpmath.sin(values[4])
        turn = mpmath.matrix([[cos, -sin], [sin, cos]])
        return turn * mpmath.matrix([[w * w / 12, 0], [0, h * h / 12]]) * turn.T

    with mpmath.workdps(60):
        first, second = covariance(box), covariance(target)
        both = (first + second) / 2
        apart = mpmath.matrix([mpmath.mpf(a) - mpmath.mpf(b) for a, b in zip(box[:2], target[:2], strict=True)])
        bhattacharyya = (apart.T * both**-1 * apart)[0] / 8
        bhattacharyya += mpmath.log(mpmath.det(both) / mpmath.sqrt(mpmath.det(first) * mpmath.det(second))) / 2
        return mpmath.sqrt(-mpmath.expm1(-bhattacharyya))


def exact_gradient(box: Sequence[float], target: Sequence[float]) -> list[float]:
    """With respect to the first box, by differences in 60 digits."""
    gradient = []
    with mpmath.workdps(60):
        step = mpmath.mpf(10) ** -20
        for index in range(5):
            sides = []
            for sign in (1, -1):
                moved = [mpmath.mpf(value) for value in box]
                moved[index] += sign * step
                sides.append(exact_distance(moved, target))
            gradient.append(float((sides[0] - sides[1]) / (2 * step)))
    return gradient


def literal_distance(box: Tensor, target: Tensor) -> Tensor:
    """The published formulas in the precision of the boxes, as matrices; the control."""

    def entries(values: Tensor) -> tuple[Tensor, ...]:
        _, _, w, h, theta = values.unbind(-1)
        a, b, cos, sin = w.square() / 12, h.square() / 12, theta.cos(), theta.sin()
        return a * cos**2 + b * sin**2, a * sin**2 + b * cos**2, (a - b) * cos * sin

    (a1, b1, c1), (a2, b2, c2) = entries(box), entries(target)
    x, y = (box[..., :2] - target[..., :2]).unbind(-1)
    det = (a1 + a2) * (b1 + b2) - (c1 + c2) ** 2
    first = ((a1 + a2) * y**2 + (b1 + b2) * x**2) / det / 4 - (c1 + c2) * x * y / det / 2
    second = (det / (4 * ((a1 * b1 - c1**2) * (a2 * b2 - c2**2)).sqrt())).log() / 2
    return (1 - torch.exp(-(first + second))).sqrt()


class TestCompose:
    def test_an_angle_of_zero_gives_the_upright_box(self) -> None:
        found = compose_rboxes(boxes((10, 20, 30, 24)), boxes((0,)))
        assert found.tolist() == [[20, 22, 20, 4, 0]]

    def test_a_box_turns_about_its_own_centre(self) -> None:
        upright, angles = boxes((10, 20, 30, 24)).expand(7, 4), torch.linspace(-3, 9, 7, dtype=torch.float64)
        found = compose_rboxes(upright, angles.unsqueeze(-1))
        envelopes = rbox_envelopes(found.numpy())
        np.testing.assert_allclose((envelopes[:, :2] + envelopes[:, 2:]) / 2, [[20, 22]] * 7, atol=1e-5)
        assert torch.equal(found[:, 4], angles)

    def test_an_inverted_box_has_negative_sides(self) -> None:
        assert compose_rboxes(boxes((3, 0, 1, 5)), boxes((1,))).tolist() == [[2, 2.5, -2, 5, 1]]


class TestInside:
    @pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
    def test_the_edges_of_an_upright_box_are_inside(self, dtype: torch.dtype) -> None:
        points = boxes((4, 4), (16, 8), (10, 6), (16.001, 8), (3.999, 6), (10, 8.001), dtype=dtype)
        flat, tall = boxes((10, 6, 12, 4, 0), (6, 10, 12, 4, PI / 2), dtype=dtype)
        expected = [True, True, True, False, False, False]
        assert inside_rboxes(points, flat[None]).tolist() == [expected]
        assert inside_rboxes(points.flip(-1), tall[None]).tolist() == [expected]

    def test_a_diagonal_box_by_hand(self) -> None:
        # From (0, 0) to (10, 10), 2 wide, in both of its spellings.
        points = boxes((1, 1), (9, 9), (5.7, 4.3), (4.3, 5.7), (5.8, 4.2), (10.1, 10.1), (9, 1))
        long = math.hypot(10, 10)
        both = boxes((5, 5, long, 2, PI / 4), (5, 5, 2, long, -PI / 4))
        assert inside_rboxes(points, both).tolist() == [[True] * 4 + [False] * 3] * 2

    def test_scattered_points_agree_with_a_test_against_four_half_planes(self) -> None:
        rboxes, points = random_rboxes(40, seed=0), torch.rand(300, 2, dtype=torch.float64) * 200
        found = inside_rboxes(points, rboxes)
        assert 50 < found.sum() < 3000
        for row, (cx, cy, w, h, theta) in zip(found.tolist(), rboxes.tolist(), strict=True):
            ux, uy = math.cos(theta), math.sin(theta)
            corners = [(cx + i * ux * w / 2 - j * uy * h / 2, cy + i * uy * w / 2 + j * ux * h / 2)
                       for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))]  # fmt: skip
            edges = list(itertools.pairwise([*corners, corners[0]]))
            for inside, (x, y) in zip(row, points.tolist(), strict=True):
                turns = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for (ax, ay), (bx, by) in edges]
                assert inside == all(turn >= 0 for turn in turns)

    @pytest.mark.parametrize('box', [(5, 5, -1, 4, 0), (5, 5, 4, -1, 0), (NAN, 5, 4, 4, 0), (5, 5, 4, 4, NAN)])
    def test_nothing_lies_in_a_negative_box_or_one_that_is_no_number(self, box: tuple[float, ...]) -> None:
        assert not inside_rboxes(boxes((5, 5)), boxes(box)).any()

    @pytest.mark.parametrize('count', [1, 3, 7, 50])
    def test_the_bits_of_an_element_do_not_depend_on_the_number_of_boxes(self, count: int) -> None:
        # Points on the edges, where the last bit decides.
        rboxes = random_rboxes(200, seed=1, dtype=torch.float32)
        cx, cy, w, _, theta = rboxes.unbind(-1)
        points = torch.stack((cx + w / 2 * theta.cos(), cy + w / 2 * theta.sin()), dim=-1)
        whole = inside_rboxes(points, rboxes)
        assert 20 < whole.diagonal().sum() < 180
        for start in range(200 - count):
            part = slice(start, start + count)
            assert torch.equal(inside_rboxes(points[part], rboxes[part]), whole[part, part])

    @pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
    def test_long_boxes_are_sharp_to_a_thousandth_of_a_pixel(self, dtype: torch.dtype) -> None:
        """The cosine is rounded, and may not move the ends of the longest boxes."""
        generator = torch.Generator().manual_seed(0)
        for theta in (torch.rand(100, generator=generator, dtype=dtype) * PI - PI / 4).tolist():
            cos, sin = math.cos(theta), math.sin(theta)
            # On the long edge, near its end, a thousandth inside and outside.
            ends = [(450 * cos - across * sin, 450 * sin + across * cos) for across in (4.999, -4.999, 5.001, -5.001)]
            found = inside_rboxes(boxes(*ends, dtype=dtype), boxes((0, 0, 1000, 10, theta), dtype=dtype))
            assert found.tolist() == [[True, True, False, False]]

    def test_leading_dimensions_are_kept_and_no_gradient_flows(self) -> None:
        rboxes = random_rboxes(6, seed=2).view(2, 3, 5).requires_grad_()
        found = inside_rboxes(torch.zeros(4, 2), rboxes)
        assert found.shape == (2, 3, 4)
        assert not found.requires_grad


class TestHellinger:
    def test_shifted_circles_of_unit_variance_by_hand(self) -> None:
        side = math.sqrt(12)
        found = hellinger_distance(boxes((3, 4, side, side, 0.7)), boxes((0, 0, side, side, -2)))
        assert found.item() == pytest.approx(math.sqrt(1 - math.exp(-25 / 8)), rel=1e-14)

    def test_circles_of_two_sizes_by_hand(self) -> None:
        found = hellinger_distance(boxes((1, 1, 2, 2, 0)), boxes((1, 1, 6, 6, 0)))
        assert found.item() == pytest.approx(math.sqrt(1 - 1 / ((4 + 36) / 24)), rel=1e-14)

    def test_a_box_across_another_by_hand(self) -> None:
        # Both determinants are (8 · 2)², and that of the mean is ((64 + 4) / 2)².
        found = hellinger_distance(boxes((0, 0, 8, 2, 0)), boxes((0, 0, 8, 2, PI / 2)))
        assert found.item() == pytest.approx(math.sqrt(1 - 16 / 34), rel=1e-14)

    @pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
    @pytest.mark.parametrize('aspect', [1, 5, 1000])
    @pytest.mark.parametrize('change', [1e-6, 1e-3, 0.1, 1.0])
    def test_values_equal_the_definition_in_sixty_digits(
        self, aspect: float, change: float, dtype: torch.dtype
    ) -> None:
        rboxes = random_rboxes(6, seed=3, aspect=aspect)
        noise = torch.randn(6, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        targets, rboxes = (rboxes * (1 + change * noise)).to(dtype), rboxes.to(dtype)
        found = hellinger_distance(rboxes, targets)
        pairs = zip(rboxes.double().tolist(), targets.double().tolist(), strict=True)
        expected = torch.tensor([float(exact_distance(*pair)) for pair in pairs], dtype=torch.float64)
        tolerance = {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=0)

    @pytest.mark.parametrize('aspect', [1, 5, 1000])
    @pytest.mark.parametrize('change', [1e-3, 0.1, 1.0])
    def test_gradients_equal_those_of_the_definition(self, aspect: float, change: float) -> None:
        rboxes = random_rboxes(4, seed=5, aspect=aspect)
        noise = torch.randn(4, 5, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
        # At a thousand to one a turn of a thousandth is a large one.
        targets = rboxes * (1 + change * noise / torch.tensor([1, 1, 1, 1, aspect]))
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
            ours, theirs = rboxes.to(dtype).requires_grad_(), targets.to(dtype)
            (found,) = torch.autograd.grad(hellinger_distance(ours, theirs).sum(), ours)
            pairs = zip(ours.double().tolist(), theirs.double().tolist(), strict=True)
            for row, pair in zip(found.double(), pairs, strict=True):
                expected = torch.tensor(exact_gradient(*pair), dtype=torch.float64)
                scale = max(expected.abs().max().item(), 0.1)
                torch.testing.assert_close(row, expected, rtol=tolerance, atol=tolerance * scale)

    def test_control_the_matrices_in_float32_are_not_the_definition(self) -> None:
        long, near = random_rboxes(30, seed=7, aspect=1000, dtype=torch.float32), random_rboxes(30, seed=7).float()
        assert literal_distance(long, long * torch.tensor([1, 1, 1.001, 1.001, 1])).isnan().any()
        target = near * 1.0001
        expected = hellinger_distance(near.double(), target.double())
        assert ((literal_distance(near, target) / expected - 1).abs() > 0.3).any()
        torch.testing.assert_close(hellinger_distance(near, target).double(), expected, rtol=1e-4, atol=0)

    @pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
    @pytest.mark.parametrize('aspect', [1.0, 1000.0])
    def test_equal_boxes_are_exactly_zero_apart_with_a_gradient_of_zero(
        self, aspect: float, dtype: torch.dtype
    ) -> None:
        rboxes = random_rboxes(20, seed=8, aspect=aspect, dtype=dtype).requires_grad_()
        found = hellinger_distance(rboxes, rboxes.detach())
        assert torch.equal(found, torch.zeros(20, dtype=dtype))
        assert torch.equal(torch.autograd.grad(found.sum(), rboxes)[0], torch.zeros(20, 5, dtype=dtype))

    def test_both_spellings_of_a_rectangle_are_the_same_box(self) -> None:
        rboxes, targets = random_rboxes(20, seed=9), random_rboxes(20, seed=10)
        turned = torch.cat((rboxes[:, :2], rboxes[:, 2:4].flip(-1), rboxes[:, 4:] + PI / 2), dim=1)
        expected = hellinger_distance(rboxes, targets)
        torch.testing.assert_close(hellinger_distance(turned, targets), expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(hellinger_distance(targets, rboxes), expected, rtol=1e-12, atol=0)

    def test_sides_of_a_thousandth_of_a_pixel_are_told_apart_and_a_ten_thousandth_is_the_least(self) -> None:
        # Two boxes that differ in one side: (w - w')² / (2·w·w') is the excess.
        found = hellinger_distance(boxes((0, 0, 1, 1e-3, 0)), boxes((0, 0, 1, 2e-3, 0)))
        assert found.item() == pytest.approx(math.sqrt(1 - 1.25**-0.5), rel=1e-12)
        found = hellinger_distance(boxes((0, 0, 1, 1e-5, 0)), boxes((0, 0, 1, 2e-4, 0)))
        assert found.item() == pytest.approx(math.sqrt(1 - 1.25**-0.5), rel=1e-12)

    def test_sides_below_the_least_one_count_as_it_and_get_no_gradient(self) -> None:
        thin = boxes((0, 0, 5, MIN_SIDE / 2, 0.3), (0, 0, -3, -2, 0.3)).requires_grad_()
        least = boxes((0, 0, 5, MIN_SIDE, 0.3), (0, 0, MIN_SIDE, MIN_SIDE, 0.3))
        targets = boxes((1, 0, 5, 2, 0)).expand(2, 5)
        found = hellinger_distance(thin, targets)
        assert torch.equal(found, hellinger_distance(least, targets))
        (gradient,) = torch.autograd.grad(found.sum(), thin)
        assert gradient.isfinite().all()
        assert gradient[0, 2] != 0
        assert gradient[0, 3] == gradient[1, 2] == gradient[1, 3] == 0

    @pytest.mark.parametrize(
        ('center', 'w', 'h'), [*itertools.product((0.0, 1.0, 1e4, 1e7), (0.0, 1.0, 1e4), (0.0, 1e7))]
    )
    def test_values_and_gradients_are_finite_in_float32(self, center: float, w: float, h: float) -> None:
        found = boxes((center, -center, w, h, 0.3), (0, center, h, w, 1e4), dtype=torch.float32).requires_grad_()
        for target in ((0, 0, 0, 0, 0), (0, 0, 1, 1, 0), (0, 0, 1000, 1, 2.0), (0, 0, 2000, 2000, -0.5)):
            value = hellinger_distance(found, boxes(target, dtype=torch.float32).expand(2, 5))
            assert ((value >= 0) & (value <= 1)).all()
            assert torch.autograd.grad(value.sum(), found)[0].isfinite().all()

    def test_nan_stays_with_its_box(self) -> None:
        rboxes = boxes((0, 0, 2, 2, 0), (NAN, 0, 2, 2, 0), (0, 0, NAN, 2, 0), (0, 0, 2, 2, NAN), (1, 1, 2, 2, 0))
        found = hellinger_distance(rboxes, rboxes[:1].expand(5, 5))
        assert found.isnan().tolist() == [False, True, True, True, False]
