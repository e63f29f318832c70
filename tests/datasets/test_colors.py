import cv2
import numpy as np
import pytest

from lucid.datasets.colors import hsv_table, recolor
from lucid.datasets.layers import HSVParameters


def by_table(image, parameters):
    """The three tables one by one, and nothing else."""
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    table = hsv_table(parameters)
    changed = np.stack([table[hsv[..., channel], channel] for channel in range(3)], axis=2)
    return cv2.cvtColor(changed, cv2.COLOR_HSV2RGB_FULL)


@pytest.fixture(scope='module')
def noise():
    return np.random.default_rng(0).integers(0, 256, (150, 40, 3), dtype=np.uint8)


def test_the_table_adds_hue_around_the_circle_and_scales_the_rest_with_clamping():
    table = hsv_table(HSVParameters(hue=-1 / 256, saturation=2, value=0.5)).astype(int)
    np.testing.assert_array_equal(table[:3, 0], [255, 0, 1])
    np.testing.assert_array_equal(table[[0, 3, 127, 128, 255], 1], [0, 6, 254, 255, 255])
    np.testing.assert_array_equal(table[[0, 1, 2, 3, 255], 2], [0, 0, 1, 2, 128])  # halves go to the even level


def test_colours_are_those_of_the_table_bit_for_bit_whatever_is_drawn(noise):
    rng = np.random.default_rng(1)
    drawn = [HSVParameters(h, 1 + s, 1 + v) for h, s, v in rng.uniform(-1, 1, (300, 3)) * (0.015, 0.7, 0.4)]
    # Halves between two levels, where arithmetic in single precision and the table part; a hue halfway.
    drawn += [HSVParameters(0.5 / 256, 1, 1), HSVParameters(0, 0.5 + 1e-9, 1.5 - 1e-9), HSVParameters()]
    for parameters in drawn:
        np.testing.assert_array_equal(recolor(noise, parameters), by_table(noise, parameters))


def test_the_table_itself_is_used_where_arithmetic_would_differ(noise, monkeypatch):
    used = []
    monkeypatch.setattr(cv2, 'LUT', lambda *args, lut=cv2.LUT, **kwargs: used.append(1) or lut(*args, **kwargs))
    parameters = HSVParameters(0, 0.5 + 1e-9, 1)
    np.testing.assert_array_equal(recolor(noise, parameters), by_table(noise, parameters))
    assert used
    used.clear()
    recolor(noise, HSVParameters(0.01, 1.3172, 0.7319))
    assert not used


def test_a_fourth_channel_is_not_read_and_the_result_goes_where_it_should(noise):
    parameters = HSVParameters(0.01, 1.3, 0.7)
    four = np.dstack([noise, np.full(noise.shape[:2], 9, np.uint8)])
    out = np.zeros_like(noise)
    assert recolor(four, parameters, out=out) is out
    np.testing.assert_array_equal(out, recolor(noise, parameters))
    copy = noise.copy()
    recolor(copy, parameters, out=copy)
    np.testing.assert_array_equal(copy, out)
