import numpy as np
import pytest
import torch

from lucid.structures.affine import letterboxing, rotation
from lucid.structures.rotated_decoding import place_rboxes, unwarp_rboxes

PI = np.pi
HALF_AND_DOWN = [[0.5, 0, 0], [0, 0.5, 25], [0, 0, 1]]  # 200x100 letterboxed into 100x100


def rows_of(rboxes, scores=None):
    """Rows without an upright box of their own."""
    count = len(rboxes)
    columns = np.zeros((count, 4)), np.array(scores or [0.9] * count)[:, None], np.arange(count)[:, None], rboxes
    return np.concatenate(columns, axis=1).astype(np.float32)


def meta_of(matrix, original_hw=(100, 200)):
    return {'image_id': 7, 'file': 'a.jpg', 'original_hw': original_hw, 'matrix': np.array(matrix, dtype=np.float64)}


def test_centre_and_sides_go_back_through_the_letterbox_and_the_angle_stays():
    prediction = place_rboxes(rows_of([[50.0, 45.0, 20.0, 10.0, 0.3]]), meta_of(HALF_AND_DOWN))
    np.testing.assert_allclose(prediction['rboxes'], [[100, 40, 40, 20, 0.3]], rtol=1e-6)
    # The envelope: half sides 20·cos + 10·sin and 20·sin + 10·cos.
    x, y = 20 * np.cos(0.3) + 10 * np.sin(0.3), 20 * np.sin(0.3) + 10 * np.cos(0.3)
    np.testing.assert_allclose(prediction['boxes'], [[100 - x, 40 - y, 100 + x, 40 + y]], rtol=1e-6)
    assert (prediction['image_id'], prediction['file']) == (7, 'a.jpg')
    assert prediction['rboxes'].dtype == prediction['boxes'].dtype == torch.float32


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        ([50, 45, 10, 20, 0.0], [100, 40, 40, 20, PI / 2]),  # a tall box: its long edge points down
        ([50, 45, 20, 10, 7 * PI + 0.25], [100, 40, 40, 20, 0.25]),
        ([50, 45, 20, 10, -1.0], [100, 40, 40, 20, PI - 1.0]),
        ([50, 45, 10, 10, 1.0], [100, 40, 20, 20, 1.0 - PI / 2]),  # a square repeats after a quarter turn
    ],
)
def test_boxes_come_in_the_long_edge_convention(given, expected):
    prediction = place_rboxes(rows_of([given]), meta_of(HALF_AND_DOWN))
    np.testing.assert_allclose(prediction['rboxes'], [expected], rtol=1e-5)


def test_envelopes_are_clipped_and_rotated_boxes_are_not():
    prediction = place_rboxes(rows_of([[2.0, 27.0, 20.0, 10.0, PI / 2]]), meta_of(HALF_AND_DOWN))
    np.testing.assert_allclose(prediction['rboxes'], [[4, 4, 40, 20, PI / 2]], rtol=1e-6)
    np.testing.assert_allclose(prediction['boxes'], [[0, 0, 14, 24]], atol=1e-5)


def test_what_is_dropped_is_dropped_from_all_kinds_alike():
    nan, inf = float('nan'), float('inf')
    rows = [
        [50.0, 45.0, 20.0, 10.0, 0.1],
        [50.0, 45.0, -20.0, 10.0, 0.2],  # inverted
        [50.0, 45.0, 20.0, 0.0, 0.3],  # empty
        [50.0, 5.0, 20.0, 10.0, 0.4],  # in the padding, outside of the image
        [50.0, 45.0, 20.0, 10.0, nan],
        [50.0, inf, 20.0, 10.0, 0.6],
        [60.0, 45.0, 20.0, 10.0, 0.7],
        [50.0, 45.0, 20.0, 10.0, 0.8],  # padding
        [50.0, 45.0, inf, 10.0, 0.9],  # its envelope, clipped, would be the image
    ]
    scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.0, 0.2]
    prediction = place_rboxes(rows_of(rows, scores), meta_of(HALF_AND_DOWN))
    assert prediction['labels'].tolist() == [0, 6]
    np.testing.assert_allclose(prediction['scores'], [0.9, 0.3])
    np.testing.assert_allclose(prediction['rboxes'][:, 4], [0.1, 0.7])
    assert len(prediction['boxes']) == 2


def test_an_image_without_detections_gives_empty_tensors():
    prediction = place_rboxes(rows_of([[0.0] * 5], [0.0]), meta_of(HALF_AND_DOWN))
    assert prediction['rboxes'].shape == (0, 5)
    assert prediction['boxes'].shape == (0, 4)


def test_a_map_that_turns_by_half_leaves_the_sides_and_the_angle():
    matrix = np.array([[-0.5, 0, 100], [0, -0.5, 75], [0, 0, 1]])
    found = unwarp_rboxes(matrix, np.array([[50, 45, 20, 10, 0.3]], np.float32))
    np.testing.assert_allclose(found, [[100, 60, 40, 20, 0.3]], rtol=1e-5)


def test_a_map_that_turns_is_taken_back_with_its_angle():
    matrix = rotation(30.0) @ letterboxing((0, 0, 50, 50), (100, 100))
    there = rotation(30.0) @ (40.0, 20.0, 1.0)
    found = unwarp_rboxes(matrix, np.array([[*there[:2], 12.0, 4.0, np.radians(50)]], np.float32))
    np.testing.assert_allclose(found, [[20, 10, 6, 2, np.radians(20)]], rtol=1e-5)
