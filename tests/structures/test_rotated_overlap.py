import math

import numpy as np
import pytest

from lucid.structures.rotated import canonical
from lucid.structures.rotated_overlap import rotated_ious


def boxes(*rows):
    return np.array(rows, np.float32).reshape(-1, 5)


def clipped_iou(first, second):
    """IoU of two convex polygons, written out: one is cut by each edge of the other, then areas by the shoelace."""

    def corners(box):
        cx, cy, w, h, theta = map(float, box)
        along, across = np.array([math.cos(theta), math.sin(theta)]), np.array([-math.sin(theta), math.cos(theta)])
        turns = ((-1, -1), (1, -1), (1, 1), (-1, 1))
        return [np.array([cx, cy]) + along * w / 2 * i + across * h / 2 * j for i, j in turns]

    def area(ring):
        following = [*ring[1:], *ring[:1]]
        return abs(sum(a[0] * b[1] - a[1] * b[0] for a, b in zip(ring, following, strict=True))) / 2

    ring, frame = corners(first), corners(second)
    for start, end in zip(frame, [*frame[1:], frame[0]], strict=True):
        kept = []
        for a, b in zip(ring, [*ring[1:], *ring[:1]], strict=True):
            side_a, side_b = (
                (end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0])
                for point in (a, b)
            )
            if side_a >= 0:
                kept.append(a)
            if (side_a >= 0) != (side_b >= 0):
                kept.append(a + (b - a) * side_a / (side_a - side_b))
        ring = kept
    shared = area(ring) if len(ring) > 2 else 0.0
    return shared / (area(corners(first)) + area(corners(second)) - shared)


def test_a_square_and_itself_turned_by_an_eighth_share_an_octagon():
    # The octagon has 2 (sqrt 2 - 1) of the square's area: IoU = 1 / sqrt 2.
    ious = rotated_ious(boxes((5, 5, 1, 1, 0)), boxes((5, 5, 1, 1, math.pi / 4), (5, 5, 1, 1, 0)))
    np.testing.assert_allclose(ious, [[1 / math.sqrt(2), 1]], atol=1e-6)


@pytest.mark.parametrize(('shift', 'iou'), [(0, 1), (10, 1 / 3), (5, 0.6), (20, 0), (25, 0)])
def test_a_box_moved_along_its_own_direction_overlaps_by_what_is_left(shift, iou):
    theta = 0.4
    moved = (50 + shift * math.cos(theta), 50 + shift * math.sin(theta), 20, 6, theta)
    ious = rotated_ious(boxes((50, 50, 20, 6, theta)), boxes(moved))
    np.testing.assert_allclose(ious, [[iou]], atol=1e-5)


def test_random_boxes_agree_with_clipping_written_out():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.uniform(0, 60, (40, 2)), rng.uniform(3, 50, (40, 2)), rng.uniform(-9, 9, 40)])
    first, second = rows[:20], canonical(rows[20:])
    expected = [[clipped_iou(a, b) for b in second] for a in first]
    np.testing.assert_allclose(rotated_ious(first, second), expected, atol=1e-9)
    assert 0.1 < np.mean(np.array(expected) > 0.05) < 0.9


def test_the_same_pair_far_out_in_a_large_image_has_the_same_iou():
    near = boxes((8, 8, 16, 4, 0.5)), boxes((10, 9, 16, 4, 0.75))
    far = [box + np.float32([2**14, 2**14, 0, 0, 0]) for box in near]
    np.testing.assert_allclose(rotated_ious(*far), rotated_ious(*near), atol=1e-12)


def test_what_cannot_reach_the_least_may_be_zero_and_the_rest_keeps_its_value():
    rng = np.random.default_rng(1)
    rows = np.column_stack([rng.uniform(0, 40, (60, 2)), rng.uniform(5, 30, (60, 2)), rng.uniform(0, 3, 60)])
    whole, few = rotated_ious(rows, rows), rotated_ious(rows, rows, least=0.5)
    np.testing.assert_array_equal(few[whole >= 0.5], whole[whole >= 0.5])
    assert set(few[few != whole]) == {0.0}
    # An IoU of exactly the least is kept.
    assert rotated_ious(boxes((0, 0, 10, 10, 0)), boxes((0, 0, 10, 5, 0)), least=0.5)[0, 0] == pytest.approx(0.5)


def test_rounding_of_the_bound_drops_no_pair_whose_overlap_is_the_least():
    """Boxes moved along their own edge, whose bound is the overlap itself."""
    rng = np.random.default_rng(0)
    for row in np.column_stack([rng.uniform(0, 1e3, (200, 2)), rng.uniform(1, 1e3, (200, 2)), rng.uniform(-4, 4, 200)]):
        moved = row.copy()
        moved[:2] += rng.uniform(0, 1) * row[2] * np.array([math.cos(row[4]), math.sin(row[4])])
        iou = rotated_ious(row[None], moved[None])[0, 0]
        assert iou > 0
        assert rotated_ious(row[None], moved[None], least=iou)[0, 0] == iou


def test_boxes_without_area_and_no_boxes_overlap_nothing():
    nothing = boxes((5, 5, 0, 0, 0), (5, 5, 9, 0, 0.3))
    assert rotated_ious(nothing, boxes((5, 5, 10, 10, 0), (5, 5, 0, 0, 0))).tolist() == [[0, 0], [0, 0]]
    assert rotated_ious(boxes(), nothing).shape == (0, 2)
    assert rotated_ious(nothing, boxes()).shape == (2, 0)
