import numpy as np
import pytest

from lucid.visualization.text import put_text, text_size


def test_size_is_proportional_to_the_letters_and_grows_with_the_text():
    small, large = text_size('name', 10), text_size('name', 100)
    assert 8 <= large.width / small.width <= 12
    assert (large.ascent, large.descent, large.height) == (80, 25, 105)
    assert text_size('name name', 10).width > 2 * small.width
    assert text_size('', 10).width == 0


@pytest.mark.parametrize('text', ['gÅy', 'Platelets 0.97', '白血球'])
def test_text_stays_inside_its_room(text):
    image = np.zeros((100, 400, 3), np.uint8)
    put_text(image, text, (50, 60), 30, (255, 0, 0))
    rows, columns = np.nonzero(image[..., 0])
    room = text_size(text, 30)
    assert rows.min() >= 60 - room.ascent - 6  # the ring of a capital Å reaches above the ascent
    assert rows.max() <= 60 + room.descent
    assert columns.min() >= 49
    assert columns.max() <= 50 + room.width + 1
    assert image[..., 1:].max() == 0


def test_text_is_one_line_even_where_the_picture_ends():
    image = np.zeros((100, 60, 3), np.uint8)
    put_text(image, 'much too long for it', (5, 30), 16, (255, 255, 255))
    assert image[40:].max() == 0
    assert image[:, -1].max() > 0
