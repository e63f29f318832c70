"""Cases 14 and 15: the captured loss has the bits of the native one, for every capacity and every input."""

import pytest
import torch

from lucid.capture import LossRegion, Parts, Policy
from lucid.models.heads import DetectHead
from lucid.models.losses import DetectionLoss
from lucid.structures import Targets
from lucid.structures.anchors import make_anchor_grid

STRIDES, SIZE, CLASSES, BATCH = (8, 16, 32), 64, 3, 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.criterion = DetectionLoss(num_classes=CLASSES)


class Case:
    """A loss, its grid, and inputs that are made anew for each call."""

    def __init__(self, device):
        torch.manual_seed(0)
        self.device = device
        self.model = Model().to(device)
        self.grid = make_anchor_grid((SIZE, SIZE), strides=STRIDES, device=device)
        head = DetectHead(in_channels=(8, 8, 8), num_classes=CLASSES).to(device)
        features = [torch.randn(BATCH, 8, SIZE // s, SIZE // s, device=device) for s in STRIDES]
        outputs = head(features)
        self.kind, self.shapes = type(outputs), [output.shape for output in outputs]

    def outputs(self, seed):
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(shape, generator=generator).to(self.device) for shape in self.shapes]

    def targets(self, num_boxes, capacity, seed=0):
        generator = torch.Generator().manual_seed(seed)
        corner = torch.rand(BATCH, num_boxes, 2, generator=generator) * SIZE / 2
        sides = torch.rand(BATCH, num_boxes, 2, generator=generator) * SIZE / 2 + 4
        boxes = torch.zeros(BATCH, capacity, 4)
        boxes[:, :num_boxes] = torch.cat([corner, corner + sides], -1)
        labels = torch.zeros(BATCH, capacity, dtype=torch.int64)
        labels[:, :num_boxes] = torch.randint(CLASSES, (BATCH, num_boxes), generator=generator)
        valid = (torch.arange(capacity) < num_boxes).expand(BATCH, capacity).contiguous()
        return Targets(boxes.to(self.device), labels.to(self.device), valid.to(self.device))

    def run(self, values, targets):
        """The terms, and the gradients of the outputs."""
        leaves = [value.clone().requires_grad_() for value in values]
        terms = self.model.criterion(self.kind(*leaves), targets, self.grid)
        sum(term for name, term in terms.items() if 'loss' in name).backward()
        return {name: term.detach() for name, term in terms.items()}, [leaf.grad for leaf in leaves]


def same_bits(expected, found):
    """Equal, NaN with its bits included."""
    return all(
        a is b if a is None or b is None else torch.equal(a.view(torch.int32), b.view(torch.int32))
        for a, b in zip(expected, found, strict=True)
    )


def activate(graph, case):
    """The loss region of a case; in the eager run what stands in for it."""
    if not graph.captures:
        return graph.capture(case.model, 'criterion')
    region = LossRegion()
    region.activate(case.model, policy=Policy(), parts=Parts(memory=lambda _: graph.memory()))
    graph.regions.append(region)
    return region


def compare(graph, calls, change=None):
    """Native against captured, call by call; the region."""
    native, captured = Case(graph.device), Case(graph.device)
    region = activate(graph, captured)
    for values, targets in calls(native):
        if change:
            change(native), change(captured)
        (terms, grads), (found, found_grads) = native.run(values, targets), captured.run(values, targets)
        assert list(terms) == list(found)
        assert same_bits(list(terms.values()), list(found.values())), (terms, found)
        assert same_bits(grads, found_grads)
    return region


def test_fifty_boxes_then_three_then_none_then_fifty_in_every_capacity(graph):
    def calls(case):
        for capacity in (64, 128, 256):
            for seed, number in enumerate((50, 3, 0, 50)):
                yield case.outputs(seed), case.targets(number, capacity, seed)

    region = compare(graph, calls)
    graph.replays(region, 12)
    if graph.captures:
        assert region.routes.captures == 3


def test_the_loss_of_padded_targets_is_that_of_unpadded_ones_replayed_or_not(graph):
    case = Case(graph.device)
    small, large = (case.run(case.outputs(1), case.targets(5, capacity, 1)) for capacity in (5, 64))
    assert same_bits(list(small[0].values()), list(large[0].values()))


@pytest.mark.parametrize('bad', [float('nan'), float('inf'), float('-inf')])
@pytest.mark.parametrize('where', [0, 1, 2, 3, 'boxes', 'padded boxes', 'centers', 'strides', 'branch weight'])
def test_what_is_not_finite_has_the_native_bits(graph, bad, where):
    def calls(case):
        for seed in range(3):
            values, targets = case.outputs(seed), case.targets(4, 64, seed)
            if seed == 1:
                if isinstance(where, int):
                    values[where].view(-1)[7] = bad
                elif 'boxes' in where:
                    targets.boxes_BM4[1, 20 if 'padded' in where else 2, 1] = bad
            yield values, targets

    step = {'count': 0}

    def change(case):
        at = step['count'] // 2 == 1  # both sides are changed before each call
        step['count'] += 1
        if where == 'branch weight':
            case.model.criterion.branch_weight.fill_(bad if at else 0.3)
        elif where == 'strides':
            case.grid.strides_A[3] = bad if at else 8.0
        elif where == 'centers':
            case.grid.centers_A2.view(-1)[5] = bad if at else 20.0

    region = compare(graph, calls, change)
    graph.replays(region, 3)


def test_the_branch_weight_moves_without_a_new_capture(graph):
    weights = iter([w for w in (0.8, 0.45, 0.1) for _ in range(2)])

    def change(case):
        case.model.criterion.branch_weight.fill_(next(weights))

    region = compare(graph, lambda case: [(case.outputs(i), case.targets(6, 64, i)) for i in range(3)], change)
    graph.replays(region, 3)
    if graph.captures:
        assert region.routes.captures == 1


def test_terms_of_four_steps_are_read_at_the_end(graph):
    """The loss itself is what the region returns."""
    native, captured = Case(graph.device), Case(graph.device)
    region = activate(graph, captured)
    calls = [(native.outputs(i), native.targets(3 + i, 64, i)) for i in range(4)]
    expected = [[value.clone() for value in native.run(*call)[0].values()] for call in calls]
    kept = [list(captured.run(*call)[0].values()) for call in calls]
    assert all(same_bits(a, b) for a, b in zip(expected, kept, strict=True))
    assert not same_bits(kept[0], kept[3])
    graph.replays(region, 4)


@pytest.mark.parametrize('capacity', [64, 128])
def test_padding_that_is_poisoned_in_the_static_buffers_leaks_into_no_step(graph, capacity):
    """The captured loss gets rows that are not valid, of NaN, infinities and no class; the native one clean ones."""
    native, captured = Case(graph.device), Case(graph.device)
    region = activate(graph, captured)
    for seed, number in enumerate((50, 3, 0, 50)):
        values, clean = native.outputs(seed), native.targets(number, capacity, seed)
        boxes, labels = clean.boxes_BM4.clone(), clean.labels_BM.clone()
        boxes[:, number:] = torch.tensor([float('nan'), float('inf'), float('-inf'), 1e30], device=graph.device)
        labels[:, number:] = -(2**40)
        (terms, grads) = native.run(values, clean)
        (found, found_grads) = captured.run(values, clean._replace(boxes_BM4=boxes, labels_BM=labels))
        assert same_bits(list(terms.values()), list(found.values())), (number, terms, found)
        assert same_bits(grads, found_grads)
        assert all(grad.isfinite().all() for grad in found_grads)
    graph.replays(region, 4)


@pytest.mark.cuda
def test_a_replayed_loss_never_waits_for_the_device(on_cuda):
    case = Case(on_cuda.device)
    region = LossRegion()
    region.activate(case.model, parts=Parts(memory=lambda _: on_cuda.memory()))
    on_cuda.regions.append(region)
    calls = [(case.outputs(i), case.targets(6, 64, i)) for i in range(4)]
    case.run(*calls[0])
    kept = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode('error')
    try:
        for call in calls[1:]:
            case.run(*call)
    finally:
        torch.cuda.set_sync_debug_mode(kept)
    on_cuda.replays(region, 4)
