import json
import pickle

import numpy as np
import pytest
import torch

from lucid.evaluation import CocoMetric
from lucid.evaluation.matching import IGNORED, NONE, ImageTruth
from lucid.evaluation.overlaps import Objects
from lucid.evaluation.report import DEFAULT_CONFIDENCE, best_confidence, confusion_matrix, worst_images
from lucid.evaluation.results import ImageResult

A, B, C, FAR = (0, 0, 10, 10), (20, 0, 30, 10), (40, 0, 50, 10), (90, 90, 99, 99)


def result(*rows, image_id=1):
    boxes, scores, labels = zip(*rows, strict=True) if rows else ((), (), ())
    boxes = np.float32(boxes).reshape(-1, 4)
    return ImageResult(image_id, boxes, np.float32(scores), np.array(labels, np.int64), 0, f'{image_id}.jpg')


def objects(*rows):
    boxes = np.array([box for box, _ in rows], np.float64).reshape(-1, 4)
    found = Objects(boxes, np.array([k for _, k in rows], np.int64))
    return ImageTruth(found, found.pick(np.zeros(0, np.int64)))


def test_three_boxes_by_hand():
    """A bolt found, a nut taken for a bolt, a bolt missed, and a nut where nothing is."""
    truths = {1: objects((A, 0), (B, 1), (C, 0))}
    found = {1: result((A, 0.9, 0), (B, 0.8, 0), (FAR, 0.7, 1), (C, 0.2, 0))}
    assert confusion_matrix(found, truths, 2).tolist() == [
        [1, 0, 1],  # bolts: found, taken for a nut, missed
        [1, 0, 0],  # nuts
        [0, 1, 0],  # background
    ]
    # Control: from the score 0.2 on the missed bolt is found.
    assert confusion_matrix(found, truths, 2, score=0.2)[0].tolist() == [2, 0, 0]
    # Control: A's detection moved by 4 of 10 pixels has IoU 6 / 14.
    moved = {1: result(((4, 0, 14, 10), 0.9, 0))}
    assert confusion_matrix(moved, {1: objects((A, 0))}, 2).tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert confusion_matrix(moved, {1: objects((A, 0))}, 2, iou=0.42)[0, 0] == 1


def test_a_duplicate_is_a_false_detection_of_background():
    found = {1: result((A, 0.9, 0), (A, 0.8, 0))}
    assert confusion_matrix(found, {1: objects((A, 0))}, 1).tolist() == [[1, 0], [1, 0]]


def test_rows_of_classes_count_every_object_once():
    rng = np.random.default_rng(0)
    boxes = rng.uniform(0, 50, (30, 2))
    rows = [((*corner, *(corner + 12)), int(rng.integers(3))) for corner in boxes]
    found = {1: result(*[((x, y, x + 12, y + 11), float(rng.random()), int(rng.integers(3))) for x, y in boxes])}
    counts = confusion_matrix(found, {1: objects(*rows)}, 3)
    assert counts[:3].sum(axis=1).tolist() == np.bincount([k for _, k in rows], minlength=3).tolist()
    assert counts[:, :3].sum() == (found[1].scores >= 0.25).sum()


def test_the_confidence_with_the_best_f1_by_hand():
    images = {1: result((A, 0.9, 0), (B, 0.8, 0), (C, 0.5, 0)), 2: result((A, 0.5, 0), (B, 0.1, 0), image_id=2)}
    matches = {1: np.array([0, NONE, 1]), 2: np.array([0, NONE])}
    # From 0.9 on: 2 * 1 / (1 + 4); 0.8: 2 / 6; 0.5: 2 * 3 / (4 + 4) = 0.75; 0.1: 6 / 9.
    assert best_confidence(images, matches, 4) == (0.5, 0.75)
    # Control: between two detections of one score there is no place to cut: 2 * 2 / (3 + 4) is not reached.
    assert best_confidence(images, {**matches, 2: np.array([NONE, NONE])}, 4)[1] == pytest.approx(2 * 2 / (4 + 4))
    # One that lies on a crowd counts for nothing.
    ignored = {1: np.array([0, IGNORED, 1]), 2: np.array([0, NONE])}
    assert best_confidence(images, ignored, 4) == (0.5, pytest.approx(6 / 7))


def test_without_a_right_detection_the_confidence_is_the_usual_one():
    assert best_confidence({1: result((A, 0.9, 0))}, {1: np.array([NONE])}, 3) == (DEFAULT_CONFIDENCE, 0.0)
    assert best_confidence({1: result()}, {1: np.zeros(0, int)}, 0) == (DEFAULT_CONFIDENCE, 0.0)


def test_images_are_ranked_by_missed_and_false_together():
    truths = {1: objects((A, 0)), 2: objects((A, 0), (B, 0)), 3: objects((A, 0), (B, 0)), 4: objects((A, 0))}
    found = {
        1: result((A, 0.9, 0)),  # right
        2: result((A, 0.9, 0)),  # one missed
        3: result((A, 0.9, 0), (FAR, 0.8, 0), (FAR, 0.1, 0), image_id=3),  # one missed, one false, one below
        4: result((A, 0.9, 0), (FAR, 0.9, 0), image_id=4),  # one false
    }
    matches = {1: np.array([0]), 2: np.array([0]), 3: np.array([0, NONE, NONE]), 4: np.array([0, NONE])}
    worst = worst_images(found, truths, matches, confidence=0.5, number=3)
    assert [(row.image_id, row.num_missed, row.num_false) for row in worst] == [(3, 1, 1), (2, 1, 0), (4, 0, 1)]
    assert worst[0].file == '3.jpg'
    assert worst[0].scores.tolist() == pytest.approx([0.9, 0.8])
    assert worst[0].truth_boxes.tolist() == [list(A), list(B)]
    # Controls: a lower confidence turns the third detection false; the number cuts the list.
    assert worst_images(found, truths, matches, confidence=0.05, number=1)[0].num_false == 2
    assert len(worst_images(found, truths, matches, confidence=0.5, number=2)) == 2


def truth_file(folder):
    rows = [(1, 1, [0, 0, 10, 10]), (1, 2, [20, 0, 10, 10]), (2, 1, [0, 0, 10, 10])]
    content = {
        'images': [{'id': i, 'file_name': f'{i}.jpg', 'width': 100, 'height': 100} for i in (1, 2)],
        'categories': [{'id': 1, 'name': 'bolt'}, {'id': 2, 'name': 'nut'}],
        'annotations': [
            {'id': i, 'image_id': image, 'category_id': category, 'bbox': box}
            for i, (image, category, box) in enumerate(rows, start=1)
        ],
    }
    path = folder / 'truth.json'
    path.write_text(json.dumps(content))
    return path


def prediction(image_id, rows, path='one_to_one'):
    boxes, scores, labels = zip(*rows, strict=True) if rows else ((), (), ())
    return {
        'image_id': image_id,
        'file': f'somewhere/{image_id}.jpg',
        'boxes': torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        'scores': torch.tensor(scores),
        'labels': torch.tensor(labels, dtype=torch.int64),
        'path': path,
    }


def test_the_metric_reports_each_path_of_its_last_evaluation(tmp_path):
    metric = CocoMetric(ann_file=truth_file(tmp_path), paths=('one_to_one', 'nms'))
    assert metric.reports() == []
    first = [prediction(1, [(A, 0.9, 0), (B, 0.8, 1)]), prediction(2, [(A, 0.7, 0)])]
    second = [prediction(1, [(A, 0.9, 0), (FAR, 0.8, 1)], 'nms'), prediction(2, [], 'nms')]
    metric.process(None, [{**one, 'nms': other} for one, other in zip(first, second, strict=True)])
    metric.evaluate(2)
    right, wrong = metric.reports(num_worst=1, confusion_rule=(0.85, 0.5))
    assert (right.path, wrong.path) == ('one_to_one', 'nms')
    assert right.classes == ('bolt', 'nut')
    assert (right.confidence, right.f1, right.worst) == (pytest.approx(0.7), 1.0, ())
    assert right.ap_K.tolist() == [1, 1]
    assert right.precision_KR.shape == (2, 101)
    assert (right.precision_KR == 1).all()
    assert right.confusion.tolist() == [[1, 0, 1], [0, 0, 1], [0, 0, 0]]
    assert wrong.ap50_K.tolist() == [pytest.approx(51 / 101), 0]
    assert [(row.image_id, row.file) for row in wrong.worst] == [(1, 'somewhere/1.jpg')]


def test_reports_that_are_put_off_are_those_of_their_evaluation_in_any_process(tmp_path):
    metric = CocoMetric(ann_file=truth_file(tmp_path), paths=('one_to_one',))
    metric.process(None, [prediction(1, [(A, 0.9, 0), (B, 0.8, 1)]), prediction(2, [(A, 0.7, 0)])])
    metric.evaluate(2)
    late = pickle.dumps(metric.reporter(num_worst=1))
    metric.process(None, [prediction(1, []), prediction(2, [(A, 0.6, 0)])])
    metric.evaluate(2)
    (first,), (second,) = pickle.loads(late)(), metric.reports(num_worst=1)
    assert (first.f1, len(first.worst)) == (1.0, 0)
    # Control: the evaluation after it missed two.
    assert (second.f1, [row.num_missed for row in second.worst]) == (pytest.approx(0.5), [2])
