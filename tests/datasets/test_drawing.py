"""Pixels against a reference in floating point, pixel by pixel as the recipe says."""

from dataclasses import replace

import numpy as np
import pytest

from lucid.datasets import SampleKey, ShapesDataset
from lucid.datasets.drawing import draw
from lucid.datasets.layers import Layer, Pass, Source
from lucid.structures.affine import mirroring, rotation, scaling, translation
from lucid.structures.polygons import contains

GREY = 114


def reference(passes, size):
    """What passes without colour changes show, in float64: each pixel's centre is carried back and looked up."""
    height, width = size
    y, x = np.mgrid[:height, :width] + 0.5
    shown = None
    for one in passes:
        canvas = np.full((height, width, 3), float(GREY))
        for layer in one.layers:
            inverse = np.linalg.inv(layer.matrix)
            u, v = (inverse[row, 0] * x + inverse[row, 1] * y + inverse[row, 2] for row in (0, 1))
            if layer.crop is None:
                canvas = lookup(layer.source.read(), u, v, fades=True)
                continue
            x1, y1, x2, y2 = layer.crop
            # Half open, the ends moved by less than anything that a pixel shows.
            inside = (u >= x1 - 1e-5) & (u < x2 - 1e-5) & (v >= y1 - 1e-5) & (v < y2 - 1e-5)
            canvas[inside] = lookup(layer.source.read(), u, v, fades=False)[inside]
        if shown is None:
            shown = canvas
        elif one.rings is None:
            shown = one.share * shown + (1 - one.share) * canvas
        else:
            centres = np.stack([x.ravel(), y.ravel()], axis=1)
            inside = np.zeros(height * width, bool)
            for ring in one.rings:
                inside |= contains(ring, centres)
            shown = np.where(inside.reshape(height, width, 1), canvas, shown)
    return shown


def lookup(image, u, v, *, fades):
    """Bilinear between pixel centres; beyond the image its border pixels, or grey."""
    height, width = image.shape[:2]
    left, top = np.floor(u - 0.5).astype(int), np.floor(v - 0.5).astype(int)
    a, b = (u - 0.5 - left)[..., None], (v - 0.5 - top)[..., None]

    def at(column, row):
        values = image[np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)].astype(float)
        outside = (column < 0) | (column >= width) | (row < 0) | (row >= height)
        return np.where((outside & fades)[..., None], float(GREY), values)

    upper = at(left, top) * (1 - a) + at(left + 1, top) * a
    lower = at(left, top + 1) * (1 - a) + at(left + 1, top + 1) * a
    return upper * (1 - b) + lower * b


@pytest.fixture
def noise():
    return np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)


def layer(image, matrix, crop=None):
    return Layer(Source(image.shape[:2], pixels=image), matrix, crop)


MAPS = {
    'enlarged': translation(3.3, -2.7) @ scaling(1.7, 1.4),
    'reduced': translation(5.25, 4.5) @ scaling(0.6, 0.45),
    'mirrored': mirroring(50) @ translation(3.3, 2.2) @ scaling(1.1, 1.1),
    'turned': translation(10, 5) @ rotation(33) @ scaling(0.8, 1.2),
    'whole pixels': translation(4, 3),
    'whole pixels, mirrored': mirroring(50) @ translation(4, 3),
}


@pytest.mark.parametrize('crop', [None, (0, 0, 40, 30), (0, 7.3, 31.2, 30), (5.6, 0.3, 21.9, 18.7)])
@pytest.mark.parametrize('name', MAPS)
def test_one_layer_is_the_reference_to_rounding(noise, name, crop):
    passes = (Pass((layer(noise, MAPS[name], crop),)),)
    drawn = draw(passes, (44, 50))
    difference = np.abs(drawn - reference(passes, (44, 50)))
    assert difference.max() <= 0.51
    # Control: half a pixel beside is far off.
    beside = (Pass((layer(noise, translation(0.5, 0) @ MAPS[name], crop),)),)
    assert np.abs(drawn - reference(beside, (44, 50))).max() > 40


def test_whole_pixels_are_the_sources_own_bit_for_bit(noise):
    shifted = draw((Pass((layer(noise, translation(4, -3), (2, 1, 40, 30)),)),), (30, 40))
    np.testing.assert_array_equal(shifted[:27, 6:], noise[3:, 2:36])
    assert (shifted[:, :6] == GREY).all()
    assert (shifted[27:] == GREY).all()
    mirrored = draw((Pass((layer(noise, mirroring(40), (0, 0, 40, 30)),)),), (30, 40))
    np.testing.assert_array_equal(mirrored, noise[:, ::-1])


def test_layers_that_meet_leave_no_gap_even_at_pixel_centres(noise):
    # The seam is at x = 20.5, the centre of a pixel, wherever rounding puts it.
    bright = np.full_like(noise, 200)
    for scale in (1.0, 1 / 3, 0.7, 1.1):
        seam = translation(20.5, 0) @ scaling(scale, 3)
        left = layer(bright, seam @ translation(-40, 0), (0, 0, 40, 30))
        right = layer(bright, seam, (0, 0, 40, 30))
        drawn = draw((Pass((left, right)),), (20, 32))
        assert (drawn[:, 21 - int(40 * scale) if 40 * scale < 20 else 0 : 20 + int(40 * scale)] == 200).all()


def test_the_later_layer_lies_over_the_earlier(noise):
    under, over = layer(noise, scaling(1.2, 1.2), (0, 0, 40, 30)), layer(noise, translation(9.5, 6), (0, 0, 20, 20))
    passes = (Pass((under, over)),)
    drawn = draw(passes, (40, 48))
    assert np.abs(drawn - reference(passes, (40, 48))).max() <= 0.51
    # Control: the other order shows.
    assert np.abs(drawn - reference((Pass((over, under)),), (40, 48))).max() > 100


def test_large_images_are_sampled_where_the_float_reference_does():
    image = np.random.default_rng(1).integers(0, 256, (600, 900, 3), dtype=np.uint8)
    passes = (Pass((layer(image, translation(-310.7, -205.2) @ scaling(0.83, 0.83), (300, 200, 900, 600)),)),)
    assert np.abs(draw(passes, (256, 256)) - reference(passes, (256, 256))).max() <= 0.51


@pytest.mark.parametrize('degrees', [0, 8])
def test_a_whole_pipeline_is_the_reference_to_rounding(tmp_path, degrees):
    dataset = ShapesDataset(
        tmp_path,
        split='train',
        num_images=8,
        image_size=64,
        scene_size=90,
        targets=('boxes', 'polygons'),
        pipeline=[
            {'type': 'Mosaic', 'close_last': 0},
            {'type': 'RandomAffine', 'degrees': degrees, 'shear': degrees / 4},
            {'type': 'Mixup', 'prob': 0.5, 'close_last': 0},
            {'type': 'CopyPaste', 'prob': 0.5, 'close_last': 0},
            {'type': 'RandomHSV'},
            {'type': 'HorizontalFlip'},
        ],
    )
    joined = 0
    for epoch in range(2):
        for index in range(len(dataset)):
            picture = dataset[SampleKey(epoch, index, 9)].picture
            passes = tuple(one._replace(colors=()) for one in picture.passes)
            difference = np.abs(replace(picture, passes=passes).pixels - reference(passes, (64, 64)))
            # A rounding per pass, and one where two are blended.
            assert difference.max() <= 0.51 + 0.5 * 2 * (len(passes) - 1)
            assert difference.mean() < 0.5
            joined += len(passes) > 1
    assert joined > 4
