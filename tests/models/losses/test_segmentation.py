import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lucid.models.losses import DetectionLoss, SegmentationLoss
from lucid.structures import AnchorGrid, RawOutputs, SegmentOutputs, Targets
from lucid.structures.anchors import decode_boxes

OPTIONS = ({'topk': 10}, {'topk': 7, 'topk_final': 1})


def total(losses: dict[str, Tensor]) -> Tensor:
    return sum(value for name, value in losses.items() if 'loss' in name)


def cells_of(box: tuple[float, ...], height: int, width: int) -> tuple[Tensor, float]:
    """Which cells have their centre in a box in pixels, and the box's area in cells."""
    x1, y1, x2, y2 = (value / 4 for value in box)
    inside = [[x1 <= x + 0.5 < x2 and y1 <= y + 0.5 < y2 for x in range(width)] for y in range(height)]
    return torch.tensor(inside), max((x2 - x1) * (y2 - y1), 1.0)


def reference_masks(
    positives: list[Any], coefficients_BAK: Tensor, prototypes_BKHW: Tensor, masks_BMHW: Tensor
) -> Tensor:
    """Positive by positive, over selected cells."""
    height, width = prototypes_BKHW.shape[2:]
    terms = []
    for one in positives:
        inside, area = cells_of(one.box, height, width)
        logits = sum(
            c * p for c, p in zip(coefficients_BAK[one.image, one.anchor], prototypes_BKHW[one.image], strict=True)
        )
        truth = masks_BMHW[one.image, one.slot].double()
        terms.append(F.binary_cross_entropy_with_logits(logits[inside], truth[inside], reduction='sum') / area)
    return sum(terms) / max(len(terms), 1)


def reference_semantic(logits_BCHW: Tensor, targets: Targets) -> Tensor:
    """Class by class, from masks that are united in loops."""
    batch, classes, height, width = logits_BCHW.shape
    truth = torch.zeros(batch, classes, height, width, dtype=torch.float64)
    for image in range(batch):
        for slot in targets.valid_BM[image].nonzero().flatten().tolist():
            label = int(targets.labels_BM[image, slot])
            for y, x in targets.masks_BMHW[image, slot].nonzero().tolist():
                truth[image, label, y // 2, x // 2] = 1
    entropy = F.binary_cross_entropy_with_logits(logits_BCHW, truth)
    dice = []
    for image in range(batch):
        for label in range(classes):
            p, t = logits_BCHW[image, label].sigmoid(), truth[image, label]
            dice.append(1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1))
    return entropy + sum(dice) / len(dice)


class TestAgainstTheReference:
    @pytest.mark.parametrize('tied', [True, False])
    @pytest.mark.parametrize('seed', range(2))
    def test_losses_and_gradients_of_crowded_scenes(
        self, seed: int, tied: bool, device: torch.device, task_scene: Callable, reference_assign: Callable
    ) -> None:
        scene = task_scene('segment', seed, tied=tied, side=32)
        plain = SegmentOutputs(*(tensor.detach().clone().requires_grad_() for tensor in scene.outputs))
        positives = [
            reference_assign(logits, decode_boxes(boxes, scene.grid), scene.targets, scene.grid, **options)
            for logits, boxes, options in zip(plain[0:4:2], plain[1:4:2], OPTIONS, strict=True)
        ]
        assert all(positives)
        alpha = torch.tensor(0.3).item()
        detection = DetectionLoss(num_classes=3)
        detection.branch_weight.fill_(alpha)
        expected = detection(RawOutputs(*plain[:4]), scene.targets, scene.grid)
        o2m, o2o = (
            2.5 * reference_masks(found, coefficients, plain.prototypes_BKHW, scene.targets.masks_BMHW)
            for found, coefficients in zip(positives, plain[4:6], strict=True)
        )
        semantic = 0.5 * reference_semantic(plain.semantic_BCHW, scene.targets)
        expected |= {'loss_mask': alpha * o2m + (1 - alpha) * o2o, 'o2m_mask': o2m, 'o2o_mask': o2o}
        expected |= {'loss_semantic': semantic, 'semantic': semantic}

        scene = scene.to(device)
        scene.loss.branch_weight.fill_(0.3)
        found, gradients = scene.run()
        assert found.keys() == expected.keys()
        for name, value in found.items():
            torch.testing.assert_close(value.cpu(), expected[name].detach(), rtol=1e-12, atol=0, msg=name)
        for name, ours, theirs in zip(
            SegmentOutputs._fields, gradients, torch.autograd.grad(total(expected), plain), strict=True
        ):
            scale = theirs.abs().max().item()
            assert scale > 0, name
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-12, atol=1e-13 * scale, msg=name)


def by_hand(box: tuple[float, ...], mask: list[list[int]]) -> tuple[SegmentOutputs, Targets, AnchorGrid]:
    """One anchor, one box, one prototype of ones on a grid of 2 x 4; the coefficient is ln 3 in either branch."""
    grid = AnchorGrid(torch.tensor([[4.0, 4.0]]), torch.tensor([8.0]))
    boxes, logits = torch.full((1, 1, 4), 0.5), torch.zeros(1, 1, 1)
    coefficient = torch.full((1, 1, 1), math.log(3), dtype=torch.float64)
    prototypes = torch.ones(1, 1, 2, 4)
    raw = (logits, boxes, logits, boxes, coefficient, coefficient, prototypes)
    outputs = SegmentOutputs(*(tensor.double() for tensor in raw), semantic_BCHW=None)
    targets = Targets(
        torch.tensor([[box]]), torch.zeros(1, 1).long(), torch.ones(1, 1, dtype=torch.bool), torch.tensor([[mask]]) > 0
    )
    return outputs, targets, grid


class TestMasksByHand:
    # A cell of the mask costs ln(4/3), another one ln 4.
    IN, OUT = math.log(4 / 3), math.log(4)

    def test_cells_inside_the_box_are_summed_and_divided_by_its_area(self) -> None:
        # 8 x 8 pixels are the left 2 x 2 cells, of which one is covered; what lies outside of the box costs nothing.
        found = SegmentationLoss(num_classes=1)(*by_hand((0, 0, 8, 8), [[1, 0, 1, 1], [0, 0, 1, 1]]))
        assert found['o2m_mask'].item() == pytest.approx(2.5 * (self.IN + 3 * self.OUT) / 4, rel=1e-12)
        assert found['loss_mask'].item() == pytest.approx(found['o2o_mask'].item(), rel=1e-12)

    def test_a_centre_on_the_left_or_upper_edge_is_inside_and_on_the_others_outside(self) -> None:
        # From cell centre to cell centre, (2, 2) to (14, 6): columns 0..2, row 0; the area is 3 x 1 cells.
        found = SegmentationLoss(num_classes=1)(*by_hand((2, 2, 14, 6), [[1, 1, 0, 1], [1, 1, 1, 1]]))
        assert found['o2m_mask'].item() == pytest.approx(2.5 * (2 * self.IN + self.OUT) / 3, rel=1e-12)

    def test_an_area_below_one_cell_counts_as_one(self) -> None:
        found = SegmentationLoss(num_classes=1)(*by_hand((1, 1, 3, 3), [[1, 0, 0, 0], [0, 0, 0, 0]]))
        assert found['o2m_mask'].item() == pytest.approx(2.5 * self.IN, rel=1e-12)

    def test_a_box_between_the_centres_costs_nothing_and_counts(self) -> None:
        found = SegmentationLoss(num_classes=1)(*by_hand((2.5, 2.5, 5.5, 5.5), [[1, 1, 1, 1]] * 2))
        assert found['o2m_mask'].item() == 0

    def test_the_mean_runs_over_the_positives_of_the_whole_batch(self) -> None:
        # A second image whose box is twice as wide, and whose mask is empty: (1 / 4 + 1) / 2 of the cells cost.
        first, second = by_hand((0, 0, 8, 8), [[1, 1, 1, 1]] * 2), by_hand((0, 0, 16, 8), [[0] * 4] * 2)
        outputs, targets = (
            type(one)(*(None if a is None else torch.cat((a, b)) for a, b in zip(one, other, strict=True)))
            for one, other in zip(first[:2], second[:2], strict=True)
        )
        found = SegmentationLoss(num_classes=1)(outputs, targets, first[2])
        assert found['o2m_mask'].item() == pytest.approx(2.5 * (self.IN + self.OUT) / 2, rel=1e-12)


class TestSemantic:
    def test_without_a_map_the_term_is_left_out(self, task_scene: Callable) -> None:
        scene = task_scene('segment', 0)
        whole, _ = scene.run()
        found, _ = scene._replace(outputs=scene.outputs._replace(semantic_BCHW=None)).run()
        assert whole.keys() - found.keys() == {'loss_semantic', 'semantic'}
        assert all(torch.equal(value, whole[name]) for name, value in found.items())

    @pytest.mark.parametrize('cells', [1, 2, 4])
    def test_a_cell_of_the_map_may_be_any_whole_number_of_cells_of_the_masks(
        self, cells: int, task_scene: Callable
    ) -> None:
        scene = task_scene('segment', 0)
        side = 16 // cells
        logits = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        found, _ = scene._replace(outputs=scene.outputs._replace(semantic_BCHW=logits)).run()
        truth = torch.zeros_like(logits)
        for image, slot in scene.targets.valid_BM.nonzero().tolist():
            for y, x in scene.targets.masks_BMHW[image, slot].nonzero().tolist():
                truth[image, scene.targets.labels_BM[image, slot], y // cells, x // cells] = 1
        p = logits.sigmoid()
        dice = 1 - (2 * (p * truth).sum((2, 3)) + 1) / ((p + truth).sum((2, 3)) + 1)
        expected = F.binary_cross_entropy_with_logits(logits, truth) + dice.mean()
        torch.testing.assert_close(found['semantic'], 0.5 * expected, rtol=1e-12, atol=0)


class TestShapes:
    def test_masks_of_another_size_than_the_prototypes_are_refused_with_both_sizes(self, task_scene: Callable) -> None:
        scene = task_scene('segment', 0)
        targets = scene.targets._replace(masks_BMHW=scene.targets.masks_BMHW[..., :8, :8])
        with pytest.raises(ValueError, match=r'\(16, 16\) cells .* \(8, 8\)'):
            scene.loss(scene.outputs, targets, scene.grid)

    def test_a_semantic_map_that_does_not_divide_the_mask_grid_is_refused(self, task_scene: Callable) -> None:
        scene = task_scene('segment', 0)
        outputs = scene.outputs._replace(semantic_BCHW=scene.outputs.semantic_BCHW[..., :7])
        with pytest.raises(ValueError, match=r'semantic map has \(8, 7\)'):
            scene.loss(outputs, scene.targets, scene.grid)

    def test_a_semantic_map_whose_cells_are_no_squares_is_refused(self, task_scene: Callable) -> None:
        scene = task_scene('segment', 0)
        outputs = scene.outputs._replace(semantic_BCHW=scene.outputs.semantic_BCHW[..., :4])
        with pytest.raises(ValueError, match=r'semantic map has \(8, 4\)'):
            scene.loss(outputs, scene.targets, scene.grid)

    def test_the_missing_masks_are_asked_of_the_loader_too(self, task_scene: Callable) -> None:
        scene = task_scene('segment', 0)
        with pytest.raises(ValueError, match='masks=True'):
            scene.loss(scene.outputs, Targets(*scene.targets[:3]), scene.grid)
