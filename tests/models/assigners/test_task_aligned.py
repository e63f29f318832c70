from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lucid.models.assigners import TaskAlignedAssigner
from lucid.registry import TASK_UTILS
from lucid.structures import AnchorGrid, Assignment, Targets
from lucid.structures.anchors import decode_boxes, make_anchor_grid

BRANCHES = {'o2m': {'topk': 10}, 'o2o': {'topk': 7, 'topk_final': 1}}
Expected = namedtuple('Expected', ('foreground_BA', 'index_BA', 'labels_BA', 'boxes_BA4', 'weight_BA'))
FIELDS = Expected._fields


def to(device: torch.device, *tuples: Any) -> list[Any]:
    return [type(one)(*(tensor if tensor is None else tensor.to(device) for tensor in one)) for one in tuples]


def expected_assignment(positives: list[Any], like: Tensor) -> Expected:
    batch, anchors = like.shape[:2]
    index = torch.full((batch, anchors), -1)
    labels = torch.full((batch, anchors), -1)
    boxes = torch.zeros(batch, anchors, 4, dtype=like.dtype)
    weight = torch.zeros(batch, anchors, dtype=like.dtype)
    for one in positives:
        assert index[one.image, one.anchor] == -1, 'the reference gave one anchor to two boxes'
        index[one.image, one.anchor] = one.slot
        labels[one.image, one.anchor] = one.label
        boxes[one.image, one.anchor] = torch.tensor(one.box)
        weight[one.image, one.anchor] = one.weight
    return Expected(index >= 0, index, labels, boxes, weight)


def assert_same(found: Assignment, expected: Expected) -> None:
    for name in FIELDS[:4]:
        assert torch.equal(getattr(found, name).cpu(), getattr(expected, name)), name
    torch.testing.assert_close(found.weight_BA.cpu(), expected.weight_BA, rtol=1e-12, atol=0)
    assert_picks(found)


def assert_picks(found: Assignment) -> None:
    """The kept picks of each box are exactly the anchors that go to it."""
    pairs = found.kept_BMP.nonzero().tolist()
    picked = [(image, box, int(found.picks_BMP[image, box, pick])) for image, box, pick in pairs]
    owned = [
        (image, int(found.index_BA[image, anchor]), anchor) for image, anchor in found.foreground_BA.nonzero().tolist()
    ]
    assert sorted(picked) == sorted(owned)


def one_image(
    boxes: list[tuple[float, ...]], predictions: dict[int, tuple[float, tuple[float, ...]]], side: int = 64
) -> tuple[Tensor, Tensor, Targets, AnchorGrid]:
    """One class; predicts probability and box at the given anchors, an empty box at all others."""
    grid = make_anchor_grid((side, side))
    anchors = grid.strides_A.numel()
    logits = torch.full((1, anchors, 1), -20.0, dtype=torch.float64)
    predicted = torch.zeros(1, anchors, 4, dtype=torch.float64)
    for anchor, (probability, box) in predictions.items():
        logits[0, anchor, 0] = torch.tensor(probability, dtype=torch.float64).logit()
        predicted[0, anchor] = torch.tensor(box, dtype=torch.float64)
    count = len(boxes)
    valid = torch.ones(1, count, dtype=torch.bool)
    return logits, predicted, Targets(torch.tensor([boxes]).float(), torch.zeros(1, count).long(), valid), grid


class TestAgainstTheReference:
    @pytest.mark.parametrize('branch', BRANCHES)
    @pytest.mark.parametrize('tied', [True, False])
    def test_crowded_scenes_are_assigned_exactly(
        self, branch: str, tied: bool, device: torch.device, make_scene: Callable, reference_assign: Callable
    ) -> None:
        for seed in range(12):
            outputs, targets, grid = make_scene(seed, tied=tied, capacity=(8, 24)[seed % 2])
            outputs, targets, grid = to(device, outputs, targets, grid)
            logits, boxes = outputs.o2m_logits_BAC, decode_boxes(outputs.o2m_boxes_BA4, grid)
            assigner = TaskAlignedAssigner(**BRANCHES[branch])
            found = assigner.assign(logits, boxes, targets, grid)
            positives = reference_assign(logits, boxes, targets, grid, **BRANCHES[branch])
            assert len(positives) > targets.valid_BM.sum() / 2
            assert_same(found, expected_assignment(positives, boxes))
            narrow = assigner.narrowed(found)
            assert narrow.picks_BMP.shape[2] == narrow.kept_BMP.shape[2] == {'o2m': 10, 'o2o': 1}[branch]
            assert_picks(narrow)

    def test_a_larger_image_and_other_sizes_of_small_boxes(
        self, make_scene: Callable, reference_assign: Callable
    ) -> None:
        options = {'topk': 13, 'topk_final': 4, 'small_side': 20.0, 'small_reference': 24.0}
        outputs, targets, grid = make_scene(0, side=160, batch=2, capacity=20)
        boxes = decode_boxes(outputs.o2o_boxes_BA4, grid)
        found = TaskAlignedAssigner(**options).assign(outputs.o2o_logits_BAC, boxes, targets, grid)
        expected = expected_assignment(reference_assign(outputs.o2o_logits_BAC, boxes, targets, grid, **options), boxes)
        assert_same(found, expected)

    def test_the_scenes_have_ties_that_another_order_would_break_otherwise(self, make_scene: Callable) -> None:
        # The control of the tests above: the anchors in reverse order are not the same assignment in reverse order.
        outputs, targets, grid = make_scene(0)
        boxes = decode_boxes(outputs.o2m_boxes_BA4, grid)
        assigner = TaskAlignedAssigner(topk=10)
        there = assigner.assign(outputs.o2m_logits_BAC, boxes, targets, grid)
        flipped = AnchorGrid(grid.centers_A2.flip(0), grid.strides_A.flip(0))
        back = assigner.assign(outputs.o2m_logits_BAC.flip(1), boxes.flip(1), targets, flipped)
        assert not torch.equal(there.index_BA, back.index_BA.flip(1))
        reordered = Targets(*(field.flip(1) for field in targets[:3]))
        swapped = assigner.assign(outputs.o2m_logits_BAC, boxes, reordered, grid).index_BA
        swapped = torch.where(swapped >= 0, targets.valid_BM.shape[1] - 1 - swapped, -1)
        assert not torch.equal(there.index_BA, swapped)


class TestRotated:
    @pytest.mark.parametrize('branch', BRANCHES)
    @pytest.mark.parametrize('tied', [True, False])
    def test_crowded_scenes_are_assigned_exactly(
        self,
        branch: str,
        tied: bool,
        device: torch.device,
        make_scene: Callable,
        rotate: Callable,
        reference_assign: Callable,
    ) -> None:
        differ = 0
        for seed in range(8):
            outputs, targets, grid = make_scene(seed, tied=tied, capacity=(8, 24)[seed % 2])
            outputs, targets, grid = to(device, outputs, rotate(targets, seed), grid)
            logits, boxes = outputs.o2m_logits_BAC, decode_boxes(outputs.o2m_boxes_BA4, grid)
            options = {**BRANCHES[branch], 'rotated': True}
            found = TaskAlignedAssigner(**options).assign(logits, boxes, targets, grid)
            positives = reference_assign(logits, boxes, targets, grid, **options)
            assert len(positives) > targets.valid_BM.sum() / 2
            assert_same(found, expected_assignment(positives, boxes))
            upright = TaskAlignedAssigner(**BRANCHES[branch]).assign(logits, boxes, targets, grid)
            differ += int((upright.index_BA != found.index_BA).sum())
        assert differ > 20, 'the control: upright candidates are others'

    @pytest.mark.parametrize('branch', BRANCHES)
    def test_the_bits_do_not_depend_on_the_capacity_or_on_what_the_padding_holds(
        self, branch: str, device: torch.device, make_scene: Callable, rotate: Callable, poison: Callable
    ) -> None:
        assigner = TaskAlignedAssigner(**BRANCHES[branch], rotated=True)
        for seed in range(4):
            outputs, targets, grid = make_scene(seed, tied=seed % 2 == 0, dtype=torch.float32, side=96)
            targets = rotate(targets, seed)
            logits, boxes = outputs.o2m_logits_BAC.to(device), decode_boxes(outputs.o2m_boxes_BA4, grid).to(device)
            plain, grid = to(device, targets, grid)
            expected = assigner.assign(logits, boxes, plain, grid)
            assert expected.foreground_BA.any()
            for capacity in (8, 9, 64):
                found = assigner.assign(logits, boxes, to(device, poison(targets, capacity))[0], grid)
                for name in FIELDS:
                    assert torch.equal(getattr(found, name), getattr(expected, name)), (name, capacity)

    def test_boxes_and_weights_are_those_of_the_envelopes(self) -> None:
        # A thin box along the diagonal: its envelope is the whole image, and so is the prediction of anchor 0.
        whole = (0.0, 0.0, 64.0, 64.0)
        logits, boxes, targets, grid = one_image([whole], {0: (0.5, whole)})
        rbox = torch.tensor([[[32.0, 32, 84, 8, torch.pi / 4]]])
        found = TaskAlignedAssigner(topk=10, rotated=True).assign(
            logits, boxes, targets._replace(rboxes_BM5=rbox), grid
        )
        assert found.weight_BA[0, 0].item() == pytest.approx(1, rel=1e-9)
        assert found.boxes_BA4[0, 0].tolist() == list(whole)
        x, y = grid.centers_A2[found.foreground_BA[0]].T
        assert torch.equal(x, y)

    def test_targets_without_rotated_boxes_are_refused_with_the_remedy(self) -> None:
        with pytest.raises(ValueError, match=r"rotated=True .*targets=\('boxes', 'rboxes'\)"):
            TaskAlignedAssigner(topk=10, rotated=True).assign(*one_image([(0.0, 0.0, 64.0, 64.0)], {}))


class TestPicks:
    def test_equal_metrics_go_to_the_lowest_anchors(self, device: torch.device) -> None:
        # All anchors predict the same: the box covers everything, so the first ten win.
        grid = make_anchor_grid((64, 64))
        targets = Targets(torch.tensor([[[0.0, 0, 64, 64]]]), torch.tensor([[0]]), torch.tensor([[True]]))
        targets, grid = to(device, targets, grid)
        logits = torch.zeros(1, 84, 1, device=device)
        boxes = torch.tensor([16.0, 16, 48, 48], device=device).expand(1, 84, 4)
        found = TaskAlignedAssigner(topk=10).assign(logits, boxes, targets, grid)
        assert found.foreground_BA[0].nonzero().flatten().tolist() == list(range(10))

    @pytest.mark.parametrize('size', [12, 20, 30])
    def test_a_box_gets_all_its_candidates_even_where_every_metric_is_zero(self, size: int) -> None:
        # 12 px hold one centre of stride 8 in each direction (4), 20 px two (4, 12), 30 px three (4, 12, 20)...
        logits, boxes, targets, grid = one_image([(0.0, 0.0, size, size)], {})
        inside = (grid.centers_A2 <= size).all(dim=-1)
        found = TaskAlignedAssigner(topk=100).assign(logits, boxes, targets, grid)
        assert torch.equal(found.foreground_BA[0], inside)
        assert (found.weight_BA == 0).all()
        few = TaskAlignedAssigner(topk=3).assign(logits, boxes, targets, grid)
        assert few.foreground_BA.sum() == min(3, int(inside.sum()))

    def test_anchors_outside_the_box_are_never_picked_however_good(self) -> None:
        box = (0.0, 0.0, 16.0, 16.0)
        logits, boxes, targets, grid = one_image([box], {63: (0.99, box)})
        found = TaskAlignedAssigner(topk=10).assign(logits, boxes, targets, grid)
        assert not found.foreground_BA[0, 63]
        assert (
            found.foreground_BA.sum() == 6
        )  # four centres of stride 8, one of stride 16, one of stride 32 on the corner

    def test_more_picks_than_anchors_is_no_error(self) -> None:
        logits, boxes, targets, grid = one_image([(0.0, 0.0, 32.0, 32.0)], {}, side=32)
        found = TaskAlignedAssigner(topk=50).assign(logits, boxes, targets, grid)
        assert found.foreground_BA.all()
        assert grid.strides_A.numel() == 21

    def test_a_tiny_box_between_the_anchors_is_learnt_and_keeps_its_own_size(self) -> None:
        # 2x2 about (8, 8), the corner of four cells: widened to 0..16, which holds four centres of stride 8, the one of
        # stride 16 at (8, 8) and the one of stride 32 at (16, 16).
        logits, boxes, targets, grid = one_image([(7.0, 7.0, 9.0, 9.0)], {0: (0.5, (7.0, 7.0, 9.0, 10.0))})
        found = TaskAlignedAssigner(topk=10).assign(logits, boxes, targets, grid)
        assert found.foreground_BA[0].nonzero().flatten().tolist() == [0, 1, 8, 9, 64, 80]
        assert found.boxes_BA4[0, 0].tolist() == [7, 7, 9, 9]
        assert found.weight_BA[0, 0].item() == pytest.approx(4 / 6)  # IoU with the box itself, not the widened one
        without = TaskAlignedAssigner(topk=10, small_side=1e-9, small_reference=1e-9)
        found = without.assign(logits, boxes, targets, grid)
        assert found.foreground_BA[0].nonzero().flatten().tolist() == [64]  # whose centre is (8, 8)


class TestConflicts:
    def test_an_anchor_picked_by_two_boxes_goes_to_the_larger_metric(self) -> None:
        small, large = (0.0, 0.0, 12.0, 12.0), (0.0, 0.0, 16.0, 12.0)
        logits, boxes, targets, grid = one_image([small, large], {0: (0.5, large)})
        found = TaskAlignedAssigner(topk=1).assign(logits, boxes, targets, grid)
        assert found.index_BA[0, 0] == 1
        logits, boxes, targets, grid = one_image([large, small], {0: (0.5, large)})
        assert TaskAlignedAssigner(topk=1).assign(logits, boxes, targets, grid).index_BA[0, 0] == 0

    def test_equal_metrics_of_two_boxes_go_to_the_lower_box(self, device: torch.device) -> None:
        box = (0.0, 0.0, 16.0, 16.0)
        scene = one_image([box, box, box], {0: (0.5, box)})
        logits, boxes = (tensor.to(device) for tensor in scene[:2])
        targets, grid = to(device, *scene[2:])
        found = TaskAlignedAssigner(topk=10).assign(logits, boxes, targets, grid)
        assert found.index_BA[found.foreground_BA].tolist() == [0] * 6

    def test_a_box_that_lost_its_first_anchor_falls_back_to_its_next(self) -> None:
        # Both want anchor 0 most; box 1 fits it better, so box 0 takes its second choice, anchor 1, which fits itself.
        first, second = (0.0, 0.0, 24.0, 10.0), (0.0, 0.0, 24.0, 12.0)
        predictions = {0: (0.9, second), 1: (0.3, first)}
        logits, boxes, targets, grid = one_image([first, second], predictions)
        found = TaskAlignedAssigner(topk=7, topk_final=1).assign(logits, boxes, targets, grid)
        assert found.foreground_BA[0].nonzero().flatten().tolist() == [0, 1]
        assert found.index_BA[0, :2].tolist() == [1, 0]
        # Cut to one before the conflict, it would have nothing.
        early = TaskAlignedAssigner(topk=1).assign(logits, boxes, targets, grid)
        assert early.index_BA[0, :2].tolist() == [1, -1]

    def test_a_box_without_any_anchor_left_gets_none(self) -> None:
        box = (0.0, 0.0, 8.0, 8.0)  # one centre of stride 8 inside, and on its corner one of stride 16
        logits, boxes, targets, grid = one_image([box] * 2, {})
        found = TaskAlignedAssigner(topk=10).assign(logits, boxes, targets, grid)
        assert found.index_BA[found.foreground_BA].tolist() == [0, 0]


class TestWeights:
    def test_the_best_anchor_weighs_its_iou_and_the_rest_in_proportion_to_their_metric(self) -> None:
        box = (0.0, 0.0, 16.0, 16.0)
        predictions = {0: (0.8, (0.0, 0.0, 16.0, 12.0)), 1: (0.4, (0.0, 0.0, 16.0, 8.0))}
        logits, boxes, targets, grid = one_image([box], predictions)
        found = TaskAlignedAssigner(topk=10).assign(logits, boxes, targets, grid)
        best, other = 0.8 * 0.75**6, 0.4 * 0.5**6
        assert found.weight_BA[0, 0].item() == pytest.approx(0.75, rel=1e-9)
        assert found.weight_BA[0, 1].item() == pytest.approx(0.75 * other / best, rel=1e-9)

    def test_the_largest_iou_may_belong_to_another_anchor_than_the_largest_metric(self) -> None:
        box = (0.0, 0.0, 16.0, 16.0)
        predictions = {0: (0.9, (0.0, 0.0, 16.0, 12.0)), 1: (0.001, box)}
        logits, boxes, targets, grid = one_image([box], predictions)
        found = TaskAlignedAssigner(topk=10).assign(logits, boxes, targets, grid)
        assert found.weight_BA[0, 0].item() == pytest.approx(1.0, rel=1e-9)

    def test_the_maxima_run_over_the_anchors_that_are_kept(self) -> None:
        box = (0.0, 0.0, 16.0, 16.0)
        predictions = {0: (0.9, (0.0, 0.0, 16.0, 12.0)), 1: (0.001, box)}
        logits, boxes, targets, grid = one_image([box], predictions)
        found = TaskAlignedAssigner(topk=7, topk_final=1).assign(logits, boxes, targets, grid)
        assert found.weight_BA[0, :2].tolist() == [pytest.approx(0.75, rel=1e-9), 0]

    @pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
    def test_a_low_overlap_is_not_annihilated(self, dtype: torch.dtype) -> None:
        # IoU 0.01 at probability 0.01: t = 1e-14, far below an absolute floor of 1e-9, which would leave 1e-7.
        logits, boxes, targets, grid = one_image([(0.0, 0.0, 16.0, 16.0)], {0: (0.01, (0.0, 0.0, 1.6, 1.6))})
        found = TaskAlignedAssigner(topk=10).assign(logits.to(dtype), boxes.to(dtype), targets, grid)
        assert found.weight_BA[0, 0].item() == pytest.approx(0.01, rel=1e-5)

    def test_alpha_and_beta_are_the_exponents(self) -> None:
        box = (0.0, 0.0, 16.0, 16.0)
        predictions = {0: (0.8, (0.0, 0.0, 16.0, 12.0)), 1: (0.4, (0.0, 0.0, 16.0, 8.0))}
        logits, boxes, targets, grid = one_image([box], predictions)
        for beta in range(1, 8):
            found = TaskAlignedAssigner(topk=10, alpha=0.5, beta=beta).assign(logits, boxes, targets, grid)
            ratio = (0.4 / 0.8) ** 0.5 * (0.5 / 0.75) ** beta
            assert found.weight_BA[0, 1].item() == pytest.approx(0.75 * ratio, rel=1e-9)


class TestPadding:
    @pytest.mark.parametrize('branch', BRANCHES)
    @pytest.mark.parametrize('tied', [True, False])
    def test_the_bits_do_not_depend_on_the_capacity_or_on_what_the_padding_holds(
        self, branch: str, tied: bool, device: torch.device, make_scene: Callable, poison: Callable
    ) -> None:
        assigner = TaskAlignedAssigner(**BRANCHES[branch])
        for seed in range(4):
            outputs, targets, grid = make_scene(seed, tied=tied, dtype=torch.float32, side=96)
            logits, boxes = outputs.o2m_logits_BAC.to(device), decode_boxes(outputs.o2m_boxes_BA4, grid).to(device)
            plain, grid = to(device, targets, grid)
            expected = assigner.assign(logits, boxes, plain, grid)
            assert expected.foreground_BA.any()
            for capacity in (8, 9, 64, 128):
                padded = to(device, poison(targets, capacity))[0]
                found = assigner.assign(logits, boxes, padded, grid)
                for name in FIELDS:
                    assert torch.equal(getattr(found, name), getattr(expected, name)), (name, capacity)

    def test_the_bits_hold_where_vector_instructions_begin_at_another_element(self, poison: Callable) -> None:
        # A CPU computes the rest of a tensor that fills no vector by other code, which rounds exp and pow differently.
        # 21 anchors are such a rest at a capacity of 1 and inside of vectors at a larger one; all of them are kept.
        grid = make_anchor_grid((32, 32))
        generator = torch.Generator().manual_seed(0)
        truth = torch.tensor([[[0.0, 0, 32, 32]]]), torch.tensor([[0]]), torch.tensor([[True]])
        assigner = TaskAlignedAssigner(topk=21)
        pow_differs = False
        for _ in range(50):
            logits = torch.randn(1, 21, 1, generator=generator)
            boxes = torch.cat((torch.zeros(1, 21, 2), torch.rand(1, 21, 2, generator=generator) * 32), dim=-1)
            expected = assigner.assign(logits, boxes, Targets(*truth), grid)
            assert (expected.weight_BA > 0).all()
            for capacity in (2, 8, 64):
                found = assigner.assign(logits, boxes, poison(Targets(*truth), capacity), grid)
                assert torch.equal(found.weight_BA, expected.weight_BA)
            base = expected.weight_BA[0]
            pow_differs |= not torch.equal(base.pow(6.0), base.repeat(8).pow(6.0)[:21])
        if torch.backends.cpu.get_cpu_capability() in ('AVX2', 'AVX512'):
            assert pow_differs, 'the control: torch.pow would not have passed'

    @pytest.mark.parametrize('capacity', [0, 1, 8, 64])
    def test_without_boxes_everything_is_background(
        self, capacity: int, device: torch.device, make_scene: Callable, poison: Callable
    ) -> None:
        outputs, targets, grid = make_scene(0)
        nothing = poison(targets._replace(valid_BM=torch.zeros_like(targets.valid_BM)), capacity)
        outputs, nothing, grid = to(device, outputs, nothing, grid)
        found = TaskAlignedAssigner(topk=10).assign(outputs.o2m_logits_BAC, outputs.o2m_boxes_BA4, nothing, grid)
        assert not found.foreground_BA.any()
        assert (found.index_BA == -1).all()
        assert (found.labels_BA == -1).all()
        assert (found.boxes_BA4 == 0).all()
        assert (found.weight_BA == 0).all()

    def test_one_box_needs_a_capacity_of_one(self, make_scene: Callable, poison: Callable) -> None:
        outputs, targets, grid = make_scene(0)
        single = torch.zeros_like(targets.valid_BM)
        single[:, 0] = True
        boxes = decode_boxes(outputs.o2m_boxes_BA4, grid)
        found = [
            TaskAlignedAssigner(topk=10).assign(
                outputs.o2m_logits_BAC, boxes, poison(targets._replace(valid_BM=single), capacity), grid
            )
            for capacity in (1, 8)
        ]
        assert found[0].foreground_BA.any()
        assert all(torch.equal(one, other) for one, other in zip(*(each[:5] for each in found), strict=True))


class TestNumbers:
    @pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, dtype: torch.dtype, make_scene: Callable) -> None:
        outputs, targets, grid = make_scene(1, tied=False)
        logits, boxes = outputs.o2m_logits_BAC.to(dtype), decode_boxes(outputs.o2m_boxes_BA4, grid).to(dtype)
        found = TaskAlignedAssigner(topk=10).assign(logits, boxes, targets, grid)
        expected = TaskAlignedAssigner(topk=10).assign(logits.float(), boxes.float(), targets, grid)
        assert found.weight_BA.dtype == found.boxes_BA4.dtype == torch.float32
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))

    def test_the_result_carries_no_gradient(self, make_scene: Callable) -> None:
        outputs, targets, grid = make_scene(1)
        logits = outputs.o2m_logits_BAC.requires_grad_()
        boxes = decode_boxes(outputs.o2m_boxes_BA4.requires_grad_(), grid)
        found = TaskAlignedAssigner(topk=10).assign(logits, boxes, targets, grid)
        assert not any(tensor.requires_grad for tensor in found)

    @pytest.mark.parametrize('value', [float('nan'), float('inf'), float('-inf')])
    @pytest.mark.parametrize('where', ['logits', 'boxes', 'both', 'one anchor'])
    def test_predictions_that_are_not_finite_give_a_complete_assignment(
        self, value: float, where: str, device: torch.device, make_scene: Callable
    ) -> None:
        outputs, targets, grid = to(device, *make_scene(2, dtype=torch.float32))
        logits, boxes = outputs.o2m_logits_BAC.clone(), decode_boxes(outputs.o2m_boxes_BA4, grid)
        rows = slice(3, 4) if where == 'one anchor' else slice(None)
        if where != 'boxes':
            logits[:, rows] = value
        if where != 'logits':
            boxes[:, rows] = value
        for options in BRANCHES.values():
            first = TaskAlignedAssigner(**options).assign(logits, boxes, targets, grid)
            again = TaskAlignedAssigner(**options).assign(logits, boxes, targets, grid)
            assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
            assert first.foreground_BA.any()
            assert first.weight_BA.isfinite().all()
            assert first.index_BA.max() < targets.valid_BM.shape[1]

    def test_a_nan_metric_counts_as_zero(self) -> None:
        box = (0.0, 0.0, 16.0, 16.0)
        logits, boxes, targets, grid = one_image([box], {8: (0.5, box)})
        boxes[0, 0] = float('nan')
        found = TaskAlignedAssigner(topk=2).assign(logits, boxes, targets, grid)
        assert found.foreground_BA[0].nonzero().flatten().tolist() == [0, 8]
        assert found.weight_BA[0, [0, 8]].tolist() == [0, pytest.approx(1.0)]


class TestConfiguration:
    def test_the_registry_builds_it(self) -> None:
        built = TASK_UTILS.build({'type': 'TaskAlignedAssigner', 'topk': 7, 'topk_final': 1})
        assert isinstance(built, TaskAlignedAssigner)
        assert (built.alpha, built.beta, built.small_side, built.small_reference) == (1, 6, 8, 16)

    @pytest.mark.parametrize(
        ('options', 'message'),
        [
            ({'topk': 0}, 'topk=0'),
            ({'topk': 7, 'topk_final': 8}, 'topk_final=8'),
            ({'topk': 7, 'topk_final': 0}, 'topk_final=0'),
            ({'topk': 7, 'alpha': 0.0}, 'alpha=0.0'),
            ({'topk': 7, 'alpha': float('nan')}, 'alpha=nan'),
            ({'topk': 7, 'beta': 2.5}, 'beta=2.5'),
            ({'topk': 7, 'beta': float('inf')}, 'beta=inf'),
            ({'topk': 7, 'small_side': 0.0}, 'small_side=0.0'),
            ({'topk': 7, 'small_side': 17.0}, 'small_side=17.0'),
            ({'topk': 7, 'small_reference': float('inf')}, 'small_reference=inf'),
        ],
    )
    def test_a_value_out_of_range_is_refused_by_name(self, options: dict[str, float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            TaskAlignedAssigner(**options)
