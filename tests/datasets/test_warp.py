import numpy as np
import pytest

from lucid.datasets.transforms import FILL, warp_image
from lucid.structures.affine import rotation, scaling, translation


@pytest.fixture
def noise():
    return np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)


def test_the_identity_is_exact(noise):
    np.testing.assert_array_equal(warp_image(noise, np.eye(3), (37, 53)), noise)


def test_a_shift_by_whole_pixels_is_exact_and_fills_with_grey(noise):
    shifted = warp_image(noise, translation(5, -3), (37, 53))
    np.testing.assert_array_equal(shifted[:34, 5:], noise[3:, :48])
    assert (shifted[:, :5] == FILL).all()
    assert (shifted[34:] == FILL).all()


def test_half_a_pixel_is_the_mean_of_two(noise):
    shifted = warp_image(noise, translation(0.5, 0), (37, 53)).astype(int)
    mean = (noise[:, 1:].astype(int) + noise[:, :-1]) / 2
    assert np.abs(shifted[:, 1:] - mean).max() <= 1


def test_a_quarter_turn_is_exact(noise):
    # About the origin, then back into view: the column x = 0 becomes the upper row, from right to left.
    turned = warp_image(noise, translation(37, 0) @ rotation(90), (53, 37))
    np.testing.assert_array_equal(turned, np.rot90(noise, -1))


def test_enlarging_keeps_pixel_edges_where_continuous_coordinates_put_them():
    image = np.zeros((4, 4, 3), np.uint8)
    image[:, 2:] = 200
    doubled = warp_image(image, scaling(2, 2), (8, 8))[4, :, 0].astype(int)
    # The edge at x = 2 goes to x = 4, between pixels 3 and 4: a quarter and three quarters of the step.
    np.testing.assert_array_equal(doubled[2:6], [0, 50, 150, 200])
