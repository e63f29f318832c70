import numpy as np
import pytest

from lucid.datasets.layers import Layer, Source, envelope
from lucid.structures.affine import mirroring, rotation, scaling, translation

SOURCE = Source((20, 30), pixels=np.zeros((20, 30, 3), np.uint8))


def test_the_envelope_of_a_mapped_rectangle_is_around_its_corners():
    assert envelope(translation(1, 2) @ scaling(-2, 3), (1, 1, 4, 3)) == (-7, 5, -1, 11)
    # A quarter turn takes (x, y) to (-y, x).
    assert envelope(rotation(90), (1, 2, 4, 8)) == pytest.approx((-8, 1, -2, 4))


def test_a_layer_is_cropped_in_pixels_of_its_source():
    doubled = Layer(SOURCE, translation(-10, 4) @ scaling(2, 2))
    assert doubled.extent == (-10, 4, 50, 44)
    cropped = doubled.cropped((0, 0, 40, 30))
    assert cropped.crop == (5, 0, 25, 13)
    assert cropped.extent == (0, 4, 40, 30)
    assert cropped.cropped((10, 10, 100, 100)).crop == (10, 3, 25, 13)
    mirrored = Layer(SOURCE, mirroring(40)).cropped((20, 0, 40, 20))
    assert mirrored.crop == (0, 0, 20, 20)


def test_what_lies_outside_is_empty():
    layer = Layer(SOURCE, translation(50, 0))
    assert layer.cropped((0, 0, 40, 40)).is_empty
    assert not layer.cropped((0, 0, 51, 40)).is_empty


def test_cutting_leaves_alone_what_lies_inside_and_gives_up_on_turned_ones():
    inside = Layer(SOURCE, translation(2, 2))
    assert inside.cut((22, 32)) is inside
    assert inside.cut((22, 31.5)).crop == (0, 0, 29.5, 20)
    turned = Layer(SOURCE, translation(20, 0) @ rotation(20))
    assert turned.cut((60, 60)) is turned
    assert turned.cut((20, 20)) is None
