import cv2
import numpy as np
import pytest

from lucid.structures.polygons import clip_rings, contains, ring_area, rings_envelope

SQUARE = np.array([[0, 0], [4, 0], [4, 4], [0, 4]], np.float32)
# A U: two arms of width 1 and height 4 on a bar of height 1.
U = np.array([[0, 0], [1, 0], [1, 4], [3, 4], [3, 0], [4, 0], [4, 5], [0, 5]], np.float32)


def test_the_area_does_not_depend_on_the_direction_of_a_ring():
    assert ring_area(SQUARE) == ring_area(SQUARE[::-1]) == 16
    assert ring_area(U) == 12


def test_the_envelope_holds_all_rings():
    np.testing.assert_array_equal(rings_envelope([SQUARE, SQUARE + 10]), [0, 0, 14, 14])


def test_points_between_the_arms_of_a_u_are_outside():
    points = np.array([[0.5, 1], [2, 1], [3.5, 1], [2, 4.5], [2, 6], [-1, 1]])
    np.testing.assert_array_equal(contains(U, points), [True, False, True, True, False, False])


def test_a_triangle_is_cut_to_a_trapezium():
    triangle = np.array([[0, 0], [8, 0], [0, 8]], np.float32)
    (cut,) = clip_rings([triangle], (0, 0, 10, 4))
    assert ring_area(cut) == 8 * 8 / 2 - 4 * 4 / 2
    np.testing.assert_array_equal(rings_envelope([cut]), [0, 0, 8, 4])


def test_a_ring_inside_is_untouched_and_one_outside_is_left_out():
    assert clip_rings([SQUARE, SQUARE + 20], (0, 0, 10, 10))[0] is SQUARE
    assert clip_rings([SQUARE + 20], (0, 0, 10, 10)) == []


def test_the_arms_of_a_cut_u_enclose_nothing_between_them():
    (cut,) = clip_rings([U], (0, 0, 10, 3))
    assert ring_area(cut) == 2 * 3
    np.testing.assert_array_equal(contains(cut, np.array([[0.5, 1], [2, 1], [3.5, 1]])), [True, False, True])


@pytest.mark.parametrize('seed', range(20))
def test_a_cut_ring_covers_the_pixels_of_the_whole_one_inside_the_window(seed):
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.uniform(0, 2 * np.pi, 9))
    star = (50 + rng.uniform(10, 45, (9, 1)) * np.stack([np.cos(angles), np.sin(angles)], 1)).astype(np.float32)
    window = (30.0, 40.0, 70.0, 90.0)
    y, x = np.mgrid[:100, :100].reshape(2, -1)
    pixels = np.stack([x, y], axis=1) + 0.5
    inside = (pixels >= window[:2]).all(1) & (pixels <= window[2:]).all(1)
    cut = clip_rings([star], window)
    found = contains(cut[0], pixels) if cut else np.zeros(len(pixels), bool)
    np.testing.assert_array_equal(found, contains(star, pixels) & inside)


def test_contains_agrees_with_opencv():
    y, x = np.mgrid[:6, :6].reshape(2, -1)
    pixels = np.stack([x, y], axis=1) + 0.3
    expected = [cv2.pointPolygonTest(U, tuple(map(float, pixel)), False) > 0 for pixel in pixels]
    np.testing.assert_array_equal(contains(U, pixels), expected)
