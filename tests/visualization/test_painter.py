import numpy as np
import pytest
import torch

from lucid.registry import VISUALIZERS
from lucid.visualization import DetectionPainter, class_color


def image(height=120, width=160, value=90):
    return np.full((height, width, 3), value, np.uint8)


def objects(count=1, scores=None):
    boxes = torch.tensor([[20.0 + 9 * i, 40, 60, 90] for i in range(count)]).reshape(-1, 4)
    found = {'boxes': boxes, 'labels': torch.arange(count)}
    return found if scores is None else {**found, 'scores': torch.tensor(scores)}


def has(picture, label):
    return bool((picture == class_color(label)).all(axis=2).any())


def test_the_painter_is_found_by_its_bare_name():
    assert VISUALIZERS.build({'type': 'DetectionPainter', 'side': 200}).side == 200


@pytest.mark.parametrize(
    ('given', 'side', 'drawn'), [(160, None, 320), (400, None, 400), (4000, None, 480), (160, 200, 200)]
)
def test_panels_are_of_a_readable_size(given, side, drawn):
    picture = DetectionPainter(side=side).draw_batch([image(given, given)], [objects(0)], ['a'], ['x'])
    assert picture.shape[1] == drawn + 8  # and a gap on both sides


def test_boxes_are_scaled_with_their_image():
    picture = DetectionPainter(side=320).draw_batch([image()], [objects()], [''], ['x'])
    rows, columns = np.nonzero((picture == class_color(0)).all(axis=2))
    assert columns.min() - 4 in (39, 40)  # 20 of 160 pixels, twice as large, behind the gap
    assert columns.max() - 4 == 119
    assert picture.shape[0] - 4 - 1 - rows.max() == 240 - 180  # 90 of 120, from below


def test_a_batch_with_and_without_objects_is_one_grid():
    picture = DetectionPainter().draw_batch(
        [image()] * 3, [objects(2), objects(0), objects(1)], list('abc'), ['x', 'y']
    )
    assert has(picture, 1)
    assert picture.shape[0] > 2 * 240
    assert picture.shape[1] > 2 * 320


def test_truth_is_left_and_only_predictions_above_the_threshold_are_right():
    picture = DetectionPainter(score_threshold=0.5).draw_comparison(
        image(), objects(1), objects(3, [0.1, 0.5, 0.9]), 'a.jpg', ['x', 'y', 'z']
    )
    left, right = np.array_split(picture, 2, axis=1)
    assert [has(left, label) for label in range(3)] == [True, False, False]
    assert [has(right, label) for label in range(3)] == [False, True, True]


def test_no_prediction_at_all_is_drawn_as_an_empty_panel():
    picture = DetectionPainter().draw_comparison(image(), objects(0), objects(0, []), 'a', ['x'])
    assert picture.shape[1] == 2 * 320 + 3 * 2


def test_comparisons_are_stacked_two_in_a_row():
    assert DetectionPainter().stack([image(10, 20)] * 3).shape == (3 * 4 + 2 * 10, 3 * 4 + 2 * 20, 3)


def test_a_comparison_may_have_a_threshold_of_its_own(monkeypatch):
    from lucid.visualization import painter

    drawn = []
    monkeypatch.setattr(painter, 'draw_objects', lambda image, found, **_: drawn.append(len(found['boxes'])) or image)
    found = {'boxes': [[0, 0, 9, 9]] * 3, 'labels': [0] * 3, 'scores': [0.9, 0.3, 0.1]}
    truth = {'boxes': (), 'labels': ()}
    for threshold in (None, 0.05, 0.5):
        DetectionPainter().draw_comparison(
            np.zeros((40, 40, 3), np.uint8), truth, found, 'x', ('a',), score_threshold=threshold
        )
    assert drawn == [0, 2, 0, 3, 0, 1]


def test_masks_rotated_boxes_and_keypoints_below_the_threshold_are_left_out_too(monkeypatch):
    from lucid.visualization import painter

    drawn = []
    monkeypatch.setattr(painter, 'draw_objects', lambda image, found, **_: drawn.append(found) or image)
    masks = [{'size': [2, 2], 'counts': '04'}, {'size': [2, 2], 'counts': '4'}]
    found = {'boxes': torch.zeros(2, 4), 'labels': torch.tensor([0, 1]), 'scores': torch.tensor([0.9, 0.1])}
    found |= {'masks': masks, 'rboxes': torch.ones(2, 5), 'keypoints': torch.ones(2, 3, 2), 'limbs': ((0, 1),)}
    truth = {'boxes': np.zeros((1, 4)), 'labels': [0], 'keypoints': np.ones((1, 3, 3))}
    DetectionPainter().draw_comparison(image(), truth, {**found, 'file': 'a.jpg'}, 'x', ('a', 'b'))
    assert drawn[0] is truth
    assert drawn[1]['masks'] == masks[:1]
    assert drawn[1]['rboxes'].shape == (1, 5)
    assert drawn[1]['keypoints'].shape == (1, 3, 2)
    assert drawn[1]['limbs'] == ((0, 1),)
    assert 'file' not in drawn[1]
