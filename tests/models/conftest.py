"""Scenes, and a reference of the assignment in plain Python that loops over images, boxes and anchors, and selects."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lucid.models.heads.paths import Head, Rules, select
from lucid.structures import AnchorGrid, RawOutputs, Targets
from lucid.structures.anchors import make_anchor_grid


class Positive(NamedTuple):
    """One anchor that learns one box."""

    image: int
    anchor: int
    slot: int
    label: int
    box: tuple[float, ...]
    weight: float


def iou(box: list[float], other: list[float]) -> float:
    def area(b: list[float]) -> float:
        return max(b[2] - b[0], 0.0) * max(b[3] - b[1], 0.0)

    width = max(min(box[2], other[2]) - max(box[0], other[0]), 0.0)
    height = max(min(box[3], other[3]) - max(box[1], other[1]), 0.0)
    return width * height / (area(box) + area(other) - width * height + 1e-9)


def interval(low: float, high: float, small_side: float, small_reference: float) -> tuple[float, float]:
    if high - low >= small_side:
        return low, high
    middle = (low + high) / 2
    return middle - small_reference / 2, middle + small_reference / 2


def inside_rotated(x: float, y: float, rbox: list[float], small_side: float, small_reference: float) -> bool:
    """Edges included, as a float32 angle moves them; short sides widened, then folded so that the long one is first."""
    cx, cy, w, h, theta = rbox
    w, h = (side if side >= small_side else small_reference for side in (w, h))
    if w < h:
        w, h, theta = h, w, theta + math.pi / 2
    along = (x - cx) * math.cos(theta) + (y - cy) * math.sin(theta)
    across = (y - cy) * math.cos(theta) - (x - cx) * math.sin(theta)
    return abs(along) <= w / 2 + 1e-5 and abs(across) <= h / 2 + 1e-5


def assign_image(
    scores_AC: list[list[float]],
    boxes_A4: list[list[float]],
    centers_A2: list[list[float]],
    truth: dict[int, tuple[list[float], int]],
    *,
    topk: int,
    topk_final: int | None,
    small_side: float,
    small_reference: float,
    rboxes: list[list[float]] | None = None,
) -> list[tuple[int, int, float]]:
    """(anchor, slot, weight) of one image; ``truth`` maps slots to boxes and labels, ``rboxes`` are by slot."""
    metric: dict[int, dict[int, float]] = {}
    overlap: dict[int, dict[int, float]] = {}
    picks: dict[int, list[int]] = {}
    for slot, (box, label) in truth.items():
        x1, x2 = interval(box[0], box[2], small_side, small_reference)
        y1, y2 = interval(box[1], box[3], small_side, small_reference)
        inside = [a for a, (x, y) in enumerate(centers_A2) if x1 <= x <= x2 and y1 <= y <= y2]
        if rboxes is not None:
            sizes = small_side, small_reference
            inside = [a for a, (x, y) in enumerate(centers_A2) if inside_rotated(x, y, rboxes[slot], *sizes)]
        overlap[slot] = {a: iou(box, boxes_A4[a]) for a in inside}
        metric[slot] = {a: scores_AC[a][label] * overlap[slot][a] ** 6 for a in inside}
        picks[slot] = sorted(inside, key=lambda a: (-metric[slot][a], a))[:topk]

    kept: dict[int, list[int]] = {}
    for slot, anchors in picks.items():
        rivals = {a: [other for other in picks if a in picks[other]] for a in anchors}
        kept[slot] = [a for a in anchors if min(rivals[a], key=lambda other: (-metric[other][a], other)) == slot]
        kept[slot] = kept[slot][:topk_final]

    found = []
    for slot, anchors in kept.items():
        best_metric = max((metric[slot][a] for a in anchors), default=0.0)
        best_overlap = max((overlap[slot][a] for a in anchors), default=0.0)
        for a in anchors:
            weight = metric[slot][a] * best_overlap / best_metric if best_metric else 0.0
            found.append((a, slot, weight))
    return found


def reference_assign(
    logits_BAC: Tensor,
    boxes_BA4: Tensor,
    targets: Targets,
    grid: AnchorGrid,
    *,
    topk: int,
    topk_final: int | None = None,
    small_side: float = 8.0,
    small_reference: float = 16.0,
    rotated: bool = False,
) -> list[Positive]:
    """All positives of a batch, in float64. Probabilities are torch's, so that equal logits tie on every device."""
    positives = []
    for image, scores_AC in enumerate(logits_BAC.detach().sigmoid().tolist()):
        rows = zip(*(field[image].tolist() for field in targets[:3]), strict=True)
        truth = {slot: (box, label) for slot, (box, label, valid) in enumerate(rows) if valid}
        found = assign_image(
            scores_AC,
            boxes_BA4[image].detach().tolist(),
            grid.centers_A2.tolist(),
            truth,
            topk=topk,
            topk_final=topk_final,
            small_side=small_side,
            small_reference=small_reference,
            rboxes=targets.rboxes_BM5[image].tolist() if rotated else None,
        )
        positives += [Positive(image, a, slot, truth[slot][1], tuple(truth[slot][0]), q) for a, slot, q in found]
    return positives


def make_scene(
    seed: int,
    *,
    batch: int = 3,
    classes: int = 3,
    side: int = 64,
    capacity: int = 8,
    tied: bool = True,
    dtype: torch.dtype = torch.float64,
) -> tuple[RawOutputs, Targets, AnchorGrid]:
    """A crowded batch on the CPU. ``tied`` quantises everything and repeats boxes, so that many metrics are equal."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    grid = make_anchor_grid((side, side))
    anchors = grid.strides_A.numel()
    outputs = []
    for _ in range(2):
        if tied:
            outputs += [integers(-2, 2, batch, anchors, classes).to(dtype), integers(-1, 5, batch, anchors, 4) / 2]
        else:
            outputs += [normal(batch, anchors, classes) - 1, normal(batch, anchors, 4) + 1.5]
    low = integers(0, side - 12, batch, capacity, 2)
    boxes = torch.cat((low, low + integers(1, side // 2, batch, capacity, 2)), dim=-1).float()
    labels = integers(0, classes, batch, capacity)
    if tied:
        boxes[:, 1::3] = boxes[:, 0::3][:, : boxes[:, 1::3].shape[1]]
        labels[:, 1::6] = labels[:, 0::6][:, : labels[:, 1::6].shape[1]]
    else:
        boxes += torch.rand(boxes.shape, generator=generator)
    valid = integers(0, 4, batch, capacity) > 0
    valid[-1] &= seed % 2 == 0  # every second batch has an image without boxes
    targets = Targets(torch.where(valid.unsqueeze(-1), boxes, 0.0), torch.where(valid, labels, 0), valid)
    return RawOutputs(*(tensor.to(dtype) for tensor in outputs)), targets, grid


def rotate(targets: Targets, seed: int) -> Targets:
    """The same boxes turned, upright and diagonal ones among them; ``boxes_BM4`` are the envelopes of the new ones."""
    generator = torch.Generator().manual_seed(seed)
    low, high = targets.boxes_BM4.chunk(2, dim=-1)
    sides = (high - low).sort(dim=-1, descending=True).values
    turns = torch.rand(targets.valid_BM.shape, generator=generator) * math.pi - math.pi / 4
    for every, angle in enumerate((0.0, math.pi / 2, math.pi / 4)):
        turns[:, every::5] = angle
    cos, sin = turns.cos().abs(), turns.sin().abs()
    reach = torch.stack((sides[..., 0] * cos + sides[..., 1] * sin, sides[..., 0] * sin + sides[..., 1] * cos), -1) / 2
    center = (low + high) / 2
    rboxes = torch.cat((center, sides, turns.unsqueeze(-1)), dim=-1)
    valid = targets.valid_BM.unsqueeze(-1)
    return targets._replace(
        boxes_BM4=torch.where(valid, torch.cat((center - reach, center + reach), dim=-1), 0.0),
        rboxes_BM5=torch.where(valid, rboxes, 0.0),
    )


def poison(targets: Targets, capacity: int) -> Targets:
    """The same boxes on the CPU, padded to another capacity, with values in the padding that must never be used."""
    targets = Targets(*(None if field is None else field.cpu() for field in targets))
    batch, present = targets.valid_BM.shape
    boxes = torch.tensor([float('nan'), float('inf'), float('-inf'), 1e30]).expand(batch, capacity, 4).clone()
    labels = torch.full((batch, capacity), -(2**40))
    valid = torch.zeros(batch, capacity, dtype=torch.bool)
    keep = min(present, capacity)
    assert not targets.valid_BM[:, keep:].any(), 'a valid row would be lost'
    rows = targets.valid_BM[:, :keep]
    boxes[:, :keep][rows] = targets.boxes_BM4[:, :keep][rows].to(boxes)
    labels[:, :keep][rows] = targets.labels_BM[:, :keep][rows].to(labels)
    valid[:, :keep] = rows
    others = [None if field is None else padded(field, rows, capacity) for field in targets[3:]]
    return Targets(boxes, labels, valid, *others)


def padded(field: Tensor, rows: Tensor, capacity: int) -> Tensor:
    """Valid rows at another capacity, the rest NaN or True."""
    worst = True if field.dtype == torch.bool else float('nan')
    result = torch.full((len(field), capacity, *field.shape[2:]), worst, dtype=field.dtype)
    result[:, : rows.shape[1]][rows] = field[:, : rows.shape[1]][rows]
    return result


@pytest.fixture(name='reference_assign')
def fixture_reference_assign() -> Callable[..., list[Positive]]:
    return reference_assign


@pytest.fixture(name='poison')
def fixture_poison() -> Callable[[Targets, int], Targets]:
    return poison


@pytest.fixture(name='rotate')
def fixture_rotate() -> Callable[[Targets, int], Targets]:
    return rotate


@pytest.fixture(name='make_scene')
def fixture_make_scene() -> Callable[..., tuple[RawOutputs, Targets, AnchorGrid]]:
    return make_scene


@pytest.fixture
def predict() -> Callable[..., list[dict[str, Any]]]:
    """What a detector does with a head, one path at a time: decode, select, place."""

    def run(
        head: Head,
        outputs: Any,
        grid: AnchorGrid,
        metas: list[dict[str, Any]],
        *,
        path: str = 'one_to_one',
        max_detections: int,
        score_threshold: float,
        iou_threshold: float = 0.7,
    ) -> list[dict[str, Any]]:
        rules = Rules(path, max_detections, score_threshold, iou_threshold)
        rows, maps = select(head.decode(outputs, grid, rules), rules), head.maps(outputs)
        maps = None if maps is None else maps.cpu().numpy()
        found: Any = head.place(rows.cpu().numpy(), maps, metas, rules=rules, run=map)
        return list(found)

    return run
