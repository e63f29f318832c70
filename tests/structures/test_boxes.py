import math

import pytest
import torch
import torchvision
from torch import Tensor

from lucid.structures.boxes import complete_iou, pairwise_iou


def boxes(*rows: tuple[float, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(rows, dtype=dtype)


def random_boxes(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(*shape, 2, generator=generator, dtype=dtype) * 50
    sides = torch.rand(*shape, 2, generator=generator, dtype=dtype) * 50 + 1
    return torch.cat((corner, corner + sides), dim=-1)


class TestPairwiseIou:
    def test_overlap_by_hand(self) -> None:
        ours = boxes((0, 0, 2, 2), (10, 10, 12, 14))
        others = boxes((1, 1, 3, 3), (0, 0, 2, 2), (2, 2, 4, 4), (10, 10, 12, 12))
        expected = torch.tensor([[1 / 7, 1, 0, 0], [0, 0, 0, 0.5]], dtype=torch.float64)
        torch.testing.assert_close(pairwise_iou(ours, others), expected, rtol=0, atol=1e-9)

    def test_epsilon_is_added_to_the_union(self) -> None:
        side = math.sqrt(1e-9)
        box = boxes((0, 0, side, side))
        assert pairwise_iou(box, box).item() == pytest.approx(0.5, rel=1e-12)

    @pytest.mark.parametrize('empty', [(5, 5, 5, 5), (4, 4, 2, 6), (4, 4, 6, 2), (4, 4, 2, 2)])
    def test_an_empty_or_inverted_box_overlaps_nothing(self, empty: tuple[float, ...]) -> None:
        around = boxes((0, 0, 10, 10), empty)
        assert torch.equal(pairwise_iou(boxes(empty), around), torch.zeros(1, 2, dtype=torch.float64))

    def test_a_signed_area_gives_nan_where_this_gives_zero(self) -> None:
        # Why torchvision's function does not do: the areas -4 and 4 make a union of 0.
        inverted, other = boxes((4, 4, 2, 6)), boxes((10, 10, 12, 12))
        assert torchvision.ops.box_iou(inverted, other).isnan().all()
        assert pairwise_iou(inverted, other).item() == 0

    def test_ordinary_boxes_agree_with_torchvision(self) -> None:
        ours, others = random_boxes(2, 20, seed=0), random_boxes(2, 30, seed=1)
        expected = torchvision.ops.box_iou(ours, others)
        assert (expected > 0).any()
        torch.testing.assert_close(pairwise_iou(ours, others), expected, rtol=1e-9, atol=0)

    @pytest.mark.parametrize('count', [1, 3, 7, 50])
    def test_the_bits_of_an_element_do_not_depend_on_the_number_of_boxes(self, count: int) -> None:
        ours = random_boxes(61, seed=2, dtype=torch.float32)
        others = random_boxes(83, seed=3, dtype=torch.float32)
        assert torch.equal(pairwise_iou(ours[:count], others), pairwise_iou(ours, others)[:count])

    def test_nan_stays_with_its_box(self) -> None:
        found = pairwise_iou(boxes((0, 0, 2, 2), (math.nan, 0, 2, 2)), boxes((0, 0, 2, 2)))
        assert found.isnan().tolist() == [[False], [True]]


FINITE = {
    'inverted in x': ((6, 2, 3, 8), (0, 0, 10, 10)),
    'inverted in both': ((6, 8, 3, 2), (0, 0, 10, 10)),
    'zero width': ((4, 2, 4, 8), (0, 0, 10, 10)),
    'zero height': ((2, 4, 8, 4), (0, 0, 10, 10)),
    'a point': ((4, 4, 4, 4), (0, 0, 10, 10)),
    'nearly a point': ((4, 4, 4 + 4e-7, 4 + 4e-7), (0, 0, 10, 10)),
    'two equal points': ((4, 4, 4, 4), (4, 4, 4, 4)),
    'zeros': ((0, 0, 0, 0), (0, 0, 0, 0)),
    'coincident': ((0, 0, 10, 10), (0, 0, 10, 10)),
    'touching': ((10, 0, 20, 10), (0, 0, 10, 10)),
    'far away': ((1e6, 1e6, 1e6 + 5, 1e6 + 5), (0, 0, 10, 10)),
    'huge': ((-1e15, -1e15, 1e15, 1e15), (0, 0, 10, 10)),
    'huge and thin': ((-1e15, 5, 1e15, 5.001), (0, 0, 10, 10)),
    'huge and inverted': ((1e15, 1e15, -1e15, -1e15), (0, 0, 10, 10)),
    'huge, inverted, far': ((1e15, 3, -3e15, 5), (0, 0, 10, 10)),
}


def gradient(box: tuple[float, ...], target: tuple[float, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    leaf = boxes(box, dtype=dtype).requires_grad_()
    complete_iou(leaf, boxes(target, dtype=dtype)).sum().backward()
    assert leaf.grad is not None
    return leaf.grad[0]


class TestCompleteIou:
    def test_equal_boxes_score_one(self) -> None:
        assert complete_iou(boxes((3, 4, 9, 8)), boxes((3, 4, 9, 8))).item() == pytest.approx(1, abs=1e-8)

    def test_disjoint_squares_score_minus_their_distance(self) -> None:
        # Equal aspects, no overlap: 0 - 2² / (3² + 1²).
        assert complete_iou(boxes((0, 0, 1, 1)), boxes((2, 0, 3, 1))).item() == pytest.approx(-0.4, abs=1e-7)

    def test_crossed_boxes_by_hand(self) -> None:
        # 2x1 against 1x2 from one corner: overlap 1 of 3, centres (1, 1/2) and (1/2, 1), enclosing square of side 2.
        aspect = 4 / math.pi**2 * (math.atan(1 / 2) - math.atan(2)) ** 2
        weight = aspect / (1 - 1 / 3 + aspect)
        expected = 1 / 3 - 0.5 / 8 - weight * aspect
        assert complete_iou(boxes((0, 0, 2, 1)), boxes((0, 0, 1, 2))).item() == pytest.approx(expected, abs=1e-6)

    def test_epsilon_enters_in_three_places(self) -> None:
        # A point against itself: each of IoU, distance and weight is 0 / eps, none is NaN.
        assert complete_iou(boxes((5, 5, 5, 5)), boxes((5, 5, 5, 5))).item() == 0
        # Unit squares a diagonal apart: 0 / (2 + e) - 2 / (8 + e).
        found = complete_iou(boxes((0, 0, 1, 1)), boxes((1, 1, 2, 2)), eps=2.0).item()
        assert found == pytest.approx(-2 / 10, rel=1e-12)
        # Equal unit squares: 1 / (1 + e).
        assert complete_iou(boxes((0, 0, 1, 1)), boxes((0, 0, 1, 1)), eps=1.0).item() == pytest.approx(0.5, rel=1e-12)

    def test_torchvision_agrees_on_ordinary_boxes(self) -> None:
        ours, targets = random_boxes(200, seed=4), random_boxes(200, seed=5)
        expected = 1 - torchvision.ops.complete_box_iou_loss(ours, targets)
        torch.testing.assert_close(complete_iou(ours, targets), expected, rtol=1e-6, atol=1e-8)

    def test_gradient_is_that_of_the_formula_with_its_weight_frozen(self) -> None:
        ours, targets = random_boxes(40, seed=6), random_boxes(40, seed=7)
        sides, target_sides = ours[:, 2:] - ours[:, :2], targets[:, 2:] - targets[:, :2]

        def aspect(sides: Tensor) -> Tensor:
            angle = torch.atan2(target_sides[:, 0], target_sides[:, 1]) - torch.atan2(sides[:, 0], sides[:, 1])
            return 4 / math.pi**2 * angle**2

        frozen = aspect(sides)
        frozen = frozen / (1 - pairwise_iou(ours, targets).diagonal() + frozen + 1e-7)

        def by_difference(row: int, column: int, step: float = 1e-5) -> float:
            values = []
            for sign in (1, -1):
                moved = ours.clone()
                moved[row, column] += sign * step
                v = aspect(moved[:, 2:] - moved[:, :2])
                # Take out the weight that the function computes for the moved box, put in the frozen one.
                weight = v / (1 - pairwise_iou(moved, targets).diagonal() + v + 1e-7)
                values.append((complete_iou(moved, targets) + weight * v - frozen * v)[row].item())
            return (values[0] - values[1]) / (2 * step)

        leaf = ours.clone().requires_grad_()
        complete_iou(leaf, targets).sum().backward()
        expected = torch.tensor([[by_difference(row, column) for column in range(4)] for row in range(40)])
        torch.testing.assert_close(leaf.grad, expected.double(), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
    @pytest.mark.parametrize('name', FINITE)
    def test_value_and_gradient_are_finite(self, name: str, dtype: torch.dtype, device: torch.device) -> None:
        box, target = (boxes(row, dtype=dtype).to(device) for row in FINITE[name])
        box.requires_grad_()
        value = complete_iou(box, target)
        value.sum().backward()
        assert value.isfinite().all()
        assert box.grad is not None
        assert box.grad.isfinite().all()

    def test_torchvision_gives_nan_where_this_is_finite(self) -> None:
        box = boxes((4, 4, 4, 4)).requires_grad_()
        torchvision.ops.complete_box_iou_loss(box, boxes((0, 0, 10, 10))).sum().backward()
        assert box.grad is not None
        assert not box.grad.isfinite().all()

    @pytest.mark.parametrize('name', ['inverted in x', 'inverted in both', 'huge and inverted'])
    def test_an_inverted_box_is_moved_by_its_centre_alone(self, name: str) -> None:
        box, target = FINITE[name]
        leaf, other = boxes(box).requires_grad_(), boxes(target)
        diagonal = torch.maximum(leaf[:, 2:], other[:, 2:]) - torch.minimum(leaf[:, :2], other[:, :2])
        offset = (leaf[:, :2] + leaf[:, 2:] - other[:, :2] - other[:, 2:]) / 2
        (-(offset**2).sum() / ((diagonal**2).sum() + 1e-7)).backward()
        assert leaf.grad is not None
        torch.testing.assert_close(gradient(box, target), leaf.grad[0], rtol=1e-12, atol=0)

    def test_a_collapsed_side_has_a_moderate_gradient(self) -> None:
        # An atan of the ratio w / (h + 1e-7) would have a slope of 1e5 here.
        assert gradient((2, 4, 8, 4), (0, 0, 10, 10)).abs().max() < 1
        assert gradient((4, 2, 4, 8), (0, 0, 10, 10)).abs().max() < 1
