import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lucid.engine.ema import ExponentialMovingAverage
from lucid.models.losses import DetectionLoss, KeypointLoss
from lucid.registry import MODELS
from lucid.structures import AnchorGrid, KeypointOutputs, RawOutputs, Targets
from lucid.structures.anchors import decode_boxes

OPTIONS = ({'topk': 10}, {'topk': 7, 'topk_final': 1})


def total(losses: dict[str, Tensor]) -> Tensor:
    return sum(value for name, value in losses.items() if 'loss' in name)


def reference_points(
    positives: list[Any], offsets_BAJ2: Tensor, raw_BAJ2: Tensor, targets: Targets, grid: AnchorGrid, loss: KeypointLoss
) -> tuple[Tensor, Tensor]:
    """RLE and OKS, point by point over what is labelled; the true box is the frame."""
    negatives, missing = [], []
    for one in positives:
        x1, y1, x2, y2 = one.box
        similar = []
        for joint, (x, y, seen) in enumerate(targets.keypoints_BMJ3[one.image, one.slot].tolist()):
            if seen == 0:
                continue
            (ax, ay), stride = grid.centers_A2[one.anchor].tolist(), grid.strides_A[one.anchor].item()
            dx, dy = offsets_BAJ2[one.image, one.anchor, joint]
            px, py = ax + dx * stride, ay + dy * stride
            sx, sy = (raw.sigmoid().clamp(min=1e-6) for raw in raw_BAJ2[one.image, one.anchor, joint])
            rx = ((x - x1) / max(x2 - x1, 1) - (px - x1) / max(x2 - x1, 1)) / sx
            ry = ((y - y1) / max(y2 - y1, 1) - (py - y1) / max(y2 - y1, 1)) / sy
            laplace = -(torch.log(torch.exp(-rx.abs()) / 2) + torch.log(torch.exp(-ry.abs()) / 2))
            negative = laplace + sx.log() + sy.log()
            if loss.flow is not None:
                negative = negative - loss.flow(torch.stack((rx, ry)))
            negatives.append(negative)
            square = (x - px) ** 2 + (y - py) ** 2
            area = max((x2 - x1) * (y2 - y1), 1)
            similar.append(torch.exp(-square / (2 * area * (2 * loss.sigmas_J[joint].item()) ** 2)))
        if similar:
            missing.append(1 - sum(similar) / len(similar))
    return tuple(sum(terms) / max(len(terms), 1) for terms in (negatives, missing))


class TestAgainstTheReference:
    @pytest.mark.parametrize('flow', [True, False])
    @pytest.mark.parametrize('tied', [True, False])
    @pytest.mark.parametrize('seed', range(2))
    def test_losses_and_gradients_of_crowded_scenes(
        self, seed: int, tied: bool, flow: bool, device: torch.device, task_scene: Callable, reference_assign: Callable
    ) -> None:
        options = {'oks_gain': 24.0, 'flow': flow, 'sigmas': (0.5, 0.25, 1.0, 2.0, 0.125)}
        scene = task_scene('keypoint', seed, options, tied=tied, side=32)
        scene.loss.double()
        plain = KeypointOutputs(*(tensor.detach().clone().requires_grad_() for tensor in scene.outputs))
        loss = copy.deepcopy(scene.loss)
        alpha = torch.tensor(0.3).item()
        detection = DetectionLoss(num_classes=3)
        detection.branch_weight.fill_(alpha)
        expected = detection(RawOutputs(*plain[:4]), scene.targets, scene.grid)
        branches = []
        for branch in range(2):
            logits, boxes = plain[2 * branch], decode_boxes(plain[2 * branch + 1], scene.grid)
            positives = reference_assign(logits, boxes, scene.targets, scene.grid, **OPTIONS[branch])
            assert positives
            fields = plain.o2m_points_BAJ2, plain.o2m_sigmas_BAJ2
            if branch:
                fields = plain.o2o_points_BAJ2, plain.o2o_sigmas_BAJ2
            branches.append(reference_points(positives, *fields, scene.targets, scene.grid, loss))
        for name, gain, o2m, o2o in zip(('keypoint', 'oks'), (1.0, 24.0), *branches, strict=True):
            blended = alpha * gain * o2m + (1 - alpha) * gain * o2o
            expected |= {f'loss_{name}': blended, f'o2m_{name}': gain * o2m, f'o2o_{name}': gain * o2o}

        scene.loss.branch_weight.fill_(alpha)
        found, gradients = scene.to(device).run()
        assert found.keys() == expected.keys()
        for name, value in found.items():
            torch.testing.assert_close(value.cpu(), expected[name].detach(), rtol=1e-12, atol=0, msg=name)
        wanted = [*plain, *loss.parameters()]
        assert len(wanted) == 8 + 42 * flow
        for index, (ours, theirs) in enumerate(
            zip(gradients, torch.autograd.grad(total(expected), wanted), strict=True)
        ):
            scale = theirs.abs().max().item()
            assert scale > 0, index
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-12, atol=1e-12 * scale, msg=str(index))


def one_box(
    points: list[tuple[float, float]], truth: list[tuple[float, float, float]], raw: float = 0.0
) -> tuple[KeypointOutputs, Targets, AnchorGrid]:
    """One anchor at (8, 8) of stride 8 whose box is (0, 0, 16, 32), as predicted; points in strides from the anchor."""
    grid = AnchorGrid(torch.tensor([[8.0, 8.0]]), torch.tensor([8.0]))
    boxes, logits = torch.tensor([[[1.0, 1, 1, 3]]]), torch.zeros(1, 1, 1)
    offsets = torch.tensor([[points]])
    fields = (
        logits,
        boxes,
        logits,
        boxes,
        offsets,
        offsets,
        torch.full_like(offsets, raw),
        torch.full_like(offsets, raw),
    )
    targets = Targets(
        torch.tensor([[[0.0, 0, 16, 32]]]),
        torch.zeros(1, 1).long(),
        torch.ones(1, 1, dtype=torch.bool),
        keypoints_BMJ3=torch.tensor([[truth]]),
    )
    return KeypointOutputs(*(field.double() for field in fields)), targets, grid


class TestByHand:
    # Spreads of 1/2: each axis costs |x| + ln 2 - ln 2.
    def test_the_residual_is_in_units_of_the_box_s_sides_and_of_the_spread(self) -> None:
        # Predicted at (16, 8); true at (8, 24): half a width and half a height off, over 1/2.
        loss = KeypointLoss(num_classes=1, num_keypoints=1, flow=False)
        found = loss(*one_box([(1.0, 0.0)], [(8.0, 24.0, 2.0)]))
        assert found['o2m_keypoint'].item() == pytest.approx(1 + 1, rel=1e-12)

    def test_the_logarithm_of_the_spread_counts_once_per_axis(self) -> None:
        raw = math.log(3)  # a spread of 3/4
        loss = KeypointLoss(num_classes=1, num_keypoints=1, flow=False)
        found = loss(*one_box([(0.0, 0.0)], [(8.0, 8.0, 1.0)], raw=raw))
        assert found['o2m_keypoint'].item() == pytest.approx(2 * (math.log(2) + math.log(3 / 4)), rel=1e-6)

    def test_the_flow_s_density_at_the_residual_is_subtracted(self) -> None:
        loss = KeypointLoss(num_classes=1, num_keypoints=1)
        with torch.no_grad():
            for parameter in loss.flow.parameters():
                parameter.zero_()
        found = loss(*one_box([(1.0, 0.0)], [(8.0, 24.0, 2.0)]))
        # A residual of (-1, 1) under the standard normal.
        assert found['o2m_keypoint'].item() == pytest.approx(2 + math.log(2 * math.pi) + 1, rel=1e-12)

    def test_hidden_and_visible_points_count_alike_and_those_not_labelled_not_at_all(self) -> None:
        loss = KeypointLoss(num_classes=1, num_keypoints=3, flow=False, oks_gain=1.0)
        nan = float('nan')
        found = loss(*one_box([(1.0, 0.0)] * 3, [(8.0, 8.0, 2.0), (0.0, 8.0, 1.0), (nan, nan, 0.0)]))
        assert found['o2m_keypoint'].item() == pytest.approx((1 + 2) / 2, rel=1e-12)
        # Distances of 8 and 16 over a true box of 512 square pixels; the spread of a point is 2 · 0.072.
        spread = 2 * 512 * (2 * torch.tensor(0.072).item()) ** 2
        expected = 1 - (math.exp(-64 / spread) + math.exp(-256 / spread)) / 2
        assert found['o2m_oks'].item() == pytest.approx(expected, rel=1e-12)

    def test_a_positive_without_labelled_points_counts_in_neither_mean(self) -> None:
        loss = KeypointLoss(num_classes=1, num_keypoints=1, flow=False, oks_gain=1.0)
        first, second = one_box([(1.0, 0.0)], [(8.0, 24.0, 2.0)]), one_box([(1.0, 0.0)], [(8.0, 24.0, 0.0)])
        outputs, targets = (
            type(one)(*(None if a is None else torch.cat((a, b)) for a, b in zip(one, other, strict=True)))
            for one, other in zip(first[:2], second[:2], strict=True)
        )
        found, alone = loss(outputs, targets, first[2]), loss(*first)
        assert found['o2m_keypoint'].item() == alone['o2m_keypoint'].item() == pytest.approx(2, rel=1e-12)
        assert found['o2m_oks'].item() == alone['o2m_oks'].item() > 0

    def test_a_side_below_a_pixel_counts_as_one(self) -> None:
        outputs, targets, grid = one_box([(1.0, 0.0)], [(8.0, 8.0, 2.0)])
        targets = targets._replace(boxes_BM4=torch.tensor([[[8.0, 8.0, 8.25, 8.5]]]))
        found = KeypointLoss(num_classes=1, num_keypoints=1, flow=False)(outputs, targets, grid)
        assert found['o2m_keypoint'].item() == pytest.approx(8 / 0.5, rel=1e-12)

    def test_a_spread_that_vanishes_is_held_at_a_millionth(self) -> None:
        loss = KeypointLoss(num_classes=1, num_keypoints=1, flow=False)
        found = loss(*one_box([(0.0, 0.0)], [(8.0, 8.0, 2.0)], raw=-1e4))
        assert found['o2m_keypoint'].item() == pytest.approx(2 * (math.log(2) + math.log(1e-6)), rel=1e-12)


class TestPointsThatAreNotLabelled:
    @pytest.mark.parametrize('bad', [float('nan'), float('inf'), 1e30])
    def test_they_may_hold_anything_in_targets_and_predictions(self, bad: float, task_scene: Callable) -> None:
        scene = task_scene('keypoint', 1, {'oks_gain': 24.0}, dtype=torch.float32)
        seen = scene.targets.keypoints_BMJ3[..., 2] > 0
        never = ~seen.any(dim=1)
        seen[..., 0] = False  # point 0 of no object
        keypoints = scene.targets.keypoints_BMJ3 * seen.unsqueeze(-1)
        clean = scene._replace(targets=scene.targets._replace(keypoints_BMJ3=keypoints))
        expected, expected_gradients = clean.run()

        dirty = keypoints.clone()
        dirty[..., :2][~seen] = bad
        scene = scene._replace(targets=scene.targets._replace(keypoints_BMJ3=dirty))
        for name, tensor in zip(scene.outputs._fields, scene.outputs, strict=True):
            if 'points' in name or 'sigmas' in name:
                tensor[:, :, 0] = bad
                assert not never.all()
        found, gradients = scene.run()
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        assert all(map(torch.equal, gradients, expected_gradients))

    def test_control_masked_behind_the_flow_the_gradient_is_nan(self, task_scene: Callable) -> None:
        flow = task_scene('keypoint', 1, dtype=torch.float32).loss.flow
        residual = torch.tensor([[0.5, 0.5], [float('nan'), 0.0]], requires_grad=True)
        torch.where(torch.tensor([True, False]), flow(residual), 0.0).sum().backward()
        assert residual.grad[1].isnan().any()

    def test_objects_without_any_labelled_point_leave_exact_zeros(self, task_scene: Callable) -> None:
        scene = task_scene('keypoint', 0, {'oks_gain': 24.0}, dtype=torch.float32)
        scene.targets.keypoints_BMJ3[..., 2] = 0
        losses, gradients = scene.run()
        assert losses['loss_box'] > 0
        assert losses['loss_keypoint'].item() == losses['loss_oks'].item() == 0
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert not any(gradient.any() for gradient in gradients[4:])


class TestFlow:
    def test_both_branches_train_the_one_flow(self, task_scene: Callable) -> None:
        for weight in (0.0, 1.0):
            scene = task_scene('keypoint', 0)
            scene.loss.branch_weight.fill_(weight)
            _, gradients = scene.run()
            assert all(gradient.any() for gradient in gradients[8:])
        assert sum(parameter.numel() for parameter in scene.loss.parameters()) == 26_514

    def test_it_is_trained_averaged_and_kept_with_the_model(self) -> None:
        detector = MODELS.build(
            {
                'type': 'YOLODetector',
                'num_classes': 1,
                'num_keypoints': 17,
                'head': {'type': 'KeypointHead'},
            }
        )
        names = {name for name, _ in detector.named_parameters() if name.startswith('criterion.flow.')}
        assert len(names) == 6 * 7
        assert names < set(detector.state_dict())
        assert names < set(ExponentialMovingAverage(detector).shadow)
        assert not any(name.startswith('network.') and 'flow' in name for name, _ in detector.named_parameters())
        assert 'criterion.sigmas_J' not in detector.state_dict()

    def test_a_few_steps_of_it_lower_the_loss_of_fixed_predictions(self, task_scene: Callable) -> None:
        scene = task_scene('keypoint', 0, dtype=torch.float32)
        optimizer = torch.optim.Adam(scene.loss.parameters(), lr=0.01)
        values = []
        for _ in range(30):
            losses = scene.loss(scene.outputs, scene.targets, scene.grid)
            optimizer.zero_grad()
            losses['loss_keypoint'].backward()
            optimizer.step()
            values.append(losses['loss_keypoint'].item())
        assert values[-1] < values[0] - 0.5


class TestConfiguration:
    def test_seventeen_points_have_coco_s_sigmas_and_others_uniform_ones(self) -> None:
        coco = KeypointLoss(num_classes=1, num_keypoints=17).sigmas_J.tolist()
        assert [round(1000 * sigma) for sigma in coco] == [
            *(26, 25, 25, 35, 35, 79, 79, 72, 72),
            *(62, 62, 107, 107, 87, 87, 89, 89),
        ]
        assert KeypointLoss(num_classes=1, num_keypoints=4).sigmas_J.tolist() == pytest.approx([0.072] * 4)
        given = KeypointLoss(num_classes=1, num_keypoints=2, sigmas=(0.25, 0.5))
        assert given.sigmas_J.tolist() == [0.25, 0.5]

    @pytest.mark.parametrize('sigmas', [(0.1,), (0.1, 0.0), (0.1, -1.0), (0.1, float('nan')), (0.1, float('inf'))])
    def test_sigmas_that_do_not_fit_are_refused(self, sigmas: tuple[float, ...]) -> None:
        with pytest.raises(ValueError, match=r'sigmas=.* num_keypoints=2'):
            KeypointLoss(num_classes=1, num_keypoints=2, sigmas=sigmas)

    def test_no_keypoints_are_refused(self) -> None:
        with pytest.raises(ValueError, match='num_keypoints=0'):
            KeypointLoss(num_classes=1, num_keypoints=0)

    def test_without_a_gain_there_is_no_oks_term(self, task_scene: Callable) -> None:
        losses, _ = task_scene('keypoint', 0).run()
        assert not any('oks' in name for name in losses)

    @pytest.mark.parametrize('where', ['head', 'data', 'loss'])
    def test_another_number_of_points_is_refused_with_all_three(self, where: str, task_scene: Callable) -> None:
        scene = task_scene('keypoint', 0)
        outputs, targets = scene.outputs, scene.targets
        if where == 'head':
            outputs = outputs._replace(o2m_points_BAJ2=outputs.o2m_points_BAJ2[:, :, :4])
        elif where == 'data':
            targets = targets._replace(keypoints_BMJ3=targets.keypoints_BMJ3[:, :, :4])
        else:
            scene.loss.num_keypoints = 4
        with pytest.raises(ValueError, match=r'head predicts \d keypoints, the targets have \d .*num_keypoints=\d'):
            scene.loss(outputs, targets, scene.grid)
