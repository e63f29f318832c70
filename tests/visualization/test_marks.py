import numpy as np
import pytest

from lucid.visualization.marks import draw_message, draw_problem
from lucid.visualization.text import text_size, wrapped

RED = (255, 40, 40)


def canvas():
    return np.full((100, 200, 3), 90, np.uint8)


def reds(picture):
    rows, columns = np.nonzero((picture == RED).all(axis=2))
    return rows, columns


def test_a_box_is_framed_and_the_image_stays_as_it_was():
    image = canvas()
    picture = draw_problem(image, (20, 10, 120, 60), [], side=200)
    assert picture.shape == image.shape
    assert (image == 90).all()
    rows, columns = reds(picture)
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == pytest.approx((20, 120, 10, 60), abs=2)


def test_an_inverted_box_is_framed_like_the_box_it_should_be():
    assert np.array_equal(draw_problem(canvas(), (120, 60, 20, 10), []), draw_problem(canvas(), (20, 10, 120, 60), []))


def test_a_box_without_area_has_a_ring():
    rows, columns = reds(draw_problem(canvas(), (100, 50, 100, 50), [], side=200))
    assert columns.max() - columns.min() == pytest.approx(28, abs=4)
    assert (rows.min() + rows.max()) / 2 == pytest.approx(50, abs=1)


def test_a_box_outside_is_shown_on_a_margin_as_large_as_it_needs():
    picture = draw_problem(canvas(), (210, 10, 250, 60), [], side=1000)
    _, columns = reds(picture)
    # 200 pixels of image and 59 of margin
    assert picture.shape[1] == 1000
    assert columns.min() == pytest.approx(210 * 1000 / 259, abs=4)
    assert (picture[:, -1] == (70, 70, 74)).all()


def test_a_box_far_outside_is_pointed_at():
    picture = draw_problem(canvas(), (1e9, 10, 2e9, 60), [])
    assert max(picture.shape[:2]) == 480
    assert len(reds(picture)[0])


@pytest.mark.parametrize('box', [None, (float('nan'), 1, 2, 3), (1, 2, float('inf'), 3)])
def test_a_box_that_is_no_place_is_not_drawn(box):
    assert not len(reds(draw_problem(canvas(), box, ['what is wrong']))[0])


def test_captions_stand_above_and_a_message_stands_for_an_image_that_cannot_be_read():
    plain, captioned = (draw_problem(canvas(), None, lines, side=200) for lines in ([], ['a', 'b']))
    assert captioned.shape[0] > plain.shape[0]
    panel = draw_message(['a long text that is broken ' * 20, 'and a second'], ['a.jpg'], side=300)
    assert panel.shape[1] == 300
    assert len(np.unique(panel)) > 10


def test_a_long_reason_goes_on_in_further_lines_whose_words_are_whole():
    reason = 'box 0.5 0.5 1.5 0.5 has 1.5, which is no fraction of 0 to 1, and more of this kind'
    lines = wrapped(reason, 11, 200)
    assert len(lines) > 1
    assert ' '.join(lines) == reason
    assert all(text_size(line, 11).width <= 200 for line in lines)
    assert ''.join(wrapped('x' * 100, 11, 60)) == 'x' * 100
    short, long = (draw_problem(canvas(), None, [text], side=200) for text in ('box', reason))
    assert long.shape[0] - 100 >= 2 * (short.shape[0] - 100)
