import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from lucid.models.losses import DetectionLoss
from lucid.registry import LOSSES, MODELS
from lucid.structures import AnchorGrid, RawOutputs, Targets

OPTIONS = ({'topk': 10}, {'topk': 7, 'topk_final': 1})
TERMS = ('box', 'cls', 'l1')
GAINS = {'box': 7.5, 'cls': 0.5, 'l1': 6.0}


def to(device: torch.device, *tuples: Any) -> list[Any]:
    return [type(one)(*(tensor if tensor is None else tensor.to(device) for tensor in one)) for one in tuples]


def leaves(outputs: RawOutputs) -> RawOutputs:
    return RawOutputs(*(tensor.detach().clone().requires_grad_() for tensor in outputs))


def total(losses: dict[str, Tensor]) -> Tensor:
    return sum(value for name, value in losses.items() if 'loss' in name)


def run(loss: DetectionLoss, outputs: RawOutputs, targets: Targets, grid: AnchorGrid) -> tuple[dict, list[Tensor]]:
    """Losses, and the gradient of their sum with respect to each of the four outputs."""
    outputs = leaves(outputs)
    losses = loss(outputs, targets, grid)
    return losses, list(torch.autograd.grad(total(losses), outputs))


def reference_complete_iou(box: list[Tensor], target: tuple[float, ...]) -> Tensor:
    """From 0-d tensors, by the formula."""
    goal = [torch.tensor(value, dtype=torch.float64) for value in target]
    width, height = (box[2] - box[0]).clamp(min=0), (box[3] - box[1]).clamp(min=0)
    goal_width, goal_height = goal[2] - goal[0], goal[3] - goal[1]
    across = (torch.minimum(box[2], goal[2]) - torch.maximum(box[0], goal[0])).clamp(min=0)
    down = (torch.minimum(box[3], goal[3]) - torch.maximum(box[1], goal[1])).clamp(min=0)
    iou = across * down / (width * height + goal_width * goal_height - across * down + 1e-7)
    rho = ((box[0] + box[2] - goal[0] - goal[2]) / 2) ** 2 + ((box[1] + box[3] - goal[1] - goal[3]) / 2) ** 2
    c = (torch.maximum(box[2], goal[2]) - torch.minimum(box[0], goal[0])) ** 2
    c = c + (torch.maximum(box[3], goal[3]) - torch.minimum(box[1], goal[1])) ** 2
    v = 4 / math.pi**2 * (torch.atan2(goal_width, goal_height) - torch.atan2(width, height)) ** 2
    a = v.item() / (1 - iou.item() + v.item() + 1e-7)
    return iou - rho / (c + 1e-7) - a * v


def reference_branch(
    logits_BAC: Tensor, raw_BA4: Tensor, targets: Targets, grid: AnchorGrid, assign: Callable, options: dict[str, int]
) -> dict[str, Tensor]:
    """The three terms of a branch, without gains: selects positives and loops over them."""
    centers, strides = grid.centers_A2.double(), grid.strides_A.double()
    offsets = raw_BA4 * strides[:, None]
    decoded = torch.cat((centers - offsets[..., :2], centers + offsets[..., 2:]), dim=-1)
    positives = assign(logits_BAC, decoded, targets, grid, **options)

    soft = torch.zeros_like(logits_BAC)
    box, l1 = raw_BA4.sum() * 0, raw_BA4.sum() * 0
    for one in positives:
        soft[one.image, one.anchor, one.label] = one.weight
        (x, y), stride = centers[one.anchor], strides[one.anchor]
        left, top, right, bottom = raw_BA4[one.image, one.anchor]
        found = [x - left * stride, y - top * stride, x + right * stride, y + bottom * stride]
        box = box + one.weight * (1 - reference_complete_iou(found, one.box))
        for value, goal in zip(found, one.box, strict=True):
            l1 = l1 + one.weight * (value - goal).abs() / stride
    norm = max(sum(one.weight for one in positives), 1.0)
    cls = F.binary_cross_entropy_with_logits(logits_BAC, soft, reduction='sum')
    return {'box': box / norm, 'cls': cls / norm, 'l1': l1 / norm}


class TestAgainstTheReference:
    @pytest.mark.parametrize('tied', [True, False])
    @pytest.mark.parametrize('seed', range(3))
    def test_losses_and_gradients_of_crowded_scenes(
        self, seed: int, tied: bool, device: torch.device, make_scene: Callable, reference_assign: Callable
    ) -> None:
        outputs, targets, grid = make_scene(seed, tied=tied)
        loss = DetectionLoss(num_classes=3).to(device)
        loss.branch_weight.fill_(0.3)
        found, gradients = run(loss, *to(device, outputs, targets, grid))

        plain = leaves(outputs)
        branches = [
            reference_branch(plain[2 * i], plain[2 * i + 1], targets, grid, reference_assign, OPTIONS[i])
            for i in range(2)
        ]
        alpha = torch.tensor(0.3).item()  # what a float32 buffer holds
        expected = {}
        for name in TERMS:
            o2m, o2o = (GAINS[name] * branch[name] for branch in branches)
            expected |= {f'loss_{name}': alpha * o2m + (1 - alpha) * o2o, f'o2m_{name}': o2m, f'o2o_{name}': o2o}
        assert found.keys() == expected.keys()
        for name, value in found.items():
            torch.testing.assert_close(value.cpu(), expected[name].detach(), rtol=1e-12, atol=0, msg=name)

        expected_gradients = torch.autograd.grad(total(expected), plain)
        for name, ours, theirs in zip(RawOutputs._fields, gradients, expected_gradients, strict=True):
            scale = theirs.abs().max().item()
            assert scale > 0, name
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-12, atol=1e-13 * scale)


def one_anchor() -> tuple[RawOutputs, Targets, AnchorGrid]:
    """One anchor at (8, 8) of stride 8 and one box (0, 0, 16, 8) of class 1; both branches predict (0, 0, 16, 16)."""
    grid = AnchorGrid(torch.tensor([[8.0, 8.0]]), torch.tensor([8.0]))
    targets = Targets(torch.tensor([[[0.0, 0, 16, 8]]]), torch.tensor([[1]]), torch.tensor([[True]]))
    boxes = torch.ones(1, 1, 4, dtype=torch.float64)
    o2m = torch.tensor([[[math.log(1 / 3), 0.0]]], dtype=torch.float64)
    o2o = torch.tensor([[[0.0, math.log(3)]]], dtype=torch.float64)
    return RawOutputs(o2m, boxes, o2o, boxes.clone()), targets, grid


def softplus(value: float) -> float:
    return math.log1p(math.exp(value))


# IoU 1/2 is q, whose sum is below 1, so W = 1. Centres 4 apart, diagonal² 512, aspects 2:1 and 1:1.
ASPECT = 4 / math.pi**2 * (math.atan(2) - math.pi / 4) ** 2
BOX = 7.5 * 0.5 * (1 - 0.5 + 16 / 512 + ASPECT**2 / (0.5 + ASPECT))
L1 = 6.0 * 0.5 * 8 / 8
CLS_O2M = 0.5 * (softplus(math.log(1 / 3)) + math.log(2) - 0.5 * 0)
CLS_O2O = 0.5 * (math.log(2) + softplus(math.log(3)) - 0.5 * math.log(3))


class TestByHand:
    @pytest.mark.parametrize('alpha', [0.5, 0.0, 1.0, 0.25])
    def test_one_anchor_in_closed_form_for_several_branch_weights(self, alpha: float) -> None:
        loss = DetectionLoss(num_classes=2)
        loss.branch_weight.fill_(alpha)
        found = {name: value.item() for name, value in loss(*one_anchor()).items()}
        cls = alpha * CLS_O2M + (1 - alpha) * CLS_O2O
        assert found == {
            'loss_box': pytest.approx(BOX, rel=1e-7),
            'loss_cls': pytest.approx(cls, rel=1e-9),
            'loss_l1': pytest.approx(L1, rel=1e-9),
            'o2m_box': pytest.approx(BOX, rel=1e-7),
            'o2o_box': pytest.approx(BOX, rel=1e-7),
            'o2m_cls': pytest.approx(CLS_O2M, rel=1e-9),
            'o2o_cls': pytest.approx(CLS_O2O, rel=1e-9),
            'o2m_l1': pytest.approx(L1, rel=1e-9),
            'o2o_l1': pytest.approx(L1, rel=1e-9),
        }

    def test_the_branch_weight_scales_the_gradient_of_each_branch(self) -> None:
        loss = DetectionLoss(num_classes=2)
        gradients = {}
        for alpha in (0.5, 1.0, 0.0):
            loss.branch_weight.fill_(alpha)
            gradients[alpha] = run(loss, *one_anchor())[1]
        for index, weight in enumerate((1.0, 1.0, 0.0, 0.0)):
            for alpha, share in ((1.0, weight), (0.0, 1 - weight)):
                expected = gradients[0.5][index] * 2 * share
                torch.testing.assert_close(gradients[alpha][index], expected, rtol=1e-12, atol=0)

    def test_weights_that_sum_to_more_than_one_normalise(self) -> None:
        # Four images of the same anchor: sums grow by 4, W = max(4 * 0.5, 1) = 2.
        outputs, targets, grid = one_anchor()
        outputs, targets = (
            type(one)(*(t.repeat_interleave(4, 0) for t in one if t is not None)) for one in (outputs, targets)
        )
        found = DetectionLoss(num_classes=2)(outputs, targets, grid)
        assert found['loss_l1'].item() == pytest.approx(L1 * 4 / 2, rel=1e-8)
        assert found['o2m_cls'].item() == pytest.approx(CLS_O2M * 4 / 2, rel=1e-8)

    def test_the_gains_scale_their_terms(self) -> None:
        gains = {'box_gain': 2.0, 'cls_gain': 3.0, 'l1_gain': 4.0}
        found = DetectionLoss(num_classes=2, **gains)(*one_anchor())
        plain = DetectionLoss(num_classes=2)(*one_anchor())
        for name in TERMS:
            ratio = gains[f'{name}_gain'] / GAINS[name]
            torch.testing.assert_close(found[f'loss_{name}'], ratio * plain[f'loss_{name}'], rtol=1e-12, atol=0)

    def test_the_first_loss_of_eighty_classes_is_dominated_by_the_background(self) -> None:
        # Every logit at the prior of 1 %: 0.5 * 2 images * 8400 anchors * 80 classes * -log(0.99).
        outputs = RawOutputs(*(torch.full((2, 8400, size), fill) for size, fill in ((80, -4.595), (4, 0.0)) * 2))
        grid = AnchorGrid(torch.rand(8400, 2) * 640, torch.full((8400,), 8.0))
        targets = Targets(torch.zeros(2, 1, 4), torch.zeros(2, 1).long(), torch.zeros(2, 1, dtype=torch.bool))
        found = DetectionLoss(num_classes=80)(outputs, targets, grid)
        assert found['loss_cls'].item() == pytest.approx(-0.5 * 2 * 8400 * 80 * math.log(0.99), rel=1e-3)


class TestPadding:
    def test_losses_and_gradients_have_the_same_bits_for_every_capacity_and_padding(
        self, device: torch.device, make_scene: Callable, poison: Callable
    ) -> None:
        loss = DetectionLoss(num_classes=3).to(device)
        for seed in range(3):
            outputs, targets, grid = make_scene(seed, dtype=torch.float32, tied=seed == 0, side=96)
            expected, expected_gradients = run(loss, *to(device, outputs, targets, grid))
            for capacity in (8, 9, 64, 128):
                padded = poison(targets, capacity)
                found, gradients = run(loss, *to(device, outputs, padded, grid))
                assert all(torch.equal(found[name], value) for name, value in expected.items()), capacity
                assert all(map(torch.equal, gradients, expected_gradients)), capacity

    def test_one_box_has_the_same_bits_at_a_capacity_of_one(self, make_scene: Callable, poison: Callable) -> None:
        outputs, targets, grid = make_scene(0, dtype=torch.float32)
        single = torch.zeros_like(targets.valid_BM)
        single[:, 0] = True
        targets = targets._replace(valid_BM=single)
        loss = DetectionLoss(num_classes=3)
        one, many = (run(loss, outputs, poison(targets, capacity), grid) for capacity in (1, 64))
        assert one[0]['loss_l1'] > 0
        assert all(torch.equal(one[0][name], many[0][name]) for name in one[0])
        assert all(map(torch.equal, one[1], many[1]))

    @pytest.mark.parametrize('value', [float('nan'), float('inf'), 1e30])
    def test_predictions_that_are_not_finite_have_the_same_bits_for_every_capacity(
        self, value: float, make_scene: Callable, poison: Callable
    ) -> None:
        outputs, targets, grid = make_scene(0, dtype=torch.float32)
        for tensor in outputs:
            tensor[0, ::3] = value
        loss = DetectionLoss(num_classes=3)
        one, many = (run(loss, outputs, poison(targets, capacity), grid) for capacity in (8, 64))
        assert all(torch.equal(one[0][name], many[0][name]) or one[0][name].isnan() for name in one[0])
        for ours, theirs in zip(one[1], many[1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


class TestGradients:
    def test_a_batch_without_boxes_leaves_exact_zeros_and_a_gradient_for_every_parameter(
        self, device: torch.device, make_scene: Callable
    ) -> None:
        outputs, targets, grid = make_scene(0, dtype=torch.float32)
        nothing = targets._replace(valid_BM=torch.zeros_like(targets.valid_BM))
        nothing, grid = to(device, nothing, grid)
        head = nn.ModuleList(nn.Linear(5, tensor.shape[-1]) for tensor in outputs).to(device)
        features = torch.randn(*outputs[0].shape[:2], 5, device=device)
        losses = DetectionLoss(num_classes=3).to(device)(RawOutputs(*(one(features) for one in head)), nothing, grid)
        for name in ('loss_box', 'loss_l1'):
            assert losses[name].item() == 0
            assert losses[name].requires_grad
        total(losses).backward()
        for index, linear in enumerate(head):
            for parameter in linear.parameters():
                assert parameter.grad is not None
                assert parameter.grad.isfinite().all()
                assert parameter.grad.any() == (index % 2 == 0)  # logits learn the background, boxes nothing

    @pytest.mark.parametrize(
        'raw',
        [
            (-2, -2, -2, -2),
            (-2, 3, -2, 3),
            (0, 0, 0, 0),
            (0, 1, 0, 1),
            (1, 1, 1, 1),
            (5e4, 5e4, 5e4, 5e4),
            (-1e4, -1e4, 1e4, 1e4),
            (1e13, 1e13, 1e13, 1e13),
            (-1e13, 1e13, -1e13, 1e13),
        ],
        ids=str,
    )
    def test_gradients_are_finite_whatever_the_boxes_are(
        self, raw: tuple[float, ...], device: torch.device, make_scene: Callable
    ) -> None:
        outputs, targets, grid = to(device, *make_scene(2, dtype=torch.float32))
        boxes = torch.tensor(raw, dtype=torch.float32, device=device).expand_as(outputs.o2m_boxes_BA4)
        outputs = outputs._replace(o2m_boxes_BA4=boxes, o2o_boxes_BA4=boxes)
        losses, gradients = run(DetectionLoss(num_classes=3).to(device), outputs, targets, grid)
        assert all(value.isfinite() for value in losses.values())
        assert all(gradient.isfinite().all() for gradient in gradients)

    def test_a_nan_box_in_the_background_harms_no_other_anchor(self, make_scene: Callable) -> None:
        outputs, targets, grid = make_scene(0, tied=False, dtype=torch.float32)
        targets = targets._replace(valid_BM=torch.zeros_like(targets.valid_BM).index_fill_(1, torch.tensor([0]), True))
        loss = DetectionLoss(num_classes=3)
        background = ~loss.assigner_o2m.assign(*outputs[:2], targets, grid).foreground_BA
        far = background & (grid.centers_A2 > targets.boxes_BM4[:, 0, None, 2:] + 16).all(dim=-1)
        assert far.any()
        clean, clean_gradients = run(loss, outputs, targets, grid)
        for tensor in (outputs.o2m_boxes_BA4, outputs.o2o_boxes_BA4):
            tensor[far] = float('nan')
        found, gradients = run(loss, outputs, targets, grid)
        assert all(torch.equal(found[name], clean[name]) for name in clean)
        assert all(map(torch.equal, gradients, clean_gradients))

    def test_nan_predictions_reach_the_loss(self, make_scene: Callable) -> None:
        outputs, targets, grid = make_scene(0, dtype=torch.float32)
        boxes = torch.full_like(outputs.o2m_boxes_BA4, float('nan'))
        found = DetectionLoss(num_classes=3)(outputs._replace(o2m_boxes_BA4=boxes), targets, grid)
        assert found['o2m_box'].isnan()
        assert found['loss_l1'].isnan()
        assert found['o2o_box'].isfinite()


class TestWithTheNetwork:
    @staticmethod
    def step(
        classes: int, side: int, batch: int, boxes_per_image: int, **head: Any
    ) -> tuple[nn.Module, dict[str, Tensor]]:
        torch.manual_seed(0)
        detector = MODELS.build(
            {'type': 'YOLODetector', 'num_classes': classes, 'head': {'type': 'DetectHead', **head}}
        ).train()
        images, low = torch.rand(batch, 3, side, side), torch.rand(batch, 8, 2) * side * 0.6
        boxes = torch.cat((low, low + torch.rand(batch, 8, 2) * side * 0.3 + 8), dim=-1)
        valid = (torch.arange(8) < boxes_per_image).expand(batch, 8)
        targets = Targets(boxes, torch.randint(0, classes, (batch, 8)), valid)
        return detector, detector.criterion(detector.network(images), targets, detector.anchor_grid(images))

    @pytest.mark.parametrize(('classes', 'side', 'batch', 'usual'), [(80, 640, 2, 7214), (4, 320, 4, 200)])
    def test_the_first_loss_has_its_usual_size_and_boxes_that_start_with_a_size_a_smaller_one(
        self, classes: int, side: int, batch: int, usual: int
    ) -> None:
        with torch.no_grad():
            losses = self.step(classes, side, batch, 5)[1]
            sized = self.step(classes, side, batch, 5, box_start=2.0)[1]
        assert total(losses).item() == pytest.approx(usual, rel=0.1)
        assert total(sized) < total(losses) / 4

    @pytest.mark.parametrize('boxes_per_image', [0, 5])
    def test_every_parameter_has_a_finite_gradient_with_and_without_boxes(self, boxes_per_image: int) -> None:
        detector, losses = self.step(3, 64, 2, boxes_per_image)
        total(losses).backward()
        for name, parameter in detector.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


class NoHostRead(TorchDispatchMode):
    """Refuses what a recording cannot repeat: host reads, shapes from data, tensors made from host data."""

    refused = ('_local_scalar_dense', 'nonzero', 'masked_select', 'lift_fresh', 'is_nonzero', 'equal', 'unique')

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ('index', 'index_put', 'index_put_') and any(
            tensor is not None and tensor.dtype in (torch.bool, torch.uint8) for tensor in args[1]
        )
        if by_mask or name.removesuffix('_copy') in self.refused:
            raise AssertionError(f'{func} reads the device or makes a shape from data')
        return func(*args, **(kwargs or {}))


class TestCapturability:
    def test_forward_and_backward_never_read_the_device(self, make_scene: Callable) -> None:
        outputs, targets, grid = make_scene(0)
        loss = DetectionLoss(num_classes=3)
        with NoHostRead():
            run(loss, outputs, targets, grid)

    @pytest.mark.parametrize(
        'read',
        [
            lambda x: x[0].item(),
            lambda x: bool(x[0] > 0),
            lambda x: x[x > 0],
            lambda x: x.nonzero(),
            lambda x: x.masked_select(x > 0),
            lambda x: x.__setitem__(x > 0, 0.0),
            lambda x: x + torch.tensor([1.0]),
        ],
        ids=['item', 'bool', 'mask', 'nonzero', 'masked_select', 'masked store', 'host data'],
    )
    def test_the_mode_refuses_what_it_should(self, read: Callable[[Tensor], Any]) -> None:
        with pytest.raises(AssertionError, match='reads the device'), NoHostRead():
            read(torch.ones(3))

    def test_a_trace_of_one_batch_computes_another(self, make_scene: Callable) -> None:
        # What a recording does: the operators of a crowded batch, on a batch without boxes and on one with few.
        loss = DetectionLoss(num_classes=3)

        def step(outputs: RawOutputs, targets: Targets, grid: AnchorGrid) -> tuple[list[Tensor], list[Tensor]]:
            losses = loss(outputs, targets, grid)
            return list(losses.values()), list(torch.autograd.grad(total(losses), outputs))

        outputs, targets, grid = make_scene(0)
        traced = make_fx(step, tracing_mode='fake')(leaves(outputs), targets, grid)
        for seed in (1, 2, 3):
            outputs, targets, grid = make_scene(seed)
            few = targets._replace(valid_BM=targets.valid_BM & (torch.arange(8) < seed - 1))
            expected, found = (one(leaves(outputs), few, grid) for one in (step, traced))
            assert all(map(torch.equal, found[0] + found[1], expected[0] + expected[1]))

    def test_the_branch_weight_of_a_trace_is_read_anew(self, make_scene: Callable) -> None:
        loss = DetectionLoss(num_classes=3)
        outputs, targets, grid = make_scene(0)
        traced = make_fx(lambda o, t, g: loss(o, t, g)['loss_cls'])(outputs, targets, grid)
        loss.branch_weight.fill_(0.125)
        expected = loss(outputs, targets, grid)
        assert torch.equal(traced(outputs, targets, grid), expected['loss_cls'])
        torch.testing.assert_close(expected['loss_cls'], 0.125 * expected['o2m_cls'] + 0.875 * expected['o2o_cls'])

    @pytest.mark.cuda
    def test_a_card_is_never_waited_for(self, make_scene: Callable) -> None:
        device = torch.device('cuda')
        outputs, targets, grid = to(device, *make_scene(0))
        loss = DetectionLoss(num_classes=3).to(device)
        run(loss, outputs, targets, grid)
        torch.cuda.set_sync_debug_mode('error')
        try:
            run(loss, outputs, targets, grid)
            with pytest.raises(RuntimeError, match='synchroniz'):
                outputs[0].sum().item()
        finally:
            torch.cuda.set_sync_debug_mode('default')


class TestInterface:
    def test_the_registry_builds_it_with_other_assigners_and_leaves_the_config_alone(self) -> None:
        config = {'type': 'DetectionLoss', 'num_classes': 3, 'assigner_o2m': {'type': 'TaskAlignedAssigner', 'topk': 4}}
        built = LOSSES.build(config)
        assert isinstance(built, DetectionLoss)
        assert (built.assigner_o2m.topk, built.assigner_o2o.topk, built.assigner_o2o.topk_final) == (4, 7, 1)
        assert config['assigner_o2m'] == {'type': 'TaskAlignedAssigner', 'topk': 4}
        assert DetectionLoss(num_classes=3).assigner_o2m.topk == 10

    def test_what_is_for_the_log_is_detached_and_not_called_loss(self, make_scene: Callable) -> None:
        outputs, targets, grid = make_scene(0)
        losses = DetectionLoss(num_classes=3)(leaves(outputs), targets, grid)
        assert list(losses)[:3] == ['loss_box', 'loss_cls', 'loss_l1']
        for name, value in losses.items():
            assert value.shape == ()
            assert value.requires_grad == ('loss' in name)
        assert {name for name in losses if 'loss' not in name} == {f'{b}_{t}' for b in ('o2m', 'o2o') for t in TERMS}

    def test_the_branch_weight_is_a_buffer_outside_the_checkpoint(self) -> None:
        loss = DetectionLoss(num_classes=3)
        assert loss.branch_weight.shape == ()
        assert loss.branch_weight.item() == 0.5
        assert 'branch_weight' in dict(loss.named_buffers())
        assert loss.state_dict() == {}

    @pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
    def test_half_precision_outputs_are_computed_in_float32(self, dtype: torch.dtype, make_scene: Callable) -> None:
        outputs, targets, grid = make_scene(0, tied=False, dtype=torch.float32)
        half = RawOutputs(*(tensor.to(dtype) for tensor in outputs))
        loss = DetectionLoss(num_classes=3)
        found, gradients = run(loss, half, targets, grid)
        expected, expected_gradients = run(loss, RawOutputs(*(tensor.float() for tensor in half)), targets, grid)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert all(torch.equal(one, other.to(dtype)) for one, other in zip(gradients, expected_gradients, strict=True))

    def test_another_number_of_classes_is_refused_with_both_numbers(self, make_scene: Callable) -> None:
        with pytest.raises(ValueError, match=r'3 classes.*num_classes=4'):
            DetectionLoss(num_classes=4)(*make_scene(0))
