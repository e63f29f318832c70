import numpy as np
import pytest
import torch

from lucid.structures import Detections
from lucid.structures.anchors import make_anchor_grid
from lucid.structures.detections import decode_end_to_end, of_path, pack_rows, place_detections, place_rows

GRID = make_anchor_grid((64, 64))  # 84 anchors


def logits_of(probabilities):
    return torch.logit(torch.tensor(probabilities))


def outputs_with(device='cpu', **scores):
    """One image, two classes, 84 anchors of probability 0.001; ``a5=(0.2, 0.9)`` sets anchor 5."""
    logits = torch.full((1, 84, 2), -7.0)
    for name, pair in scores.items():
        logits[0, int(name[1:])] = logits_of(pair)
    return logits.to(device), torch.ones(1, 84, 4, device=device)


def test_the_best_class_of_each_anchor_counts_and_anchors_come_best_first(device):
    grid = make_anchor_grid((64, 64), device=device)
    logits, distances = outputs_with(device, a5=(0.2, 0.9), a70=(0.95, 0.94), a9=(0.5, 0.1))
    found = decode_end_to_end(logits, distances, grid, max_detections=3)
    assert found.anchors_BK.tolist() == [[70, 5, 9]]
    assert found.labels_BK.tolist() == [[0, 1, 0]]
    torch.testing.assert_close(found.scores_BK.cpu(), torch.tensor([[0.95, 0.9, 0.5]]))
    # Anchor 5 lies at (44, 4) with stride 8, anchor 70 at (40, 24) with stride 16.
    assert found.boxes_BK4[0, 1].tolist() == [36, -4, 52, 12]
    assert found.boxes_BK4[0, 0].tolist() == [24, 8, 56, 40]


def test_equal_scores_go_to_the_lowest_anchor_and_equal_classes_to_the_lowest_class(device):
    grid = make_anchor_grid((320, 320), device=device)
    logits = torch.zeros(4, 2100, 3, device=device)
    found = decode_end_to_end(logits, torch.ones(4, 2100, 4, device=device), grid)
    assert found.anchors_BK.tolist() == [list(range(300))] * 4
    assert found.labels_BK.eq(0).all()


def test_topk_would_not_keep_the_lowest_anchors():
    """The control of the test above."""
    assert torch.zeros(4, 2100).topk(300, dim=1).indices.tolist() != [list(range(300))] * 4


def test_fewer_anchors_than_rows_are_padded_with_zero_rows():
    found = decode_end_to_end(*outputs_with(), GRID)
    assert found.boxes_BK4.shape == (1, 300, 4)
    assert found.scores_BK.shape == found.labels_BK.shape == found.anchors_BK.shape == (1, 300)
    assert found.scores_BK[0, :84].gt(0).all()
    assert found.scores_BK[0, 84:].eq(0).all()
    assert found.boxes_BK4[0, 84:].eq(0).all()
    assert found.anchors_BK[0, 84:].eq(-1).all()


def test_scores_below_the_threshold_become_zero_rows():
    logits, distances = outputs_with(a5=(0.2, 0.9), a7=(0.4, 0.1))
    found = decode_end_to_end(logits, distances, GRID, max_detections=5, score_threshold=0.3)
    assert found.anchors_BK.tolist() == [[5, 7, -1, -1, -1]]
    assert found.boxes_BK4[0, 2:].eq(0).all()
    assert found.labels_BK[0, 2:].eq(0).all()


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_an_anchor_with_a_box_that_is_not_finite_is_padding(bad):
    logits, distances = outputs_with(a5=(0.2, 0.9), a7=(0.4, 0.1))
    distances[0, 5, 2] = bad
    found = decode_end_to_end(logits, distances, GRID, max_detections=1)
    assert found.anchors_BK.tolist() == [[7]]


def test_an_anchor_whose_logit_is_nan_is_padding():
    logits, distances = outputs_with(a5=(0.2, 0.9), a7=(0.4, 0.1))
    logits[0, 5, 0] = float('nan')
    found = decode_end_to_end(logits, distances, GRID, max_detections=84)
    assert found.anchors_BK[0, 0] == 7
    assert 5 not in found.anchors_BK


def test_decoding_reads_nothing_on_the_host():
    """The meta device has shapes but no values, and refuses to be read."""
    grid = make_anchor_grid((64, 64), device='meta')
    logits, distances = (output.to('meta') for output in outputs_with())
    assert decode_end_to_end(logits, distances, grid).boxes_BK4.shape == (1, 300, 4)


def test_half_precision_outputs_are_scored_in_float32():
    logits, distances = outputs_with(a5=(0.2, 0.9))
    found = decode_end_to_end(logits.bfloat16(), distances.bfloat16(), GRID)
    assert found.scores_BK.dtype == found.boxes_BK4.dtype == torch.float32


def detections_of(boxes, scores, labels):
    return Detections(
        torch.tensor([boxes], dtype=torch.float32),
        torch.tensor([scores]),
        torch.tensor([labels]),
        torch.arange(len(scores))[None],
    )


def meta_of(matrix, original_hw=(100, 200)):
    return {'image_id': 7, 'file': 'a.jpg', 'original_hw': original_hw, 'matrix': np.array(matrix, dtype=np.float64)}


HALF_AND_DOWN = [[0.5, 0, 0], [0, 0.5, 25], [0, 0, 1]]  # 200x100 letterboxed into 100x100


def rows_of(found):
    return pack_rows(found)[0].numpy()


def test_rows_hold_box_score_label_and_what_else_there_is_in_float32_on_the_device(device):
    found = detections_of([[1, 2, 3, 4], [5, 6, 7, 8]], [0.75, 0.5], [3, 2**24])
    found = Detections(*(field.to(device) for field in found))
    half = torch.tensor([[[9.0, 10.0], [11.0, 12.0]]], dtype=torch.bfloat16, device=device)
    rows = pack_rows(found, half)
    assert (rows.dtype, rows.device.type) == (torch.float32, device.type)
    assert rows.tolist() == [[[1, 2, 3, 4, 0.75, 3, 9, 10], [5, 6, 7, 8, 0.5, 2**24, 11, 12]]]
    assert pack_rows(found).tolist() == rows[..., :6].tolist()


def test_boxes_come_back_in_original_pixels_clipped_to_the_image():
    found = detections_of([[10, 30, 50, 60], [-5, 20, 101, 80]], [0.9, 0.8], [3, 1])
    prediction = place_detections(rows_of(found), meta_of(HALF_AND_DOWN))
    assert prediction['image_id'] == 7
    assert prediction['file'] == 'a.jpg'
    assert prediction['boxes'].tolist() == [[20, 10, 100, 70], [0, 0, 200, 100]]
    assert prediction['labels'].tolist() == [3, 1]
    torch.testing.assert_close(prediction['scores'], torch.tensor([0.9, 0.8]))
    assert [prediction[key].dtype for key in ('boxes', 'scores', 'labels')] == [
        torch.float32,
        torch.float32,
        torch.int64,
    ]


def test_a_flip_in_the_matrix_keeps_boxes_upright():
    found = detections_of([[10, 30, 50, 60]], [0.9], [0])
    prediction = place_detections(rows_of(found), meta_of([[-1, 0, 200], [0, 1, 0], [0, 0, 1]]))
    assert prediction['boxes'].tolist() == [[150, 30, 190, 60]]


def test_padding_rows_and_empty_boxes_are_dropped():
    inverted, outside, padding = [50, 30, 10, 60], [10, 0, 20, 20], [0, 0, 0, 0]
    found = detections_of([inverted, [10, 30, 50, 60], outside, padding], [0.9, 0.8, 0.7, 0.0], [0, 1, 2, 0])
    prediction = place_detections(rows_of(found), meta_of(HALF_AND_DOWN))
    assert prediction['labels'].tolist() == [1]


def test_what_was_kept_is_told_by_row():
    inverted, outside, padding = [50, 30, 10, 60], [10, 0, 20, 20], [0, 0, 0, 0]
    found = detections_of(
        [inverted, [10, 30, 50, 60], outside, [10, 30, 50, 61], padding], [0.9, 0.8, 0.7, 0.6, 0.0], [0] * 5
    )
    placed = place_rows(rows_of(found), meta_of(HALF_AND_DOWN))
    assert placed.rows_N.tolist() == [1, 3]
    torch.testing.assert_close(placed.prediction['scores'], torch.tensor([0.8, 0.6]))


def test_an_image_without_detections_gives_empty_tensors():
    found = detections_of([[0, 0, 0, 0]], [0.0], [0])
    prediction = place_detections(rows_of(found), meta_of(HALF_AND_DOWN))
    assert prediction['boxes'].shape == (0, 4)
    assert prediction['scores'].shape == prediction['labels'].shape == (0,)


def test_the_part_of_a_prediction_is_found_by_its_path_and_a_missing_one_is_named():
    plain = {'boxes': 1}
    assert of_path(plain, 'one_to_one') is plain
    both = {'boxes': 1, 'path': 'nms', 'one_to_one': plain}
    assert of_path(both, 'nms') is both
    assert of_path(both, 'one_to_one') is plain
    with pytest.raises(ValueError, match="no path 'nms': the model gives 'one_to_one' only"):
        of_path(plain, 'nms')
