import math

import pytest
import torch
import torch.nn.functional as F

from lucid.structures import AnchorGrid, Detections
from lucid.structures.anchors import gather_anchors, make_anchor_grid, without_broken
from lucid.structures.detections import decode_end_to_end, pack_rows
from lucid.structures.rotated_suppression import suppress_rotated
from lucid.structures.rotated_tensors import compose_rboxes
from lucid.structures.suppression import AHEAD, suppress

GRID = make_anchor_grid((64, 64))  # 84 anchors


def rank(logits, distances, grid, score):
    return decode_end_to_end(logits, distances, grid, max_detections=logits.shape[1], score_threshold=score)


def suppressed(logits, distances, angles, grid, *, score_threshold=0.001, iou_threshold=0.7, max_detections=300):
    """All anchors ranked, then suppressed image by image; the anchor travels behind the rotated box."""
    ranked = rank(logits, without_broken(distances, angles), grid, score_threshold)
    rboxes = compose_rboxes(ranked.boxes_BK4, gather_anchors(angles.float(), ranked.anchors_BK))
    rows = pack_rows(ranked, torch.cat((rboxes, ranked.anchors_BK.unsqueeze(-1)), dim=-1)).cpu().numpy()
    kept = [
        torch.from_numpy(suppress_rotated(image, iou_threshold=iou_threshold, max_detections=max_detections))
        for image in rows
    ]
    assert all(image.shape[1:] == (12,) for image in kept)
    boxes = torch.stack([F.pad(image[:, :4], (0, 0, 0, max_detections - len(image))) for image in kept])
    scores, labels, anchors = (
        torch.stack([F.pad(image[:, column], (0, max_detections - len(image)), value=empty) for image in kept])
        for column, empty in ((4, 0), (5, 0), (11, -1))
    )
    return Detections(boxes, scores, labels.long(), anchors.long())


def corners(cx, cy, w, h, theta):
    cos, sin = math.cos(theta), math.sin(theta)
    return [
        (cx + x * w / 2 * cos - y * h / 2 * sin, cy + x * w / 2 * sin + y * h / 2 * cos)
        for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ]


def area(ring):
    return sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(ring, [*ring[1:], *ring[:1]], strict=True)) / 2


def cut(ring, a, b):
    """The part of a ring on the left of the line from a to b."""

    def side(p):
        return (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])

    kept = []
    for p, q in zip(ring, [*ring[1:], *ring[:1]], strict=True):
        if side(p) >= 0:
            kept.append(p)
        if (side(p) >= 0) != (side(q) >= 0):
            t = side(p) / (side(p) - side(q))
            kept.append((p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])))
    return kept


def iou(one, other):
    ring, window = corners(*one), corners(*other)
    for a, b in zip(window, [*window[1:], *window[:1]], strict=True):
        ring = cut(ring, a, b) if ring else ring
    shared = area(ring) if ring else 0.0
    return shared / (one[2] * one[3] + other[2] * other[3] - shared)


def rbox(distances, angle, anchor):
    (ax, ay), stride = GRID.centers_A2[anchor].tolist(), GRID.strides_A[anchor].item()
    left, top, right, bottom = (value * stride for value in distances)
    return [ax + (right - left) / 2, ay + (bottom - top) / 2, left + right, top + bottom, angle]


def greedy(logits_AC, boxes, *, score, overlap, cap, class_aware=True):
    """(anchor, label) that stay, best first: written from the definition, one pair of boxes at a time."""
    labels = [row.index(max(row)) for row in logits_AC.tolist()]
    scores = logits_AC.max(dim=1).values.sigmoid().tolist()
    usable = [a for a, box in enumerate(boxes) if box[2] > 0 and box[3] > 0 and scores[a] >= score]
    kept = []
    for a in sorted(usable, key=lambda a: (-scores[a], a)):
        rivals = [b for b in kept if labels[b] == labels[a] or not class_aware]
        if all(iou(boxes[a], boxes[b]) <= overlap for b in rivals):
            kept.append(a)
    return [(a, labels[a]) for a in kept[:cap]]


def scene(seed, *, classes):
    """Two images with elongated boxes at many angles; scores tie, some boxes are inverted."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-8, 6, (2, 84, classes), generator=generator).float()
    distances = torch.randint(-1, 7, (2, 84, 4), generator=generator) / 2
    angles = torch.randint(-20, 20, (2, 84, 1), generator=generator) * 0.1 + 0.03
    return logits, distances, angles


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize(('classes', 'cap'), [(1, 84), (3, 84), (3, 7)])
def test_what_stays_is_what_a_greedy_reference_keeps(seed, classes, cap, device):
    logits, distances, angles = scene(seed, classes=classes)
    grid = AnchorGrid(*(tensor.to(device) for tensor in GRID))
    found = suppressed(
        *(tensor.to(device) for tensor in (logits, distances, angles)),
        grid,
        max_detections=cap,
        score_threshold=0.02,
        iou_threshold=0.3,
    )
    assert found.boxes_BK4.shape == (2, cap, 4)
    for image in range(2):
        boxes = [rbox(distances[image, a].tolist(), angles[image, a].item(), a) for a in range(84)]
        kept = greedy(logits[image], boxes, score=0.02, overlap=0.3, cap=cap)
        assert 0 < len(kept) < 84
        anchors = found.anchors_BK[image].tolist()
        assert list(zip(anchors, found.labels_BK[image].tolist(), strict=True))[: len(kept)] == kept
        assert anchors[len(kept) :] == [-1] * (cap - len(kept))
    if cap == 84:
        # Controls: upright boxes would keep others, and so would classes that suppress each other.
        upright = suppress(rank(logits, distances, GRID, 0.02), max_detections=cap, iou_threshold=0.3)
        assert upright.anchors_BK.tolist() != found.anchors_BK.tolist()
        mixed = greedy(logits[1], boxes, score=0.02, overlap=0.3, cap=cap, class_aware=False)
        assert (mixed != kept) is (classes > 1)


def one_anchor(**anchors):
    """84 anchors of probability 0.00005; ``a5=(logit, ltrb, angle)`` sets anchor 5."""
    logits, distances, angles = torch.full((1, 84, 1), -10.0), torch.ones(1, 84, 4), torch.zeros(1, 84, 1)
    for name, (logit, sides, angle) in anchors.items():
        anchor = int(name[1:])
        logits[0, anchor], distances[0, anchor], angles[0, anchor] = logit, torch.tensor(sides), angle
    return logits, distances, angles


def test_crossed_boxes_share_an_envelope_and_stay_parallel_ones_go():
    """Anchors 9 and 10 lie 8 pixels apart; both have the box 32 by 4 about (12, 12)."""
    long, moved = [2.0, 0.25, 2.0, 0.25], [3.0, 0.25, 1.0, 0.25]
    quarter = math.pi / 4
    crossed = suppressed(*one_anchor(a9=(2.0, long, quarter), a10=(1.0, moved, -quarter)), GRID)
    assert crossed.anchors_BK[0, :3].tolist() == [9, 10, -1]
    parallel = suppressed(*one_anchor(a9=(2.0, long, quarter), a10=(1.0, moved, quarter)), GRID)
    assert parallel.anchors_BK[0, :2].tolist() == [9, -1]
    turned = suppressed(*one_anchor(a9=(2.0, long, 0.5), a10=(1.0, moved, 0.5 + 5 * math.pi)), GRID)
    assert turned.anchors_BK[0, :2].tolist() == [9, -1]
    # Control: without their angles the crossed boxes are one.
    upright = suppress(rank(*one_anchor(a9=(2.0, long, 0.0), a10=(1.0, moved, 0.0))[:2], GRID, 0.001))
    assert upright.anchors_BK[0, :2].tolist() == [9, -1]


def test_an_overlap_of_exactly_the_threshold_stays_and_one_above_it_goes():
    """Boxes of 16 by 16, one moved by 4 along: 12 / 20 = 0.6."""
    pair = one_anchor(a9=(2.0, [1.0, 1.0, 1.0, 1.0], 0.0), a10=(1.0, [1.5, 1.0, 0.5, 1.0], 0.0))
    for threshold, kept in ((0.61, [9, 10]), (0.59, [9, -1])):
        found = suppressed(*pair, GRID, iou_threshold=threshold)
        assert found.anchors_BK[0, :2].tolist() == kept
    # 8 / 16 = 0.5, which float32 and float64 hold exactly.
    pair = one_anchor(a9=(2.0, [1.0, 1.0, 1.0, 1.0], 0.0), a10=(1.0, [2.0, 1.0, 0.0, 0.0], 0.0))
    assert suppressed(*pair, GRID, iou_threshold=0.5).anchors_BK[0, :2].tolist() == [9, 10]


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_a_box_or_an_angle_that_is_not_finite_takes_no_part(bad):
    for place in ('box', 'angle'):
        logits, distances, angles = one_anchor(a9=(2.0, [1.0] * 4, 0.1), a10=(1.0, [2.0, 1.0, 0.0, 1.0], 0.1))
        if place == 'box':
            distances[0, 9, 1] = bad
        else:
            angles[0, 9] = bad
        assert suppressed(logits, distances, angles, GRID).anchors_BK[0, :2].tolist() == [10, -1]


def test_a_box_too_large_for_float32_takes_no_part():
    logits, distances, angles = one_anchor(a9=(2.0, [1e25] * 4, 0.1), a10=(1.0, [1.0] * 4, 0.1))
    assert suppressed(logits, distances, angles, GRID).anchors_BK[0, :2].tolist() == [10, -1]


def test_when_the_best_candidates_are_all_one_object_the_others_are_looked_at_too():
    cap = 3
    grid = make_anchor_grid((128, 128))
    logits = torch.linspace(2, -4, 336).view(1, 336, 1)
    distances, angles = torch.full((1, 336, 4), 0.4), torch.full((1, 336, 1), 0.2)
    many = AHEAD * cap + 1
    offsets = (grid.centers_A2[:many] - grid.centers_A2[0]) / 8  # all of them see the box of the first
    distances[0, :many, :2] += offsets
    distances[0, :many, 2:] -= offsets
    found = suppressed(logits, distances, angles, grid, max_detections=cap)
    assert found.anchors_BK.tolist() == [[0, many, many + 1]]


def test_nothing_above_the_score_gives_padding_alone():
    found = suppressed(*one_anchor(), GRID, max_detections=5)
    assert found.anchors_BK.tolist() == [[-1] * 5]
    assert not found.boxes_BK4.any()


def test_half_precision_is_decoded_in_float32():
    logits, distances, angles = (tensor.bfloat16() for tensor in scene(0, classes=2))
    found = suppressed(logits, distances, angles, GRID)
    exact = suppressed(logits.float(), distances.float(), angles.float(), GRID)
    assert all(torch.equal(a, b) for a, b in zip(found, exact, strict=True))
