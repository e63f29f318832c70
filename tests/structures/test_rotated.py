import numpy as np
import pytest

from lucid.structures.affine import mirroring, rotation, shearing
from lucid.structures.rotated import canonical, corners, from_corners, rbox_envelopes, warp_rboxes

PI = np.pi


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        ((4, 2, 0.0), (4, 2, 0.0)),
        ((2, 4, 0.0), (4, 2, PI / 2)),  # the long edge points down
        ((4, 2, PI), (4, 2, 0.0)),
        ((4, 2, 3 * PI / 4), (4, 2, -PI / 4)),  # the upper end is excluded
        ((4, 2, -PI / 4), (4, 2, -PI / 4)),
        ((4, 2, PI / 2), (4, 2, PI / 2)),
        ((2, 4, -0.1), (4, 2, PI / 2 - 0.1)),
        ((3, 3, PI / 4), (3, 3, -PI / 4)),  # a square repeats after a quarter turn
        ((3, 3, PI / 2 + 0.1), (3, 3, 0.1)),
    ],
)
def test_the_long_edge_comes_first_and_the_angle_is_folded(given, expected):
    result = canonical(np.array([[5, 6, *given]]))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, [[5, 6, *expected]], atol=1e-6)


def test_angles_stay_below_their_upper_end_in_float32():
    angles = np.nextafter(3 * PI / 4, 0) - np.linspace(0, 1e-6, 50)
    boxes = canonical(np.column_stack([np.zeros((50, 2)), np.full(50, 4.0), np.full(50, 2.0), angles]))
    assert (boxes[:, 4] < np.float32(3 * PI / 4)).all()
    assert (boxes[:, 4] >= np.float32(-PI / 4)).all()


def test_sides_that_are_equal_in_float32_are_those_of_a_square():
    for w, h in ((1.00000001, 1.0), (1.0, 1.00000001)):
        found = canonical(np.array([[0.0, 0.0, w, h, 2.0]]))
        assert found[0, 2] == found[0, 3] == 1
        assert found[0, 4] == pytest.approx(2.0 - np.pi / 2)
        assert np.array_equal(canonical(found), found)


def test_corners_run_round_the_box():
    box = np.array([[10, 20, 4, 2, PI / 2]], np.float32)
    # Turned by a quarter from +x to +y: the own x axis points down, the own y axis left.
    np.testing.assert_allclose(corners(box), [[[11, 18], [11, 22], [9, 22], [9, 18]]], atol=1e-5)


def test_a_box_is_refitted_to_its_own_corners_exactly():
    rng = np.random.default_rng(1)
    boxes = canonical(
        np.column_stack([rng.uniform(0, 100, (200, 2)), rng.uniform(2, 50, (200, 2)), rng.uniform(-9, 9, 200)])
    )
    np.testing.assert_allclose(from_corners(corners(boxes)), boxes, atol=1e-3)


def test_a_ring_that_is_no_rectangle_is_fitted_by_means_of_opposite_sides():
    # A parallelogram: long edges of 4 along x, slanted ones of sqrt(1 + 1); its centre is the mean of the corners.
    fitted = from_corners(np.array([[[0, 0], [4, 0], [5, 1], [1, 1]]], np.float32))
    np.testing.assert_allclose(fitted, [[2.5, 0.5, 4, np.sqrt(2), 0]], atol=1e-6)


def test_mirroring_negates_the_angle():
    mirrored = warp_rboxes(mirroring(100), np.array([[10, 20, 8, 2, 0.3], [10, 20, 8, 2, 1.2]], np.float32))
    np.testing.assert_allclose(mirrored, [[90, 20, 8, 2, -0.3], [90, 20, 8, 2, PI - 1.2]], atol=1e-5)


def test_turning_the_plane_adds_to_the_angle():
    turned = warp_rboxes(rotation(90), np.array([[10, 0, 8, 2, 0.3]], np.float32))
    np.testing.assert_allclose(turned, [[0, 10, 8, 2, 0.3 + PI / 2]], atol=1e-5)


def test_under_shear_the_long_edge_keeps_its_direction():
    sheared = warp_rboxes(shearing(20, 0), np.array([[0, 0, 8, 2, 0]], np.float32))
    assert sheared[0, 4] == pytest.approx(0, abs=1e-6)
    assert sheared[0, 2] == pytest.approx(8, abs=1e-5)


def test_the_envelope_of_a_diagonal_square_is_its_diagonal_wide():
    np.testing.assert_allclose(
        rbox_envelopes(np.array([[0, 0, 2, 2, -PI / 4]], np.float32)), [[-np.sqrt(2), -np.sqrt(2)] + [np.sqrt(2)] * 2]
    )


def test_no_boxes_stay_an_empty_array():
    none = np.zeros((0, 5), np.float32)
    assert warp_rboxes(rotation(10), none).shape == (0, 5)
    assert rbox_envelopes(none).shape == (0, 4)
