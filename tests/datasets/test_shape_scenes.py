import cv2
import numpy as np
import pytest

from lucid.datasets.shape_scenes import CLASSES, DIFFICULTIES, make_scene, overlap
from lucid.structures.polygons import ring_area
from lucid.structures.rotated import from_corners


@pytest.fixture(scope='module', params=['easy', 'hard'])
def scenes(request):
    difficulty = DIFFICULTIES[request.param]
    rngs = (np.random.Generator(np.random.PCG64([1, index])) for index in range(300))
    return difficulty, [make_scene(rng, 160, difficulty) for rng in rngs]


def area_of_intersection(first, second, *, scale=8):
    """In square pixels, by filling both at a finer resolution."""
    filled = [np.zeros((160 * scale, 160 * scale), np.uint8) for _ in range(2)]
    for canvas, shape in zip(filled, (first, second), strict=True):
        cv2.fillPoly(canvas, [np.round(shape.outline * scale).astype(np.int32)], 1)
    return (filled[0] & filled[1]).sum() / scale**2


def test_scenes_hold_one_to_eight_objects_of_all_classes(scenes):
    _, found = scenes
    counts = [len(scene) for scene in found]
    assert min(counts) == 1
    assert max(counts) == 8
    labels = np.bincount([shape.label for scene in found for shape in scene], minlength=len(CLASSES))
    assert (labels > 0.2 * labels.sum()).all()


def test_sizes_stay_in_their_range_and_fill_it(scenes):
    difficulty, found = scenes
    low, high = difficulty.sizes
    sizes = np.array([np.ptp(shape.outline, axis=0).max() / 160 for scene in found for shape in scene])
    assert sizes.min() >= low
    assert sizes.max() <= high
    assert sizes.min() < low + 0.02 * (high - low)
    assert sizes.max() > high - 0.02 * (high - low)
    assert DIFFICULTIES['easy'].sizes == (0.08, 0.5)


def test_objects_lie_inside_the_image_with_their_rotated_boxes(scenes):
    _, found = scenes
    for scene in found:
        for shape in scene:
            assert shape.corners.min() >= 0
            assert shape.corners.max() <= 160
            assert shape.outline.min() >= 0
            assert shape.outline.max() <= 160


def test_no_two_objects_overlap_by_more_than_three_tenths_of_the_smaller(scenes):
    _, found = scenes
    overlapping = 0
    for scene in found[:60]:
        for order, shape in enumerate(scene):
            for other in scene[:order]:
                shared = area_of_intersection(shape, other)
                overlapping += shared > 0
                smaller = min(ring_area(shape.outline), ring_area(other.outline))
                # The measure's grid of 48x48 points and the fill's borders are good to about a hundredth.
                assert shared / smaller <= 0.3 + 0.03
    assert overlapping > 0


def test_the_overlap_of_two_squares_is_their_shared_part_of_the_smaller():
    square = np.array([[0, 0], [10, 0], [10, 10], [0, 10]], float)
    assert overlap(square, square + np.array([5, 0])) == 0.5
    assert overlap(square, square / 2 + 8) == pytest.approx(4 / 25)
    assert overlap(square, square + 10) == 0
    # Inside one another: all of the smaller.
    assert overlap(square, square / 2 + 2) == 1


def test_rotated_boxes_hold_their_outline_and_touch_it(scenes):
    _, found = scenes
    for scene in found[:60]:
        for shape in scene:
            cx, cy, w, h, theta = from_corners(shape.corners[None])[0]
            cos, sin = np.cos(theta), np.sin(theta)
            own = (shape.outline - [cx, cy]) @ np.array([[cos, -sin], [sin, cos]])
            # Coordinates are rounded to hundredths.
            np.testing.assert_allclose(np.abs(own).max(axis=0), [w / 2, h / 2], atol=0.03)
            assert 0.4 < h / w < 0.85


def test_keypoints_are_the_outermost_points(scenes):
    _, found = scenes
    for scene in found:
        for shape in scene:
            low, high = shape.outline.min(axis=0), shape.outline.max(axis=0)
            top, right, bottom, left = shape.keypoints[:, :2]
            assert [top[1], right[0], bottom[1], left[0]] == [low[1], high[0], high[1], low[0]]
            for point in shape.keypoints[:, :2]:
                assert cv2.pointPolygonTest(shape.outline.astype(np.float32), point.tolist(), True) > -0.02


def test_keypoints_under_a_later_object_are_hidden(scenes):
    _, found = scenes
    seen = {1: 0, 2: 0}
    for scene in found:
        for order, shape in enumerate(scene):
            for x, y, visibility in shape.keypoints:
                depth = max(
                    (cv2.pointPolygonTest(o.outline.astype(np.float32), (x, y), True) for o in scene[order + 1 :]),
                    default=-1,
                )
                if abs(depth) > 1e-2:
                    assert visibility == (1 if depth > 0 else 2)
                seen[int(visibility)] += 1
    assert seen[2] > seen[1]
    assert seen[1] > 0 or scenes[0] is DIFFICULTIES['hard']
