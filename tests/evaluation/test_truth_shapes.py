import numpy as np
import pytest
from faster_coco_eval import mask as coco_mask

from lucid.evaluation.truth_shapes import keypoint_shapes, mask_shapes, rotated_shapes

IMAGE = {'height': 10, 'width': 20}
SQUARE = [4, 2, 8, 2, 8, 6, 4, 6]


def pixels(shape):
    return coco_mask.decode(shape['segmentation'])


def test_rings_and_run_lengths_give_the_pixels_that_coco_fills():
    expected = np.zeros((10, 20), np.uint8)
    expected[2:6, 4:8] = 1
    packed = coco_mask.encode(np.asfortranarray(expected))
    forms = [
        [SQUARE],
        packed,
        {'size': [10, 20], 'counts': packed['counts'].decode()},
        {'size': [10, 20], 'counts': [42, 4, 6, 4, 6, 4, 6, 4, 124]},
    ]
    shapes = mask_shapes([{'segmentation': form} for form in forms], [IMAGE] * 4)
    for shape in shapes:
        np.testing.assert_array_equal(pixels(shape), expected)
        assert isinstance(shape['segmentation']['counts'], str)


def test_a_ring_far_beyond_the_image_costs_nothing_and_keeps_its_part_inside():
    far = [-1e9, 2, 8, 2, 8, 6, -1e9, 6]
    (shape,) = mask_shapes([{'segmentation': [far]}], [IMAGE])
    expected = np.zeros((10, 20), np.uint8)
    expected[2:6, :8] = 1
    np.testing.assert_array_equal(pixels(shape), expected)
    assert mask_shapes([{'segmentation': [[1e9, 1e9, 2e9, 1e9, 2e9, 2e9]]}], [IMAGE]) == [None]


@pytest.mark.parametrize(
    'segmentation',
    [
        None,
        'nonsense',
        [],
        [[1, 2, 3, 4]],
        [[1, 2, 3, 4, 5, 6, 7]],
        [[1, 2, 3, 4, 5, float('nan')]],
        [SQUARE, [1, 2]],
        {'size': [20, 10], 'counts': [100, 100]},
        {'size': [10, 20], 'counts': [100]},
        {'size': [10, 20], 'counts': [-100, 300]},
        {'size': [10, 20], 'counts': 'PPPPPPPPPPPPPPPP'},
        {'size': [10, 20], 'counts': '04'},  # 4 of the 200 pixels
        {'size': [10, 20], 'counts': 7},
        {'size': [10, 20], 'counts': [200]},  # no pixel
        {'counts': [100, 100]},
        [[30, 30, 40, 30, 40, 40]],  # beside the image
    ],
)
def test_what_is_no_mask_of_the_image_or_has_no_pixel_is_none(segmentation):
    assert mask_shapes([{'segmentation': segmentation}], [IMAGE]) == [None]


def test_labelled_keypoints_are_counted_and_missing_ones_are_zeros():
    rows = [
        {'keypoints': [1, 2, 2, 3, 4, 1, 0, 0, 0], 'num_keypoints': 3},
        {},
        {'keypoints': [1, 2, 2]},
        {'keypoints': [1, 2, 2, 3, 4, 1, 0, 0, None]},
    ]
    first, second, *wrong = keypoint_shapes(rows, 3)
    assert first == {'keypoints': [1, 2, 2, 3, 4, 1, 0, 0, 0], 'num_keypoints': 2}
    assert second == {'keypoints': [0] * 9, 'num_keypoints': 0}
    assert wrong == [None, None]


def test_corners_come_from_obb_else_from_a_ring_of_four():
    rows = [
        {'obb': SQUARE, 'difficult': 1},
        {'segmentation': [[0, 0, 8, 0, 8, 4, 0, 4]]},
        {'segmentation': [SQUARE, SQUARE]},
        {'segmentation': {'size': [10, 20], 'counts': [100, 100]}},
        {'obb': [0, 0, 0, 0, 0, 0, 0, 0]},
        {'obb': [1, 2, 3]},
        {},
    ]
    first, second, *wrong = rotated_shapes(rows)
    assert first == {'rbox': [6, 4, 4, 4, pytest.approx(0)], 'area': 16, 'iscrowd': 1}
    assert second == {'rbox': [4, 2, 8, 4, pytest.approx(0)], 'area': 32, 'iscrowd': 0}
    assert wrong == [None] * 5
    assert rotated_shapes([]) == []
