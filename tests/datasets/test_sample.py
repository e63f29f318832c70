"""What happens to targets at the border of a window, and behind something that was put in front of them."""

import numpy as np
import pytest

from lucid.structures.masks import fill_rings

RULES = {'min_side': 2.0, 'min_visible': 0.1}


def upright(x1, y1, x2, y2):
    return ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, 0)


def block(size, x1, y1, x2, y2):
    mask = np.zeros(size, bool)
    mask[y1:y2, x1:x2] = True
    return mask


def test_an_object_that_is_not_touched_stays_bit_for_bit(paint):
    sample = paint((40, 60), [(20.3, 15.7, 18.1, 9.2, 0.4), (45, 30, 10, 6, 0)], [0, 1])
    # Inside the first one's box, but beside the slanted object itself.
    mask = block((40, 60), 11, 19, 14, 21)
    assert (mask & ~fill_rings(sample.polygons[0], (40, 60))).sum() == mask.sum()
    covered = sample.covered(mask, **RULES)
    np.testing.assert_array_equal(covered.boxes, sample.boxes)
    for ours, theirs in zip(covered.polygons, sample.polygons, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(covered.keypoints, sample.keypoints)


def test_a_half_hidden_object_keeps_the_half_that_is_seen(paint):
    sample = paint((40, 60), [upright(10.25, 10, 30.25, 20)], [2])
    covered = sample.covered(block((40, 60), 20, 0, 60, 40), **RULES)
    # The seen sides are as exact as before; the cut one is where the mask begins.
    np.testing.assert_allclose(covered.boxes, [[10.25, 10, 20, 20]], atol=1e-5)
    (outline,) = covered.polygons[0]
    np.testing.assert_array_equal([outline.min(axis=0), outline.max(axis=0)], [[10, 10], [20, 20]])
    assert covered.labels.tolist() == [2]
    np.testing.assert_array_equal(covered.rboxes, sample.rboxes)
    # Corners: upper left, upper right, lower right, lower left; the right ones are at x = 30.25, y = 10 and 20.
    np.testing.assert_array_equal(covered.keypoints[0, :, 2], [2, 1, 1, 2])
    np.testing.assert_array_equal(covered.keypoints[..., :2], sample.keypoints[..., :2])
    assert sample.keypoints[..., 2].min() == 2
    np.testing.assert_allclose(sample.boxes, [[10.25, 10, 30.25, 20]], atol=1e-5)


@pytest.mark.parametrize(('right', 'kept'), [(28, True), (29, True), (30, False)])
def test_an_object_is_dropped_when_less_than_the_smallest_share_is_seen(paint, right, kept):
    # 20 columns, of which the mask leaves 30 - right: 2, 1 and 0 of them are 0.1, 0.05 and 0.
    sample = paint((40, 60), [upright(10, 10, 30, 20), upright(40, 10, 50, 20)], [0, 1])
    covered = sample.covered(block((40, 60), 0, 0, right, 40), min_side=1, min_visible=0.05)
    assert covered.labels.tolist() == ([0, 1] if kept else [1])
    kinds = (covered.boxes, covered.polygons, covered.rboxes, covered.keypoints)
    assert {len(kind) for kind in kinds} == {1 + kept}
    # Control: a stricter rule drops what had just enough.
    strict = sample.covered(block((40, 60), 0, 0, right, 40), min_side=1, min_visible=0.11)
    assert strict.labels.tolist() == [1]


def test_an_object_of_which_a_thin_strip_is_seen_is_dropped(paint):
    sample = paint((40, 60), [upright(10, 10, 20, 20)], [0])
    mask = block((40, 60), 10, 10, 19, 20)
    assert len(sample.covered(mask, min_side=2, min_visible=0.05).boxes) == 0
    assert len(sample.covered(mask, min_side=1, min_visible=0.05).boxes) == 1


def test_a_hole_in_the_middle_moves_no_side(paint):
    sample = paint((40, 60), [upright(10, 10, 30, 30)], [0])
    mask = block((40, 60), 15, 15, 25, 25)
    covered = sample.covered(mask, **RULES)
    np.testing.assert_array_equal(covered.boxes, sample.boxes)
    seen = fill_rings(covered.polygons[0], (40, 60))
    whole = fill_rings(sample.polygons[0], (40, 60))
    np.testing.assert_array_equal(seen, whole & ~mask)


def test_an_object_without_polygons_is_taken_to_fill_its_box(paint):
    sample = paint((40, 60), [upright(10, 10, 30, 20)], [0])
    mask = block((40, 60), 0, 0, 20, 40)
    sample.polygons = [[]]
    some = sample.covered(mask, **RULES)
    np.testing.assert_array_equal(some.boxes, [[20, 10, 30, 20]])
    assert some.polygons == [[]]
    sample.polygons = sample.keypoints = sample.rboxes = None
    bare = sample.covered(mask, **RULES)
    np.testing.assert_array_equal(bare.boxes, [[20, 10, 30, 20]])
    assert bare.polygons is bare.keypoints is bare.rboxes is None


def test_keypoints_that_are_not_labelled_or_lie_outside_stay(paint):
    sample = paint((40, 60), [upright(10, 10, 30, 20)], [0])
    sample.keypoints = np.array([[[0, 0, 0], [-3, 5, 2], [70, 90, 2], [12, 12, 1]]], np.float32)
    covered = sample.covered(np.ones((40, 60), bool), min_side=0, min_visible=0)
    assert len(covered.boxes) == 0  # nothing is seen of it at all
    part = sample.covered(block((40, 60), 0, 0, 15, 40), **RULES)
    np.testing.assert_array_equal(part.keypoints, sample.keypoints)


def test_nothing_covers_nothing(paint):
    sample = paint((40, 60), [], [])
    assert len(sample.covered(np.ones((40, 60), bool), **RULES).boxes) == 0
    outside = paint((40, 60), [upright(70, 10, 90, 20)], [0])
    np.testing.assert_array_equal(outside.covered(np.ones((40, 60), bool), **RULES).boxes, outside.boxes)


def test_the_box_of_a_slanted_object_that_is_cut_is_that_of_the_part_inside(paint):
    # A square on its tip around (20, 20): corners at x = 10 and 30. Inside x <= 15 it is a triangle of height 5.
    sample = paint((40, 60), [(20, 20, 200**0.5, 200**0.5, np.pi / 4)], [0])
    window = (0.0, 0.0, 15.0, 40.0)
    np.testing.assert_allclose(sample.clipped(window, **RULES).boxes, [[10, 15, 15, 25]], atol=1e-4)
    # Without polygons nobody knows: the box is cut alone.
    sample.polygons = None
    np.testing.assert_allclose(sample.clipped(window, **RULES).boxes, [[10, 10, 15, 30]], atol=1e-4)


def test_an_object_whose_box_alone_reaches_inside_is_dropped(paint):
    # The tips are the middles of the box's sides: its corner at (10, 10) is empty.
    sample = paint((40, 60), [(20, 20, 200**0.5, 200**0.5, np.pi / 4), upright(0, 0, 8, 8)], [0, 1])
    window = (0.0, 0.0, 14.0, 14.0)
    assert sample.clipped(window, min_side=2, min_visible=0.01).labels.tolist() == [1]
    sample.polygons[0] = []
    assert sample.clipped(window, min_side=2, min_visible=0.01).labels.tolist() == [0, 1]


def test_what_is_wholly_inside_keeps_a_box_that_is_not_its_outlines(paint):
    sample = paint((40, 60), [upright(10, 10, 30, 20)], [0])
    sample.boxes = np.array([[9.5, 9, 31, 22]], np.float32)
    np.testing.assert_array_equal(sample.clipped((0, 0, 60, 40), **RULES).boxes, sample.boxes)
    # On the right it is cut, on the other sides it keeps what it had.
    np.testing.assert_array_equal(sample.clipped((0, 0, 25, 40), **RULES).boxes, [[9.5, 9, 25, 22]])
