import numpy as np

from lucid.visualization import class_color, draw_boxes, draw_objects, draw_outlines

GREY = np.full((120, 160, 3), 90, np.uint8)
FOUND = {'boxes': [[20, 40, 60, 90]], 'labels': [2], 'scores': [0.5]}


def test_boxes_alone_are_drawn_as_boxes():
    expected = draw_boxes(GREY, [[20, 40, 60, 90]], [2], scores=[0.5], classes='abc')
    np.testing.assert_array_equal(draw_objects(GREY, FOUND, classes='abc'), expected)


def test_a_rotated_box_takes_the_place_of_the_upright_one_and_keeps_its_name():
    rotated = {**FOUND, 'rboxes': [[40, 65, 40, 20, 0.8]]}
    picture = draw_objects(GREY, rotated, classes='abc')
    outlined = draw_outlines(GREY, rotated)
    assert (outlined != 90).any()
    np.testing.assert_array_equal(picture[40:], outlined[40:])  # no frame
    assert (picture[26:40] == class_color(2)).all(axis=2).any()  # the name
    # Control: the frame of an upright box has its corner there.
    assert tuple(draw_objects(GREY, FOUND)[89, 20]) == class_color(2) != tuple(picture[89, 20])


def test_boxes_are_scaled_with_the_rest():
    objects = {**FOUND, 'keypoints': [[[40, 65]]]}
    twice = {**FOUND, 'boxes': [[10, 20, 30, 45]], 'keypoints': [[[20, 32.5]]]}
    np.testing.assert_array_equal(draw_objects(GREY, twice, scale=2), draw_objects(GREY, objects))
