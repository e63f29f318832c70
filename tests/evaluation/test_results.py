import json

import numpy as np
from faster_coco_eval import COCO

from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.result_file import write_results
from lucid.evaluation.results import ImageResult, result_rows

TRUTH = GroundTruth(COCO({'images': [], 'annotations': [], 'categories': []}), ('bolt', 'nut'), (7, 90))


def image(image_id, boxes, scores, labels):
    return ImageResult(image_id, np.float32(boxes).reshape(-1, 4), np.float32(scores), np.int64(labels), 0)


def test_rows_are_numbered_by_image_then_by_falling_score():
    images = {5: image(5, [[1, 2, 4, 6], [0, 0, 1, 1]], [0.25, 0.5], [1, 0]), 2: image(2, [[0, 0, 2, 2]], [0.75], [0])}
    rows = result_rows(images, TRUTH)
    assert [(row['id'], row['image_id'], row['category_id'], row['score']) for row in rows] == [
        (1, 2, 7, 0.75),
        (2, 5, 7, 0.5),
        (3, 5, 90, 0.25),
    ]
    assert rows[2]['bbox'] == [1, 2, 3, 4]
    assert rows[2]['area'] == 12


def test_an_image_without_detections_adds_no_row():
    assert result_rows({1: image(1, [], [], [])}, TRUTH) == []


def test_the_file_holds_the_four_keys_of_the_format_and_replaces_an_older_one(tmp_path):
    path = tmp_path / 'new' / 'results.json'
    for score in (0.125, 0.5):
        write_results(result_rows({1: image(1, [[0, 0, 1 / 3, 2]], [score], [1])}, TRUTH), path)
    assert json.loads(path.read_text()) == [{'image_id': 1, 'category_id': 90, 'bbox': [0, 0, 0.333, 2], 'score': 0.5}]
    assert [file.name for file in path.parent.iterdir()] == ['results.json']
