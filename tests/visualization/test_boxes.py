import numpy as np
import pytest
import torch

from lucid.visualization import class_color, draw_boxes


def canvas(height=120, width=160, value=90):
    return np.full((height, width, 3), value, np.uint8)


def pixels_of(picture, color):
    return {(int(x), int(y)) for y, x in zip(*np.nonzero((picture == color).all(axis=2)), strict=True)}


def test_the_frame_covers_the_border_pixels_of_the_box_and_the_image_stays_as_it_was():
    image = canvas()
    picture = draw_boxes(image, [[20, 40, 60, 90]], [0], classes=['x'])
    assert (image == 90).all()
    assert picture.flags.owndata
    color = class_color(0)
    # The box covers columns 20..59 and rows 40..89.
    for x, y in ((20, 60), (59, 60), (40, 89), (59, 89)):
        assert tuple(picture[y, x]) == color
    for x, y in ((19, 60), (60, 60), (40, 90), (40, 60)):
        assert tuple(picture[y, x]) == (90, 90, 90)


def test_boxes_are_clipped_and_what_is_left_of_nothing_is_not_drawn():
    image = canvas()
    nan = float('nan')
    nothing = [[-50, -50, -10, -10], [500, 10, 600, 20], [30, 30, 30, 60], [60, 60, 20, 80], [nan, 0, 5, 5]]
    assert np.array_equal(draw_boxes(image, nothing, [0] * 5, classes=['x']), image)
    picture = draw_boxes(image, [[-1e6, 60, 1e6, 1e9]], [0], classes=['x'])
    frame = pixels_of(picture, class_color(0))
    assert {(0, 100), (159, 100), (80, 119)} <= frame


def test_no_box_gives_an_equal_copy_and_tensors_are_taken():
    image = canvas()
    picture = draw_boxes(image, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), scores=torch.zeros(0))
    assert np.array_equal(picture, image)
    assert picture is not image
    box, label = torch.tensor([[20.0, 40, 60, 90]]), torch.tensor([1])
    assert np.array_equal(
        draw_boxes(image, box, label, scores=torch.tensor([0.5])), draw_boxes(image, box.numpy(), [1], scores=[0.5])
    )


def test_the_higher_score_lies_on_top_whatever_the_order():
    boxes, scores = np.float32([[20, 40, 60, 90], [20, 40, 60, 90]]), np.float32([0.9, 0.2])
    picture = draw_boxes(canvas(), boxes, [0, 1], scores=scores, classes=['a', 'b'])
    other = draw_boxes(canvas(), boxes[::-1], [1, 0], scores=scores[::-1], classes=['a', 'b'])
    assert np.array_equal(picture, other)
    assert tuple(picture[80, 20]) == class_color(0)


@pytest.mark.parametrize(('box', 'above'), [([20, 60, 100, 110], True), ([20, 2, 100, 110], False)])
def test_the_name_stands_above_the_box_or_inside_where_there_is_no_room(box, above):
    picture = draw_boxes(canvas(), [box], [0], classes=['name'])
    points = pixels_of(picture, class_color(0))
    assert (min(y for _, y in points) < box[1]) == above


def test_a_name_at_the_right_border_stays_inside_the_picture():
    picture = draw_boxes(canvas(), [[150, 60, 160, 100]], [0], classes=['elephant'])
    points = pixels_of(picture, class_color(0))
    assert min(x for x, _ in points) < 130  # the strip is wider than the box and was moved left
    short = draw_boxes(canvas(), [[150, 60, 160, 100]], [0], classes=['i'])
    assert min(x for x, _ in pixels_of(short, class_color(0))) > 140  # control


@pytest.mark.parametrize(
    'name', ['白血球', 'größe', 'тест', 'مرحبا', 'a\nb', '', '\ud800', '\x00', '\U0001f600', 'x' * 500]
)
def test_any_class_name_can_be_drawn(name):
    picture = draw_boxes(canvas(), [[20, 40, 60, 90]], [0], classes=[name])
    assert picture.shape == (120, 160, 3)


def test_letters_outside_ascii_are_drawn_and_not_replaced():
    drawn = [draw_boxes(canvas(), [[20, 40, 60, 90]], [0], classes=[name]) for name in ('血', '球', '?')]
    assert not any(np.array_equal(a, b) for a, b in ((drawn[0], drawn[1]), (drawn[0], drawn[2])))


def test_a_label_without_a_name_is_written_as_its_number():
    named = draw_boxes(canvas(), [[20, 40, 60, 90]], [7], classes=[str(i) for i in range(8)])
    assert np.array_equal(draw_boxes(canvas(), [[20, 40, 60, 90]], [7]), named)


@pytest.mark.parametrize(('side', 'line', 'letters'), [(160, 1, 10), (640, 3, 15), (4000, 17, 95)])
def test_lines_and_letters_grow_with_the_picture(side, line, letters):
    picture = draw_boxes(canvas(side, side), [[0.3 * side, 0.5 * side, 0.9 * side, 0.9 * side]], [0], classes=['name'])
    row = picture[round(0.7 * side)]  # through the box, away from the name; OpenCV may add a pixel on either side
    assert 2 * line <= (row == class_color(0)).all(axis=1).sum() <= 2 * (line + 2)
    rows = [y for _, y in pixels_of(picture, class_color(0))]
    strip = round(0.5 * side) - min(rows)
    assert letters <= strip <= 1.5 * letters + 2


def test_a_name_that_would_lie_on_that_of_a_higher_score_is_left_out():
    boxes, scores = [[20, 60, 60, 100], [22, 62, 62, 102], [100, 60, 140, 100]], [0.5, 0.9, 0.4]
    picture = draw_boxes(canvas(), boxes, [0, 1, 2], scores=scores, classes=['aa', 'bb', 'cc'])
    without = draw_boxes(canvas(), boxes, [0, 1, 2], scores=scores, classes=['', 'bb', 'cc'])
    strip = slice(40, 59)  # above the boxes
    assert {tuple(color) for color in picture[strip, 15:70].reshape(-1, 3)} & {class_color(1)}
    assert not {tuple(color) for color in picture[strip, 15:70].reshape(-1, 3)} & {class_color(0)}
    assert {tuple(color) for color in picture[strip, 95:150].reshape(-1, 3)} & {class_color(2)}
    np.testing.assert_array_equal(picture[strip, 64:], without[strip, 64:])


def test_of_many_objects_the_best_of_each_class_alone_is_named():
    def strips(count):
        corners = [(60 * (i % 10) + 2, 40 + 60 * (i // 10)) for i in range(count)]
        boxes, labels = [[x, y, x + 30, y + 20] for x, y in corners], [i % 2 for i in range(count)]
        scores = np.linspace(0.9, 0.1, count)
        picture = draw_boxes(canvas(400, 640), boxes, labels, scores=scores, classes='ij')
        assert all(tuple(picture[y + 19, x]) == class_color(k) for (x, y), k in zip(corners, labels, strict=True))
        # A name is a filled strip above its box.
        return [
            (picture[y - 12 : y - 4, x : x + 8] == class_color(k)).all(axis=2).any()
            for (x, y), k in zip(corners, labels, strict=True)
        ]

    assert sum(strips(40)) == 40
    assert np.flatnonzero(strips(41)).tolist() == [0, 1]


def test_names_alone_are_drawn_where_frames_are_not_wanted():
    box = [20, 60, 100, 110]
    framed, bare = (draw_boxes(canvas(), [box], [0], classes=['x'], frames=frames) for frames in (True, False))
    np.testing.assert_array_equal(framed[:59], bare[:59])
    assert (framed[61:] != 90).any()
    assert (bare[61:] == 90).all()
