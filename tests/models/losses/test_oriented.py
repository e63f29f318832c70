import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lucid.models.losses import OrientedLoss
from lucid.models.losses.oriented import angle_loss
from lucid.structures import AnchorGrid, OrientedOutputs, Targets
from lucid.structures.anchors import decode_boxes

OPTIONS = ({'topk': 10, 'rotated': True}, {'topk': 7, 'topk_final': 1, 'rotated': True})
TERMS = ('cls', 'rbox', 'rl1', 'angle')
GAINS = {'cls': 0.5, 'rbox': 7.5, 'rl1': 6.0, 'angle': 0.25}
PI = math.pi


def total(losses: dict[str, Tensor]) -> Tensor:
    return sum(value for name, value in losses.items() if 'loss' in name)


def reference_distance(box: list[Tensor], target: list[float]) -> Tensor:
    """Hellinger distance of two Gaussians, with matrices; sides below 1e-4 count as that."""

    def covariance(w: Tensor, h: Tensor, theta: Tensor) -> Tensor:
        w, h, cos, sin = w.clamp(min=1e-4), h.clamp(min=1e-4), theta.cos(), theta.sin()
        turn = torch.stack((torch.stack((cos, -sin)), torch.stack((sin, cos))))
        return turn @ torch.diag(torch.stack((w * w, h * h)) / 12) @ turn.T

    goal = [torch.tensor(value, dtype=torch.float64) for value in target]
    first, second = covariance(*box[2:]), covariance(*goal[2:])
    both = (first + second) / 2
    apart = torch.stack((box[0] - goal[0], box[1] - goal[1]))
    distance = apart @ torch.linalg.solve(both, apart) / 8
    distance = distance + (both.det() / (first.det() * second.det()).sqrt()).log() / 2
    return (1 - torch.exp(-distance)).sqrt()


def reference_branch(
    logits_BAC: Tensor,
    raw_BA4: Tensor,
    angles_BA1: Tensor,
    targets: Targets,
    grid: AnchorGrid,
    assign: Callable,
    options: dict[str, Any],
) -> dict[str, Tensor]:
    """The terms of a branch, without gains: selects positives and loops over them."""
    positives = assign(logits_BAC, decode_boxes(raw_BA4, grid), targets, grid, **options)
    soft = torch.zeros_like(logits_BAC)
    sums = {name: raw_BA4.sum() * 0 for name in TERMS[1:]}
    for one in positives:
        soft[one.image, one.anchor, one.label] = one.weight
        (x, y), stride = grid.centers_A2[one.anchor].double(), grid.strides_A[one.anchor].double()
        left, top, right, bottom = raw_BA4[one.image, one.anchor]
        theta = angles_BA1[one.image, one.anchor, 0]
        found = [x + (right - left) * stride / 2, y + (bottom - top) * stride / 2]
        found += [(left + right) * stride, (top + bottom) * stride, theta]
        goal = targets.rboxes_BM5[one.image, one.slot].double().tolist()
        sums['rbox'] = sums['rbox'] + one.weight * reference_distance(found, goal)
        for value, other in zip(found[:4], goal[:4], strict=True):
            sums['rl1'] = sums['rl1'] + one.weight * (value - other).abs() / stride
        turn = (theta - goal[4] + PI / 2).remainder(PI) - PI / 2
        aspect = math.exp(-(math.log(goal[2] / goal[3]) ** 2) / 9)
        sums['angle'] = sums['angle'] + one.weight * aspect * torch.sin(2 * turn) ** 2
    norm = max(sum(one.weight for one in positives), 1.0)
    sums['cls'] = F.binary_cross_entropy_with_logits(logits_BAC, soft, reduction='sum')
    return {name: sums[name] / norm for name in TERMS}


class TestAgainstTheReference:
    @pytest.mark.parametrize('tied', [True, False])
    @pytest.mark.parametrize('seed', range(2))
    def test_losses_and_gradients_of_crowded_scenes(
        self, seed: int, tied: bool, device: torch.device, task_scene: Callable, reference_assign: Callable
    ) -> None:
        scene = task_scene('oriented', seed, tied=tied)
        plain = OrientedOutputs(*(tensor.detach().clone().requires_grad_() for tensor in scene.outputs))
        branches = [
            reference_branch(*fields, scene.targets, scene.grid, reference_assign, options)
            for fields, options in zip(
                (
                    (plain.o2m_logits_BAC, plain.o2m_boxes_BA4, plain.o2m_angles_BA1),
                    (plain.o2o_logits_BAC, plain.o2o_boxes_BA4, plain.o2o_angles_BA1),
                ),
                OPTIONS,
                strict=True,
            )
        ]
        alpha = torch.tensor(0.3).item()
        expected = {}
        for name in TERMS:
            o2m, o2o = (GAINS[name] * branch[name] for branch in branches)
            expected |= {f'loss_{name}': alpha * o2m + (1 - alpha) * o2o, f'o2m_{name}': o2m, f'o2o_{name}': o2o}

        scene.loss.branch_weight.fill_(alpha)
        found, gradients = scene.to(device).run()
        assert found.keys() == expected.keys()
        for name, value in found.items():
            assert value > 0, name
            torch.testing.assert_close(value.cpu(), expected[name].detach(), rtol=1e-12, atol=0, msg=name)
        for name, ours, theirs in zip(
            OrientedOutputs._fields, gradients, torch.autograd.grad(total(expected), plain), strict=True
        ):
            scale = theirs.abs().max().item()
            assert scale > 0, name
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-11, atol=1e-12 * scale, msg=name)


def one_anchor(angle: float, rbox: tuple[float, ...]) -> tuple[OrientedOutputs, Targets, AnchorGrid]:
    """One anchor at (8, 8) of stride 8 that predicts (0, 4, 16, 12), turned, in both branches; its IoU is 1."""
    grid = AnchorGrid(torch.tensor([[8.0, 8.0]]), torch.tensor([8.0]))
    boxes = torch.tensor([[[1.0, 0.5, 1.0, 0.5]]], dtype=torch.float64)
    logits, angles = torch.zeros(1, 1, 1, dtype=torch.float64), torch.tensor([[[angle]]], dtype=torch.float64)
    targets = Targets(
        torch.tensor([[[0.0, 4, 16, 12]]]),
        torch.zeros(1, 1).long(),
        torch.ones(1, 1, dtype=torch.bool),
        rboxes_BM5=torch.tensor([[rbox]], dtype=torch.float64),
    )
    return OrientedOutputs(logits, boxes, logits, boxes, angles, angles), targets, grid


class TestByHand:
    def test_a_box_that_is_right_costs_its_class_alone(self) -> None:
        found = OrientedLoss(num_classes=1)(*one_anchor(0.0, (8, 8, 16, 8, 0)))
        # The soft weight is 1, to the epsilon of the IoU.
        assert found['loss_cls'].item() == pytest.approx(0.5 * math.log(2) * 1.0 * (2 - 1), rel=1e-9)
        assert found['loss_rbox'].item() == found['loss_rl1'].item() == found['loss_angle'].item() == 0

    def test_a_turn_by_itself(self) -> None:
        found = OrientedLoss(num_classes=1)(*one_anchor(PI / 8, (8, 8, 16, 8, 0)))
        # sin²(pi/4) is 1/2; aspect 2.
        assert found['o2m_angle'].item() == pytest.approx(0.25 * 0.5 * math.exp(-(math.log(2) ** 2) / 9), rel=1e-9)
        # Excess sin²(pi/8) · (16² - 8²)² / (4 · 16² · 8²).
        excess = math.sin(PI / 8) ** 2 * 192**2 / (4 * 128**2)
        assert found['o2o_rbox'].item() == pytest.approx(7.5 * math.sqrt(1 - (1 + excess) ** -0.5), rel=1e-9)
        assert found['loss_rl1'].item() == 0

    def test_sides_and_centre_by_themselves(self) -> None:
        found = OrientedLoss(num_classes=1)(*one_anchor(0.0, (9, 6, 20, 4, 0)))
        assert found['loss_rl1'].item() == pytest.approx(6 * (1 + 2 + 4 + 4) / 8, rel=1e-9)
        assert found['loss_angle'].item() == 0

    @pytest.mark.parametrize('turns', [-3, -1, 1, 2, 10])
    def test_half_turns_change_nothing(self, turns: int) -> None:
        loss = OrientedLoss(num_classes=1)
        expected, found = (loss(*one_anchor(0.4 + turn * PI, (9, 6, 20, 4, 0.1))) for turn in (0, turns))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=0)

    def test_the_weight_of_the_angle_at_several_aspects(self) -> None:
        # Published for a scale of 3: 1, 0.948, 0.750, 0.555, 0.369 at 1, 2, 5, 10, 20.
        targets = torch.tensor([(0, 0, aspect, 1, 0) for aspect in (1.0, 2, 5, 10, 20)], dtype=torch.float64)
        turned = targets + torch.tensor([0, 0, 0, 0, PI / 4], dtype=torch.float64)
        found = angle_loss(turned, targets, aspect_scale=3.0).tolist()
        assert [round(value, 3) for value in found] == [1.0, 0.948, 0.75, 0.555, 0.369]

    def test_the_upright_boxes_have_no_loss_of_their_own(self) -> None:
        names = OrientedLoss(num_classes=1)(*one_anchor(0.0, (8, 8, 16, 8, 0)))
        assert not {'loss_box', 'loss_l1', 'o2m_box', 'o2o_l1'} & set(names)


class TestStability:
    @pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
    @pytest.mark.parametrize('aspect', [1.0, 1000.0])
    @pytest.mark.parametrize('change', [0.0, 1e-7, 1e-3])
    def test_boxes_almost_or_exactly_right_have_finite_gradients(
        self, aspect: float, change: float, dtype: torch.dtype
    ) -> None:
        outputs, targets, grid = one_anchor(0.25, (8, 8, 16 * (1 + change), 16 / aspect, 0.25 * (1 - change)))
        low, high = 1.0, 0.5 * 2 / aspect
        boxes = torch.tensor([[[low, high, low, high]]], dtype=dtype, requires_grad=True)
        angles = outputs.o2m_angles_BA1.to(dtype).requires_grad_()
        outputs = outputs._replace(
            o2m_boxes_BA4=boxes, o2o_boxes_BA4=boxes, o2m_angles_BA1=angles, o2o_angles_BA1=angles
        )
        losses = OrientedLoss(num_classes=1)(outputs, targets, grid)
        assert all(value.isfinite() for value in losses.values())
        gradients = torch.autograd.grad(total(losses), (boxes, angles))
        assert all(gradient.isfinite().all() for gradient in gradients)
        if change == 1e-3:
            assert all(gradient.any() for gradient in gradients)

    def test_a_true_box_without_sides_has_finite_terms(self) -> None:
        losses = OrientedLoss(num_classes=1)(*one_anchor(0.25, (8, 8, 0, 0, 0)))
        assert all(value.isfinite() for value in losses.values())


class TestAssignment:
    def test_candidates_lie_in_the_rotated_rectangle(self, task_scene: Callable) -> None:
        """A thin diagonal box: of its envelope's anchors only those on the diagonal learn."""
        scene = task_scene('oriented', 0)
        one = torch.zeros_like(scene.targets.valid_BM)
        one[0, 0] = True
        targets = scene.targets._replace(valid_BM=one, boxes_BM4=scene.targets.boxes_BM4.clone())
        targets.rboxes_BM5[0, 0] = torch.tensor([32.0, 32, 64, 8, PI / 4])
        targets.boxes_BM4[0, 0] = torch.tensor([6.5, 6.5, 57.5, 57.5])
        for assigner in (scene.loss.assigner_o2m, scene.loss.assigner_o2o):
            boxes = decode_boxes(scene.outputs.o2m_boxes_BA4, scene.grid)
            found = assigner.assign(scene.outputs.o2m_logits_BAC, boxes, targets, scene.grid)
            x, y = scene.grid.centers_A2[found.foreground_BA[0]].T
            assert len(x) >= 1
            assert torch.equal(x, y)
            upright = copy.copy(assigner)
            upright.rotated = False
            found = upright.assign(scene.outputs.o2m_logits_BAC, boxes, targets, scene.grid)
            x, y = scene.grid.centers_A2[found.foreground_BA[0]].T
            assert not torch.equal(x, y)

    def test_a_config_may_return_to_upright_candidates(self) -> None:
        loss = OrientedLoss(num_classes=1, assigner_o2o={'rotated': False})
        assert loss.assigner_o2m.rotated
        assert not loss.assigner_o2o.rotated
        assert loss.assigner_o2o.topk_final == 1


class TestConfiguration:
    @pytest.mark.parametrize('scale', [0.0, -1.0, float('nan')])
    def test_a_scale_of_aspects_that_is_none_is_refused(self, scale: float) -> None:
        with pytest.raises(ValueError, match='aspect_scale='):
            OrientedLoss(num_classes=1, aspect_scale=scale)
