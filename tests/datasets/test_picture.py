"""Recipes: what is composed, what is drawn at once, and what is never read."""

import numpy as np
import pytest

from lucid.datasets.layers import HSVParameters, Source
from lucid.datasets.picture import Picture
from lucid.structures.affine import mirroring, rotation, scaling, translation


class Reader:
    """Images that note when they are read."""

    def __init__(self, *sizes):
        rng = np.random.default_rng(0)
        self.images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
        self.reads = []

    def read(self, index):
        self.reads.append(index)
        return self.images[index]

    def picture(self, index=0):
        return Picture.read_by(Source(self.images[index].shape[:2], self, index))


def num_sources(picture):
    return sum(len(one.layers) for one in picture.passes)


def test_composing_reads_nothing_and_the_pixels_are_read_once():
    reader = Reader((20, 30))
    picture = reader.picture().warped(scaling(2, 2), (40, 60)).warped(translation(-5, 3), (40, 60))
    picture = picture.recolored(HSVParameters(0.01, 1.2, 0.9)).warped(mirroring(60), (40, 60))
    assert reader.reads == []
    first = picture.pixels
    assert picture.pixels is first
    assert reader.reads == [0]
    assert first.shape == (40, 60, 3)


def test_pixels_that_nothing_was_done_to_are_the_source_itself():
    reader = Reader((20, 30))
    assert reader.picture().pixels is reader.images[0]
    there_and_back = reader.picture().warped(mirroring(30), (20, 30)).warped(mirroring(30), (20, 30))
    assert there_and_back.pixels is reader.images[0]


def test_an_image_outside_of_the_canvas_is_not_read():
    reader = Reader((20, 30), (20, 30), (20, 30))
    parts = [reader.picture(index).warped(translation(20 * index, 0), (20, 60)) for index in range(3)]
    shown = Picture.collage(parts).warped(translation(-45, 0), (20, 15))
    assert num_sources(shown) == 3
    assert shown.pixels.shape == (20, 15, 3)
    # The first ends at 30, the second at 50; the canvas shows 45 to 60.
    assert reader.reads == [1, 2]
    np.testing.assert_array_equal(shown.pixels, reader.images[2][:, 5:20])


def test_two_maps_are_one_resampling():
    reader = Reader((24, 24))
    away = reader.picture().warped(scaling(0.5, 0.5), (24, 24))
    back = away.warped(scaling(2, 2), (24, 24))
    np.testing.assert_array_equal(back.pixels, reader.images[0])
    # Control: drawn in between, the image has lost half of its pixels.
    assert np.abs(away.flat().warped(scaling(2, 2), (24, 24)).pixels - reader.images[0].astype(int)).max() > 50


def test_what_left_the_canvas_does_not_come_back():
    reader = Reader((20, 20))
    left = reader.picture().warped(translation(-8, 0), (20, 20))
    back = left.warped(translation(8, 0), (20, 20))
    np.testing.assert_array_equal(back.pixels[:, 8:], reader.images[0][:, 8:])
    assert (back.pixels[:, :8] == 114).all()
    np.testing.assert_array_equal(back.pixels, left.flat().warped(translation(8, 0), (20, 20)).pixels)
    # Of a turned image the part that is left is no rectangle of the source: it is drawn first.
    turned = reader.picture().warped(rotation(30), (20, 20)).warped(translation(3, 0), (20, 20))
    flat = reader.picture().warped(rotation(30), (20, 20)).flat().warped(translation(3, 0), (20, 20))
    np.testing.assert_array_equal(turned.pixels, flat.pixels)


def test_colours_before_a_map_that_resamples_are_drawn_first():
    reader = Reader((20, 20))
    colors = HSVParameters(0.1, 0.5, 0.5)
    before = reader.picture().recolored(colors).warped(translation(5, 0), (20, 20))
    # The grey that comes in is not recoloured; after the map it is.
    assert (before.pixels[:, :5] == 114).all()
    after = reader.picture().warped(translation(5, 0), (20, 20)).recolored(colors)
    assert (after.pixels[:, :5] == 57).all()
    np.testing.assert_array_equal(before.pixels[:, 5:], after.pixels[:, 5:])


def test_a_mirror_passes_through_colours_and_joins():
    reader = Reader((20, 20), (20, 20))
    ring = np.array([[3, 4], [15, 2], [9, 17]], np.float32)
    second = reader.picture(1).warped(translation(1, 2), (20, 20))
    for picture in (
        reader.picture().recolored(HSVParameters(0.1, 0.5, 1.3)),
        reader.picture().blended(second, 0.3),
        reader.picture().pasted(second, [ring]).recolored(HSVParameters(0.1, 0.5, 1.3)),
    ):
        mirrored = picture.warped(mirroring(20), (20, 20))
        assert num_sources(mirrored) == num_sources(picture)
        np.testing.assert_array_equal(mirrored.pixels, picture.pixels[:, ::-1])


def test_a_blend_is_the_weighted_mean_and_a_paste_shows_the_second_inside_of_its_rings():
    reader = Reader((20, 20), (20, 20))
    first, second = (image.astype(float) for image in reader.images)
    blend = reader.picture().blended(reader.picture(1), 0.3).pixels
    assert np.abs(blend - (0.3 * first + 0.7 * second)).max() <= 0.5 + 1e-6
    ring = np.array([[3, 4], [13, 4], [13, 9], [3, 9]], np.float32)
    expected = first.copy()
    expected[4:9, 3:13] = second[4:9, 3:13]
    np.testing.assert_array_equal(reader.picture().pasted(reader.picture(1), [ring]).pixels, expected)
    np.testing.assert_array_equal(reader.picture().pasted(reader.picture(1), []).pixels, first)


def test_the_sources_own_pixels_are_never_written_to():
    reader = Reader((20, 20), (20, 20))
    for image in reader.images:
        image.setflags(write=False)
    before = [image.copy() for image in reader.images]
    ring = np.array([[3, 4], [13, 4], [13, 9]], np.float32)
    picture = reader.picture().blended(reader.picture(1), 0.5).pasted(reader.picture(1), [ring])
    assert picture.recolored(HSVParameters(0.1, 1.1, 0.9)).pixels.flags.writeable
    assert reader.picture().recolored(HSVParameters(0.1, 1.1, 0.9)).pixels is not reader.images[0]
    for image, copy in zip(reader.images, before, strict=True):
        np.testing.assert_array_equal(image, copy)


@pytest.mark.parametrize('drawn', [True, False])
def test_a_picture_is_drawn_into_a_given_place(drawn):
    reader = Reader((20, 20))
    picture = reader.picture().warped(translation(2.5, 0), (20, 20)).recolored(HSVParameters(0, 1.2, 1))
    expected = picture.flat().pixels if drawn else None
    place = np.zeros((3, 20, 20, 3), np.uint8)
    picture.draw_into(place[1])
    np.testing.assert_array_equal(place[1], picture.pixels if expected is None else expected)
    assert not place[[0, 2]].any()
    reader.picture().draw_into(place[0])
    np.testing.assert_array_equal(place[0], reader.images[0])
