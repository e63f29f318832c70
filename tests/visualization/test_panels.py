import numpy as np
import pytest

from lucid.visualization import add_caption, grid, resize_to_side


def plain(height, width, value):
    return np.full((height, width, 3), value, np.uint8)


@pytest.mark.parametrize(
    ('size', 'side', 'result'),
    [((120, 160), 320, (240, 320)), ((4000, 3000), 480, (480, 360)), ((1, 900), 90, (1, 90))],
)
def test_the_longer_side_gets_the_size_and_proportions_stay(size, side, result):
    assert resize_to_side(plain(*size, 7), side).shape == (*result, 3)


def test_an_image_of_the_size_is_handed_on_as_it_is():
    image = plain(10, 20, 7)
    assert resize_to_side(image, 20) is image


def test_a_grid_holds_every_image_in_reading_order_in_cells_of_the_largest():
    images = [plain(10, 30, 200), plain(20, 10, 201), plain(5, 5, 202)]
    picture = grid(images, columns=2, gap=3)
    assert picture.shape == (3 + 2 * (20 + 3), 3 + 2 * (30 + 3), 3)
    for value, (top, left), image in zip((200, 201, 202), ((3, 3), (3, 36), (26, 3)), images, strict=True):
        height, width = image.shape[:2]
        assert (picture[top : top + height, left : left + width] == value).all()
        assert (picture == value).all(axis=2).sum() == height * width


@pytest.mark.parametrize(('count', 'cells'), [(1, (1, 1)), (2, (1, 2)), (5, (2, 3)), (16, (4, 4))])
def test_a_grid_is_about_square_by_itself(count, cells):
    picture = grid([plain(10, 10, 9)] * count, gap=0)
    assert picture.shape[:2] == (cells[0] * 10, cells[1] * 10)


def test_a_caption_is_a_strip_above_the_image_of_its_width():
    image = plain(50, 200, 77)
    picture = add_caption(image, 'name')
    assert picture.shape[1] == 200
    assert np.array_equal(picture[-50:], image)
    assert picture[:-50].max() > 200  # letters


def test_a_long_caption_is_cut_and_never_wraps():
    long = add_caption(plain(50, 100, 77), 'a very long name ' * 20)
    assert long.shape == add_caption(plain(50, 100, 77), 'a').shape
    assert (long[:-50, -4:] < 60).all()
