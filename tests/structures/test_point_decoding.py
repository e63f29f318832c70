import numpy as np
import pytest
import torch

from lucid.structures import Detections
from lucid.structures.anchors import decode_points, gather_anchors, make_anchor_grid, without_broken
from lucid.structures.detections import decode_end_to_end, pack_rows
from lucid.structures.point_decoding import place_points

GRID = make_anchor_grid((64, 64))  # 84 anchors
HALF_AND_DOWN = np.array([[0.5, 0, 0], [0, 0.5, 25], [0, 0, 1]])  # 200x100 letterboxed into 100x100
META = {'image_id': 7, 'file': 'a.jpg', 'original_hw': (100, 200), 'matrix': HALF_AND_DOWN}


def test_a_point_lies_at_its_offset_in_strides_from_the_anchor(device):
    grid = make_anchor_grid((64, 64), device=device)
    offsets = torch.zeros(1, 84, 2, 2, device=device)
    offsets[0, 9] = torch.tensor([[1.0, -2.0], [0.25, 100.0]])  # anchor (12, 12), stride 8
    offsets[0, 83] = torch.tensor([[0.5, 0.0], [0.0, -0.5]])  # anchor (48, 48), stride 32
    points = decode_points(offsets, grid)
    assert points[0, 9].tolist() == [[20, -4], [14, 812]]
    assert points[0, 83].tolist() == [[64, 48], [48, 32]]
    assert points[0, 0].tolist() == [[4, 4], [4, 4]]


def test_half_precision_points_are_decoded_in_float32_and_float64_stays():
    offsets = torch.randn(1, 84, 3, 2)
    assert decode_points(offsets.bfloat16(), GRID).dtype == torch.float32
    assert torch.equal(decode_points(offsets.bfloat16(), GRID), decode_points(offsets.bfloat16().float(), GRID))
    assert decode_points(offsets.double(), GRID).dtype == torch.float64


def test_rows_are_gathered_by_the_anchors_of_their_own_image(device):
    values = torch.arange(2 * 5 * 3, device=device).view(2, 5, 3)
    found = gather_anchors(values, torch.tensor([[4, 0], [2, -1]], device=device))
    assert found.tolist() == [[[12, 13, 14], [0, 1, 2]], [[21, 22, 23], [15, 16, 17]]]


def test_points_are_those_of_the_rows_that_stay_in_original_pixels():
    boxes = [[10.0, 30, 50, 60], [50, 30, 10, 60], [10, 0, 20, 20], [20, 30, 50, 60]]  # inverted; in the padding
    found = Detections(
        torch.tensor([boxes]), torch.tensor([[0.9, 0.8, 0.7, 0.6]]), torch.arange(4)[None], torch.arange(4)[None]
    )
    points = torch.arange(4.0).view(1, 4, 1, 1).expand(1, 4, 3, 2) * 10 + 25
    prediction = place_points(pack_rows(found, points.flatten(2))[0].numpy(), META)
    assert prediction['labels'].tolist() == [0, 3]
    assert prediction['keypoints'].tolist() == [[[50, 0]] * 3, [[110, 60]] * 3]
    assert prediction['keypoints'].dtype == torch.float32
    # Control: the points of the first rows, whatever became of them, are others.
    assert points[0, :2].ne(points[0, [0, 3]]).any()


def test_an_image_without_detections_gives_no_points():
    found = Detections(torch.zeros(1, 1, 4), torch.zeros(1, 1), torch.zeros(1, 1).long(), torch.full((1, 1), -1))
    prediction = place_points(pack_rows(found, torch.zeros(1, 1, 10))[0].numpy(), META)
    assert prediction['keypoints'].shape == (0, 5, 2)


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_an_anchor_with_another_number_that_is_not_finite_is_not_decoded(bad):
    logits, distances, offsets = torch.zeros(1, 84, 1), torch.ones(1, 84, 4), torch.zeros(1, 84, 2, 2)
    offsets[0, 0, 1, 0] = bad
    found = decode_end_to_end(logits, without_broken(distances, offsets), GRID, max_detections=84)
    assert found.anchors_BK[0].tolist() == [*range(1, 84), -1]
    assert decode_end_to_end(logits, distances, GRID, max_detections=1).anchors_BK.tolist() == [[0]]


def test_selecting_reads_nothing_on_the_host():
    """The meta device has shapes but no values, and refuses to be read."""
    grid = make_anchor_grid((64, 64), device='meta')
    offsets = torch.zeros(2, 84, 3, 2, device='meta')
    found = decode_end_to_end(
        torch.zeros(2, 84, 1, device='meta'), without_broken(torch.ones(2, 84, 4, device='meta'), offsets), grid
    )
    assert gather_anchors(decode_points(offsets, grid), found.anchors_BK).shape == (2, 300, 3, 2)
