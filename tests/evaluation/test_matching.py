import numpy as np
from faster_coco_eval import COCO

from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.matching import IGNORED, NONE, ImageTruth, above, match_across_classes, match_by_class
from lucid.evaluation.matching import truths_by_image as by_image
from lucid.evaluation.overlaps import Objects
from lucid.evaluation.results import ImageResult


def found(*rows):
    """(box, score, label) each."""
    boxes, scores, labels = zip(*rows, strict=True) if rows else ((), (), ())
    return ImageResult(1, np.float32(boxes).reshape(-1, 4), np.float32(scores), np.array(labels, np.int64), 0)


def truth(*rows, crowd=()):
    """(box, label) each."""
    arrays = []
    for part in (rows, crowd):
        arrays += [
            np.array([box for box, _ in part], np.float64).reshape(-1, 4),
            np.array([k for _, k in part], np.int64),
        ]
    return ImageTruth(Objects(*arrays[:2]), Objects(*arrays[2:]))


BOX, SHIFTED, FAR = (0, 0, 10, 10), (0, 0, 10, 8), (50, 50, 60, 60)


def test_the_better_score_takes_the_box_and_the_better_overlap_comes_too_late():
    detections = found((BOX, 0.5, 0), (SHIFTED, 0.9, 0))
    assert match_by_class(detections, truth((BOX, 0))).tolist() == [NONE, 0]
    # Across classes the order is that of the overlap.
    assert match_across_classes(detections, truth((BOX, 0))).tolist() == [0, NONE]


def test_another_class_is_no_match_by_class_and_one_across_classes():
    detections = found((BOX, 0.9, 1))
    assert match_by_class(detections, truth((BOX, 0))).tolist() == [NONE]
    assert match_across_classes(detections, truth((BOX, 0))).tolist() == [0]


def test_of_one_overlap_the_same_class_comes_first():
    detections = found((BOX, 0.9, 1), (BOX, 0.3, 0))
    assert match_across_classes(detections, truth((BOX, 0))).tolist() == [NONE, 0]


def test_an_iou_of_exactly_the_threshold_is_a_match():
    half = found(((0, 0, 10, 5), 0.9, 0))
    for match in (match_by_class, match_across_classes):
        assert match(half, truth((BOX, 0)), iou_threshold=0.5).tolist() == [0]
        assert match(half, truth((BOX, 0)), iou_threshold=0.51).tolist() == [NONE]


def test_a_detection_takes_the_free_box_that_it_overlaps_most():
    detections = found((BOX, 0.9, 0), (BOX, 0.8, 0), (BOX, 0.7, 0))
    assert match_by_class(detections, truth((SHIFTED, 0), (BOX, 0))).tolist() == [1, 0, NONE]


def test_a_detection_on_a_crowd_of_its_class_is_ignored():
    detections = found(((40, 40, 60, 60), 0.9, 0), ((40, 40, 60, 60), 0.8, 1))
    objects = truth(crowd=(((50, 40, 90, 90), 0),))  # half of the detection lies on it
    for match in (match_by_class, match_across_classes):
        assert match(detections, objects).tolist() == [IGNORED, NONE]
        assert match(detections, objects, iou_threshold=0.6).tolist() == [NONE, NONE]


def test_no_detections_and_no_truth_are_no_special_case():
    assert match_by_class(found(), truth((BOX, 0))).tolist() == []
    assert match_across_classes(found((BOX, 0.9, 0)), truth()).tolist() == [NONE]


def test_detections_of_a_score_are_taken_and_those_below_left():
    detections = above(found((BOX, 0.5, 0), (FAR, 0.25, 1), (FAR, 0.125, 2)), 0.25)
    assert detections.labels.tolist() == [0, 1]
    assert len(detections.boxes) == 2


def test_objects_of_an_image_are_corners_by_label_and_crowds_stand_apart():
    rows = [(5, 90, [1, 2, 3, 4], 0), (5, 7, [0, 0, 9, 9], 1), (6, 7, [0, 0, 2, 2], 0)]
    content = {
        'images': [{'id': 5}, {'id': 6}, {'id': 8}],
        'categories': [{'id': 7, 'name': 'bolt'}, {'id': 90, 'name': 'nut'}],
        'annotations': [
            {'id': i, 'image_id': image, 'category_id': category, 'bbox': box, 'area': 1.0, 'iscrowd': crowd}
            for i, (image, category, box, crowd) in enumerate(rows, start=1)
        ],
    }
    truths = by_image([5, 8], GroundTruth(COCO(content), ('bolt', 'nut'), (7, 90)))
    assert truths.keys() == {5, 8}
    objects, crowds = truths[5]
    assert (objects.boxes.tolist(), objects.labels.tolist()) == ([[1, 2, 4, 6]], [1])
    assert (crowds.boxes.tolist(), crowds.labels.tolist()) == ([[0, 0, 9, 9]], [0])
    assert truths[8].objects.boxes.shape == (0, 4)
