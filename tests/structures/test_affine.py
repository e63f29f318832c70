import numpy as np
import pytest

from lucid.structures.affine import (
    clip_boxes,
    keeps_axes,
    letterboxing,
    mirroring,
    rotation,
    scaling,
    shearing,
    translation,
    warp_boxes,
    warp_points,
)


def test_a_turn_goes_from_x_towards_y():
    moved = warp_points(rotation(90), np.array([[2.0, 0.0]]))
    np.testing.assert_allclose(moved, [[0, 2]], atol=1e-6)


def test_a_shear_along_x_moves_a_point_by_its_height():
    np.testing.assert_allclose(warp_points(shearing(45, 0), np.array([[1.0, 3.0]])), [[4, 3]], atol=1e-6)


def test_an_odd_image_is_fitted_with_an_unrounded_ratio_and_its_odd_padding_below():
    # 5 rows of 7 pixels into 10x10: ratio 10/7, content 10 x round(50/7) = 7 rows, 3 rows of padding: 1 above, 2 below.
    matrix = letterboxing((0, 0, 7, 5), (10, 10))
    np.testing.assert_allclose(matrix, [[10 / 7, 0, 0], [0, 10 / 7, 1], [0, 0, 1]])


def test_an_odd_column_of_padding_goes_right():
    # 9 rows of 4 pixels into 10x10: ratio 10/9, content round(40/9) = 4 columns, padding 3 left and 3 right; 5 wide: 6.
    assert letterboxing((0, 0, 4, 9), (10, 10))[0, 2] == 3
    assert letterboxing((0, 0, 5, 9), (11, 10))[0, 2] == 2  # content round(5 * 11/9) = 6


def test_the_content_of_a_letterbox_has_at_least_one_pixel():
    # 1 row of 1000 into 10x10: 0.01 rows of content count as one, so that 4 rows of padding lie above it.
    assert letterboxing((0, 0, 1000, 1), (10, 10))[1, 2] == 4


def test_a_window_is_fitted_in_place_of_the_whole_image():
    moved = warp_points(letterboxing((10, 20, 30, 40), (100, 100)), np.array([[10.0, 20.0], [30.0, 40.0]]))
    np.testing.assert_allclose(moved, [[0, 0], [100, 100]])


def test_the_inverse_of_a_letterbox_maps_boxes_back():
    rng = np.random.default_rng(0)
    for _ in range(50):
        height, width = rng.integers(3, 2000, size=2).tolist()
        corners = rng.uniform(0, 1, size=(20, 2, 2)) * (width, height)
        boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1).astype(np.float32)
        matrix = letterboxing((0, 0, width, height), (640, 640))
        back = np.linalg.inv(matrix)
        points = warp_boxes(matrix, boxes).astype(np.float64).reshape(-1, 2) @ back[:2, :2].T + back[:2, 2]
        # float32 resolves 1/16384 of a pixel at 640, which the inverse enlarges by the ratio.
        np.testing.assert_allclose(points.reshape(-1, 4), boxes, atol=1e-4 * max(1, max(height, width) / 640))


def test_a_turned_box_becomes_the_envelope_of_its_corners():
    half = np.sqrt(0.5)
    turned = warp_boxes(rotation(45), np.array([[-1, -1, 1, 1]], np.float32))
    np.testing.assert_allclose(turned, [[-2 * half, -2 * half, 2 * half, 2 * half]], rtol=1e-6)


def test_a_mirrored_box_keeps_its_corners_in_order():
    np.testing.assert_array_equal(warp_boxes(mirroring(10), np.array([[1, 2, 4, 8]], np.float32)), [[6, 2, 9, 8]])


def test_boxes_of_no_object_stay_an_empty_array():
    assert warp_boxes(translation(1, 2), np.zeros((0, 4), np.float32)).shape == (0, 4)


def test_a_box_outside_is_clipped_to_no_area_and_one_inside_is_untouched():
    boxes = np.array([[-5, -5, -1, 3], [1, 1, 2, 2], [8, 8, 20, 9]], np.float32)
    np.testing.assert_array_equal(clip_boxes(boxes, (0, 0, 10, 10)), [[0, 0, 0, 3], [1, 1, 2, 2], [8, 8, 10, 9]])


@pytest.mark.parametrize(
    ('matrix', 'expected'),
    [
        (scaling(2, 3), True),
        (mirroring(5), True),
        (translation(1, 1), True),
        (rotation(1), False),
        (shearing(1, 0), False),
    ],
)
def test_only_turns_and_shears_tilt_upright_boxes(matrix, expected):
    assert keeps_axes(matrix) is expected
