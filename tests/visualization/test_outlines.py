import numpy as np
import pytest
from faster_coco_eval import mask as coco_mask

from lucid.visualization import DetectionPainter, class_color, draw_outlines

GREY = np.full((100, 200, 3), 90, np.uint8)


BARE = {'labels': [], 'boxes': np.zeros((0, 4))}


def changed(picture, base=GREY):
    """Envelope of the pixels that differ, xyxy."""
    rows, columns = np.nonzero((picture != base).any(axis=2))
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def square(x1, y1, x2, y2):
    return np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], np.float32)


def test_a_polygon_is_tinted_and_outlined_in_the_color_of_its_class():
    picture = draw_outlines(GREY, {'labels': [3], 'polygons': [[square(20, 10, 60, 50)]]})
    color = np.array(class_color(3))
    np.testing.assert_allclose(picture[30, 40], 0.35 * color + 0.65 * 90, atol=1)
    # The line lies on both sides of the border, smoothed: there the color is stronger than inside.
    assert np.abs(picture[30, 19:21] - color).min(axis=0).max() < np.abs(picture[30, 40] - color).max()
    np.testing.assert_allclose(changed(picture), [20, 10, 60, 50], atol=2)
    assert (GREY == 90).all()


def test_every_ring_of_an_object_is_drawn_and_an_object_without_any_is_not():
    polygons = [[], [square(10, 10, 30, 30), square(100, 60, 120, 80)]]
    picture = draw_outlines(GREY, {'labels': [0, 1], 'polygons': polygons})
    assert (picture[20, 20] != 90).any()
    assert (picture[70, 110] != 90).any()
    assert (picture[50, 60] == 90).all()


def test_a_rotated_box_is_drawn_where_it_lies_with_its_first_side_bright():
    # 60 by 20, a quarter turn: 20 wide and 60 high around (100, 50).
    rbox = np.array([[100, 50, 60, 20, np.pi / 2]], np.float32)
    picture = draw_outlines(GREY, {'labels': [2], 'rboxes': rbox})
    np.testing.assert_allclose(changed(picture), [90, 20, 110, 80], atol=2)
    assert (picture[50, 100] == 90).all()
    # From the corner at (-30, -10) of its own frame, turned to (110, 20), along the long edge.
    assert picture[50, 108:112].min(axis=1).max() > 170
    assert picture[50, 88:92].min(axis=1).max() < 120


def test_visible_keypoints_are_discs_hidden_ones_rings_and_others_are_left_out():
    points = np.array([[[50, 50, 2], [100, 50, 1], [150, 50, 0]]], np.float32)
    picture = draw_outlines(GREY, {'labels': [1], 'keypoints': points})
    np.testing.assert_allclose(picture[50, 50], class_color(1), atol=3)
    assert (picture[50, 100] == 90).all()
    assert (picture[45:56, 95:106] != 90).any()
    assert (picture[40:61, 140:161] == 90).all()


def test_coordinates_are_scaled_with_the_picture():
    objects = {'labels': [0], 'polygons': [[square(10, 5, 30, 25)]]}
    np.testing.assert_allclose(changed(draw_outlines(GREY, objects, scale=2.0)), [20, 10, 60, 50], atol=2)
    half, whole = (DetectionPainter(side=side).draw_batch([GREY], [BARE | objects], [''], ['x']) for side in (200, 400))
    empty = [DetectionPainter(side=side).draw_batch([GREY], [BARE], [''], ['x']) for side in (200, 400)]
    (left, _, right, _), (twice_left, _, twice_right, _) = map(changed, (half, whole), empty)
    np.testing.assert_allclose([left - 4, right - 4], [10, 30], atol=2)
    np.testing.assert_allclose([twice_left - 4, twice_right - 4], [20, 60], atol=2)


def test_without_outlines_a_picture_is_as_before():
    none = {'labels': [1, 2], 'boxes': [[0, 0, 5, 5]] * 2, 'polygons': None, 'rboxes': None}
    np.testing.assert_array_equal(draw_outlines(GREY, none), GREY)
    np.testing.assert_array_equal(draw_outlines(GREY, {'labels': []}), GREY)


@pytest.mark.parametrize('far', [-1e9, 1e9, 5e4])
def test_what_lies_far_outside_is_no_error(far):
    objects = {
        'labels': [0],
        'polygons': [[square(far, far, far + 10, far + 10)]],
        'rboxes': np.array([[far, far, 20, 10, 0.3]], np.float32),
        'keypoints': np.array([[[far, 10, 2]]], np.float32),
    }
    np.testing.assert_array_equal(draw_outlines(GREY, objects), GREY)
    objects['rboxes'] = np.array([[np.nan] * 5], np.float32)
    draw_outlines(GREY, objects)


def run_lengths(mask):
    packed = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {'size': [*mask.shape], 'counts': packed['counts'].decode()}


def ring_of_pixels():
    """A mask of 100 by 200 with a hole."""
    mask = np.zeros((100, 200), bool)
    mask[20:60, 40:100] = True
    mask[30:50, 60:80] = False
    return mask


@pytest.mark.parametrize('form', [run_lengths, lambda mask: mask, lambda mask: mask[::2, ::2]])
def test_a_mask_is_tinted_and_outlined_whatever_its_form_and_resolution_and_a_hole_is_not(form):
    picture = draw_outlines(GREY, {'labels': [3], 'masks': [form(ring_of_pixels())]})
    color = np.array(class_color(3))
    np.testing.assert_allclose(picture[25, 50], 0.35 * color + 0.65 * 90, atol=1)
    np.testing.assert_allclose(changed(picture), [40, 20, 100, 60], atol=2)
    assert (picture[40, 70] == 90).all()
    assert np.abs(picture[25, 39:42] - color).max(axis=1).min() < 40  # the line along its edge


def test_masks_cover_the_picture_whatever_its_scale():
    half = GREY[::2, ::2]
    picture = draw_outlines(half, {'labels': [3], 'masks': [run_lengths(ring_of_pixels())]}, scale=0.5)
    np.testing.assert_allclose(changed(picture, half), [20, 10, 50, 30], atol=2)


def test_an_empty_mask_is_not_drawn_and_the_higher_score_lies_on_top():
    nothing, mask = np.zeros((100, 200), bool), ring_of_pixels()
    np.testing.assert_array_equal(draw_outlines(GREY, {'labels': [0], 'masks': [nothing]}), GREY)
    for labels, scores in (([1, 2], [0.9, 0.2]), ([2, 1], [0.2, 0.9])):
        picture = draw_outlines(GREY, {'labels': labels, 'scores': scores, 'masks': [mask, mask]})
        np.testing.assert_allclose(picture[25, 50], 0.35 * np.array(class_color(1)) + 0.65 * 90, atol=1)


def test_predicted_keypoints_are_all_visible_and_joined_where_limbs_are_known():
    points = np.array([[[50, 50], [150, 50], [100, 90]]], np.float32)
    picture = draw_outlines(GREY, {'labels': [1], 'keypoints': points})
    for x, y in points[0].astype(int).tolist():
        np.testing.assert_allclose(picture[y, x], class_color(1), atol=3)
    assert (picture[50, 80:120] == 90).all()
    joined = draw_outlines(GREY, {'labels': [1], 'keypoints': points, 'limbs': [(0, 1)]})
    assert (joined[48:52, 80:120] != 90).any(axis=(0, 2)).all()
    assert (joined[70, :] == 90).all()


def test_a_limb_without_one_of_its_ends_is_not_drawn():
    points = np.array([[[50, 50, 2], [0, 0, 0]]], np.float32)
    picture = draw_outlines(GREY, {'labels': [1], 'keypoints': points, 'limbs': [(0, 1)]})
    np.testing.assert_array_equal(picture, draw_outlines(GREY, {'labels': [1], 'keypoints': points}))
