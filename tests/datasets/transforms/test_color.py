import colorsys

import numpy as np
import pytest

from lucid.datasets.transforms import HSVParameters, RandomHSV


@pytest.fixture
def colors(paint):
    sample = paint((40, 40), [(20, 20, 10, 5, 0)], [0])
    sample.image[:] = np.random.default_rng(0).integers(0, 256, (40, 40, 3))
    return sample


@pytest.mark.parametrize(
    'parameters',
    [
        HSVParameters(),
        HSVParameters(hue=0.015),
        HSVParameters(hue=-0.3),
        HSVParameters(saturation=0.4),
        HSVParameters(saturation=1.7),
        HSVParameters(value=0.6),
        HSVParameters(value=1.4),
    ],
)
def test_colors_change_as_in_floating_point(colors, parameters):
    expected = []
    for red, green, blue in colors.image.reshape(-1, 3) / 255:
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        hue = (hue + parameters.hue) % 1
        saturation, value = min(saturation * parameters.saturation, 1), min(value * parameters.value, 1)
        expected.append(colorsys.hsv_to_rgb(hue, saturation, value))
    changed = RandomHSV().apply(colors, parameters).image.reshape(-1, 3) / 255
    # Eight bits of hue are 1.4 degrees, up to 6 levels of a channel.
    assert np.abs(changed - np.array(expected)).mean() < 2 / 255
    assert np.abs(changed - np.array(expected)).max() < 10 / 255


def test_hue_wraps_around_red(colors):
    colors.image[:] = (255, 0, 4)  # just below the full circle
    turned = RandomHSV().apply(colors, HSVParameters(hue=0.015)).image[0, 0]
    assert turned[0] > 250
    assert turned[1] > 10  # past red, towards yellow
    assert turned[2] < 5


def test_grey_stays_grey_and_targets_and_source_stay_as_they_were(colors):
    colors.image[:] = 100
    before = colors.boxes.copy()
    changed = RandomHSV().apply(colors, HSVParameters(0.01, 1.6, 1.2))
    assert (changed.image == 120).all()
    assert (colors.image == 100).all()
    np.testing.assert_array_equal(changed.boxes, before)


def test_draws_stay_in_their_ranges_and_fill_them(colors):
    transform, rng = RandomHSV(hue=0.015, saturation=0.7, value=0.4), np.random.default_rng(0)
    draws = (np.array([transform.draw(rng, colors) for _ in range(2000)]) - [0, 1, 1]) / [0.015, 0.7, 0.4]
    assert (np.abs(draws) <= 1).all()
    assert (np.abs(draws).max(axis=0) > 0.98).all()
    assert (np.abs(draws.mean(axis=0)) < 0.05).all()
