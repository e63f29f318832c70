from typing import Any

import pytest
import torch
from torch import Tensor

from lucid.structures import AnchorGrid
from lucid.structures.anchors import decode_boxes, make_anchor_grid
from lucid.structures.detections import decode_end_to_end
from lucid.structures.suppression import AHEAD, suppress
from lucid.structures.targets import Detections


def iou(a: list[float], b: list[float]) -> float:
    width = max(min(a[2], b[2]) - max(a[0], b[0]), 0.0)
    height = max(min(a[3], b[3]) - max(a[1], b[1]), 0.0)
    shared = width * height
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def greedy(
    logits_AC: Tensor, boxes_A4: Tensor, *, score: float, overlap: float, cap: int, class_aware: bool = True
) -> list[tuple[int, int]]:
    """(anchor, label) that stay, best first: written from the definition, one pair of boxes at a time."""
    labels = [row.index(max(row)) for row in logits_AC.tolist()]
    scores = logits_AC.max(dim=1).values.sigmoid().tolist()
    boxes = boxes_A4.double().tolist()
    wide = [a for a, box in enumerate(boxes) if box[2] > box[0] and box[3] > box[1] and scores[a] >= score]
    kept: list[int] = []
    for a in sorted(wide, key=lambda a: (-scores[a], a)):
        rivals = [b for b in kept if labels[b] == labels[a] or not class_aware]
        if all(iou(boxes[a], boxes[b]) <= overlap for b in rivals):
            kept.append(a)
    return [(a, labels[a]) for a in kept[:cap]]


def scene(seed: int, *, classes: int, side: int = 128) -> tuple[Tensor, Tensor, AnchorGrid]:
    """Two images; quantised, so that scores tie and boxes coincide; some inverted, some wholly outside."""
    generator = torch.Generator().manual_seed(seed)
    grid = make_anchor_grid((side, side))
    anchors = len(grid.strides_A)
    logits = torch.randint(-8, 6, (2, anchors, classes), generator=generator).float()
    distances = torch.randint(-2, 9, (2, anchors, 4), generator=generator) / 2
    return logits, distances, grid


def suppressed(
    logits: Tensor,
    distances: Tensor,
    grid: AnchorGrid,
    *,
    score_threshold: float = 0.001,
    **options: Any,
) -> Detections:
    """All anchors ranked, then suppressed."""
    ranked = decode_end_to_end(logits, distances, grid, max_detections=logits.shape[1], score_threshold=score_threshold)
    return suppress(ranked, **options)


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize(('classes', 'cap'), [(1, 40), (4, 300), (20, 7)])
def test_what_stays_is_what_a_greedy_reference_keeps(seed: int, classes: int, cap: int, device: torch.device) -> None:
    logits, distances, grid = scene(seed, classes=classes)
    on = AnchorGrid(*(tensor.to(device) for tensor in grid))
    found = suppressed(
        logits.to(device), distances.to(device), on, max_detections=cap, score_threshold=0.02, iou_threshold=0.5
    )
    boxes = decode_boxes(distances, grid)
    for image in range(2):
        kept = greedy(logits[image], boxes[image], score=0.02, overlap=0.5, cap=cap)
        assert 0 < len(kept) < len(boxes[image])
        anchors = found.anchors_BK[image].tolist()
        assert list(zip(anchors, found.labels_BK[image].tolist(), strict=True))[: len(kept)] == kept
        assert anchors[len(kept) :] == [-1] * (cap - len(kept))
        assert not found.scores_BK[image, len(kept) :].any()
        assert torch.equal(found.boxes_BK4[image, : len(kept)].cpu(), boxes[image][[a for a, _ in kept]])
    # Control: a reference that lets classes suppress each other keeps others.
    if classes == 4:
        mixed = greedy(logits[0], boxes[0], score=0.02, overlap=0.5, cap=cap, class_aware=False)
        assert mixed != greedy(logits[0], boxes[0], score=0.02, overlap=0.5, cap=cap)


def rows(*boxes: tuple[float, ...], scores: list[float], labels: list[int]) -> Detections:
    count = len(boxes)
    return Detections(
        torch.tensor([boxes]).float(), torch.tensor([scores]), torch.tensor([labels]), torch.arange(count).unsqueeze(0)
    )


def test_an_overlap_of_exactly_the_threshold_stays_and_one_above_it_goes() -> None:
    ranked = rows((0, 0, 10, 10), (0, 0, 10, 5), (0, 0, 10, 6), scores=[0.9, 0.8, 0.7], labels=[0, 0, 0])
    # IoU with the first: 0.5 and 0.6; of the second with the third 5/6.
    assert suppress(ranked, iou_threshold=0.5, max_detections=3).anchors_BK.tolist() == [[0, 1, -1]]
    assert suppress(ranked, iou_threshold=0.49, max_detections=3).anchors_BK.tolist() == [[0, -1, -1]]
    assert suppress(ranked, iou_threshold=0.9, max_detections=3).anchors_BK.tolist() == [[0, 1, 2]]


def test_classes_do_not_meet_even_left_of_the_image() -> None:
    """Offsets by class put (-101 + 101) of class 1 onto 0 of class 0, unless boxes are moved to zero first."""
    ranked = rows((0, 0, 100, 100), (-101, -101, -1, -1), scores=[0.9, 0.8], labels=[0, 1])
    assert suppress(ranked, iou_threshold=0.7, max_detections=2).anchors_BK.tolist() == [[0, 1]]

    # Control: torchvision's own offsets let them meet.
    from torchvision.ops import batched_nms

    assert batched_nms(ranked.boxes_BK4[0], ranked.scores_BK[0], ranked.labels_BK[0], 0.7).tolist() == [0]


def test_a_box_without_area_suppresses_nothing_and_takes_no_place() -> None:
    ranked = rows((8, 8, 4, 4), (4, 4, 8, 8), (4, 4, 4, 8), scores=[0.9, 0.8, 0.7], labels=[0, 0, 0])
    found = suppress(ranked, iou_threshold=0.7, max_detections=2)
    assert found.anchors_BK.tolist() == [[1, -1]]
    assert found.boxes_BK4.tolist() == [[[4, 4, 8, 8], [0, 0, 0, 0]]]


def test_nothing_above_the_score_gives_padding_alone() -> None:
    logits, distances, grid = scene(0, classes=2, side=32)
    found = suppressed(logits - 100, distances, grid, max_detections=5)
    assert found.anchors_BK.tolist() == [[-1] * 5] * 2
    assert not found.boxes_BK4.any()


def test_anchors_that_are_not_finite_take_no_part() -> None:
    logits, distances, grid = scene(1, classes=1, side=32)
    logits[0, 3], distances[0, 5, 2] = float('nan'), float('inf')
    anchors = suppressed(logits, distances, grid, score_threshold=0.0).anchors_BK[0].tolist()
    assert len(set(anchors)) > 2
    assert not {3, 5} & set(anchors)


def test_when_the_best_candidates_are_all_one_object_the_others_are_looked_at_too() -> None:
    cap = 3
    many = [(0.0, 0.0, 10.0, 10.0)] * (AHEAD * cap + 1)
    others = [(20.0 * i, 50.0, 20.0 * i + 10, 60.0) for i in range(4)]
    count = len(many) + len(others)
    scores = torch.linspace(0.9, 0.1, count).tolist()
    found = suppress(rows(*many, *others, scores=scores, labels=[0] * count), max_detections=cap)
    assert found.anchors_BK.tolist() == [[0, len(many), len(many) + 1]]
