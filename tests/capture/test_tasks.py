"""The heads and losses of all tasks under capture: lucid's own, on a small body of three levels."""

import copy
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn

from lucid.models.heads import DetectHead, KeypointHead, OrientedHead, SegmentHead
from lucid.models.losses import DetectionLoss, KeypointLoss, OrientedLoss, SegmentationLoss
from lucid.structures import MASK_STRIDE, Targets
from lucid.structures.anchors import make_anchor_grid

CHANNELS, CLASSES, POINTS, SIDE, BATCH, CAPACITY = (16, 16, 16), 3, 4, 64, 2, 4
TASKS: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
    'detect': lambda: (DetectHead(CHANNELS, num_classes=CLASSES), DetectionLoss(num_classes=CLASSES)),
    'segment': lambda: (SegmentHead(CHANNELS, num_classes=CLASSES), SegmentationLoss(num_classes=CLASSES)),
    'oriented': lambda: (OrientedHead(CHANNELS, num_classes=CLASSES), OrientedLoss(num_classes=CLASSES)),
    'keypoint': lambda: (
        KeypointHead(CHANNELS, num_classes=CLASSES, num_keypoints=POINTS),
        KeypointLoss(num_classes=CLASSES, num_keypoints=POINTS),
    ),
}


class Network(nn.Module):
    def __init__(self, kit, head: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Sequential(kit.ConvBNSiLU(3, 8, 2), kit.ConvBNSiLU(8, 8, 2))
        channels = zip((8, *CHANNELS), CHANNELS, strict=False)
        self.levels = nn.ModuleList(kit.ConvBNSiLU(before, after, 2) for before, after in channels)
        self.head = head

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        features = [self.stem(images)]
        for level in self.levels:
            features.append(level(features[-1]))
        return self.head(features[1:])


class Detector(nn.Module):
    """Images and targets to the loss, without autocast as lucid's detector does it."""

    def __init__(self, kit, task: str) -> None:
        super().__init__()
        torch.manual_seed(5)
        head, self.criterion = TASKS[task]()
        self.network = Network(kit, head)
        grid = make_anchor_grid((SIDE, SIDE))
        self.register_buffer('centers', grid.centers_A2)
        self.register_buffer('strides', grid.strides_A)
        self.grid = type(grid)

    def forward(self, images: Tensor, targets: Targets) -> Tensor:
        outputs = self.network(images)
        with torch.autocast(images.device.type, enabled=False):
            exact = type(outputs)(*(None if output is None else output.float() for output in outputs))
            losses = self.criterion(exact, targets, self.grid(self.centers, self.strides))
        return sum(value for name, value in losses.items() if 'loss' in name)


def truths(seed: int, device: torch.device) -> Targets:
    """Boxes with every kind of target; the second image has one box less, in the middle of its rows."""
    generator = torch.Generator().manual_seed(seed)
    center = 16 + 32 * torch.rand(BATCH, CAPACITY, 2, generator=generator)
    side = 8 + 16 * torch.rand(BATCH, CAPACITY, 2, generator=generator).sort(descending=True).values
    boxes = torch.cat((center - side / 2, center + side / 2), dim=-1)
    valid = torch.ones(BATCH, CAPACITY, dtype=torch.bool)
    valid[1, 1] = False
    cells = (torch.arange(SIDE // MASK_STRIDE) + 0.5) * MASK_STRIDE
    x, y = cells.view(1, 1, 1, -1), cells.view(1, 1, -1, 1)
    inside = (((x - center[..., 0, None, None]) / side[..., 0, None, None] * 2) ** 2) + (
        ((y - center[..., 1, None, None]) / side[..., 1, None, None] * 2) ** 2
    ) < 1
    theta = torch.rand(BATCH, CAPACITY, 1, generator=generator) * 3 - 0.7
    points = boxes[:, :, None, :2] + side[:, :, None] * torch.rand(BATCH, CAPACITY, POINTS, 2, generator=generator)
    seen = torch.randint(0, 3, (BATCH, CAPACITY, POINTS, 1), generator=generator).float()
    fields = Targets(
        boxes,
        torch.randint(0, CLASSES, (BATCH, CAPACITY), generator=generator),
        valid,
        inside,
        torch.cat((center, side, theta), dim=-1),
        torch.cat((points, seen), dim=-1),
    )
    return Targets(*(field.to(device) for field in fields))


# Reference runs, made once: which module is captured and who owns gradients changes the candidate alone.
REFERENCES: dict[tuple, list[dict[str, Tensor]]] = {}


def trainings(kit, graph, task: str, **options):
    """Reference and candidate of equal values, whose batches have targets of their own."""

    class Training(kit.Training):
        def forward(self, images: Tensor) -> Tensor:
            dtype = self.dtype or torch.bfloat16
            with torch.autocast(self.device.type, dtype=dtype, enabled=self.dtype is not None, cache_enabled=False):
                return self.model(images, truths(self.count, self.device))

    reference, candidate = kit.pair(graph, Detector(kit, task))
    return Training(reference, **options), Training(candidate, **options)


def sides(kit, count: int) -> Iterable[Tensor]:
    return kit.images(count, batch=BATCH, size=SIDE)


@pytest.mark.parametrize('target', ['network', 'network.head'])
@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize(
    ('gradients', 'dtype'), [('adopt', None), ('clone', torch.bfloat16)], ids=['adopt-fp32', 'clone-bf16']
)
def test_every_micro_step_of_each_task_has_the_gradients_of_eager(graph, kit, task, target, gradients, dtype):
    reference, candidate = trainings(kit, graph, task, accumulate=2, dtype=dtype)
    region = graph.capture(candidate.model, target, gradients=gradients)
    batches, key = sides(kit, 4), (graph.device, task, dtype)
    if key not in REFERENCES:
        REFERENCES[key] = reference.run(batches)
    found = kit.difference(REFERENCES[key], candidate.run(batches))
    assert found is None, str(found)
    graph.replays(region, 4)


@pytest.mark.parametrize('gradients', ['clone', 'adopt'])
def test_a_captured_segmentation_head_alone_equals_eager_where_gradients_are_zeroed_in_place(graph, kit, gradients):
    """The path that the log left untested: windows of one, `zero_grad(set_to_none=False)`."""
    reference, candidate = trainings(kit, graph, 'segment', accumulate=1, set_to_none=False)
    region = graph.capture(candidate.model, 'network.head', gradients=gradients)
    batches = sides(kit, 5)
    found = kit.difference(reference.run(batches), candidate.run(batches))
    assert found is None, str(found)
    graph.replays(region, 5)


def test_a_gradient_of_a_captured_segmentation_head_that_a_callback_keeps_stays_that_of_its_step(graph, kit):
    reference, candidate = trainings(kit, graph, 'segment', accumulate=1)
    graph.capture(candidate.model, 'network.head')

    def run(training) -> list[dict[str, Tensor]]:
        kept: list[Tensor] = []
        parameters = dict(training.model.network.head.named_parameters())
        name = next(reversed(parameters))
        parameters[name].register_post_accumulate_grad_hook(lambda parameter: kept.append(parameter.grad))
        training.run(sides(kit, 4))
        return [{name: gradient} for gradient in kept]

    there, here = run(reference), run(candidate)
    assert len(there) == 4
    assert len({gradient.data_ptr() for row in here for gradient in row.values()}) == 4
    found = kit.difference(there, here)
    assert found is None, str(found)


def test_control_a_callback_that_keeps_an_adopted_gradient_reads_that_of_the_last_step(captured, kit):
    reference, candidate = trainings(kit, captured, 'segment', accumulate=1)
    captured.capture(candidate.model, 'network.head', gradients='adopt')

    def run(training) -> list[dict[str, Tensor]]:
        kept: list[Tensor] = []
        parameter = list(training.model.network.head.parameters())[-1]
        parameter.register_post_accumulate_grad_hook(lambda parameter: kept.append(parameter.grad))
        training.run(sides(kit, 4))
        return [{'grad': gradient} for gradient in kept]

    assert kit.difference(run(reference), run(candidate)) is not None


@pytest.mark.parametrize('task', ['segment', 'oriented', 'keypoint'])
def test_assigned_weights_retire_the_recording_of_a_head_and_gradients_still_equal_eager(graph, kit, task):
    """The log's rule for its segmentation head, inside a window."""
    reference, candidate = trainings(kit, graph, task, accumulate=4)
    region = graph.capture(candidate.model, 'network.head')

    def run(training) -> list[dict[str, Tensor | None]]:
        batches = sides(kit, 4)
        values = training.run(batches[:2])
        head = training.model.network.head
        gradients = [parameter.grad for parameter in head.parameters()]
        head.load_state_dict({name: value.clone() * 1.5 for name, value in head.state_dict().items()}, assign=True)
        for parameter, gradient in zip(head.parameters(), gradients, strict=True):
            parameter.grad = gradient
        for images in batches[2:]:
            training.forward(images.to(training.device)).backward()
            training.count += 1
            values.append({name: copy.copy(p.grad) for name, p in training.model.named_parameters()})
        return values

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 4)


def test_the_semantic_branch_of_a_captured_segmentation_head_follows_its_mode(graph, kit):
    """In evaluation mode there is no semantic output, which is another structure: another recording."""
    reference, candidate = trainings(kit, graph, 'segment', accumulate=1)
    region = graph.capture(candidate.model, 'network', on_new_signature='capture')

    def run(training) -> list[dict[str, Tensor]]:
        rows = []
        for mode in (True, False, True):
            training.model.network.train(mode)
            outputs = training.model.network(sides(kit, 1)[0].to(training.device))
            assert (outputs.semantic_BCHW is None) is not mode
            loss = sum(output.square().mean() for output in outputs if output is not None)
            loss.backward()
            rows.append({'loss': loss.detach().clone()})
            training.optimizer.zero_grad()
        return rows

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    if graph.captures:
        assert region.routes.replays >= 1


@pytest.mark.parametrize('regions', ['network', 'network and loss'])
@pytest.mark.parametrize('task', TASKS)
def test_a_batch_without_objects_has_a_finite_loss_and_the_gradients_of_eager_for_every_parameter(
    graph, kit, task, regions, monkeypatch
):
    """Between batches with objects, whose recordings it replays."""
    plain = truths

    def every_second(seed: int, device: torch.device) -> Targets:
        targets = plain(seed, device)
        return targets._replace(valid_BM=torch.zeros_like(targets.valid_BM)) if seed % 2 else targets

    monkeypatch.setitem(trainings.__globals__, 'truths', every_second)
    reference, candidate = trainings(kit, graph, task, accumulate=1)
    region = graph.capture(candidate.model, 'network')
    if regions == 'network and loss':
        graph.capture(candidate.model, 'criterion', on_new_signature='capture')
    batches = sides(kit, 4)
    expected, values = reference.run(batches), candidate.run(batches)
    found = kit.difference(expected, values)
    assert found is None, str(found)
    graph.replays(region, 4)
    without = values[1]
    assert without['loss'].isfinite()
    names = {name for name, parameter in candidate.model.named_parameters() if parameter.requires_grad}
    assert all(without[f'grad.{name}'] is not None for name in names)
    assert all(without[f'grad.{name}'].isfinite().all() for name in names)
    assert any(not torch.equal(values[0][f'grad.{name}'], without[f'grad.{name}']) for name in names)
