import math
from itertools import chain

import numpy as np
import pytest
from faster_coco_eval import COCO, COCOeval_faster
from faster_coco_eval import mask as coco_mask

from lucid.evaluation.kinds import BOXES, KEYPOINTS, MASKS, RBOXES
from lucid.evaluation.matching import IGNORED, NONE, ImageTruth, match_across_classes, match_by_class
from lucid.evaluation.overlaps import Objects, keypoint_similarity, overlap_of
from lucid.evaluation.results import ImageResult


def result(boxes, labels=None, **shapes):
    count = len(boxes)
    scores = np.linspace(0.9, 0.5, count, dtype=np.float32)
    labels = np.zeros(count, np.int64) if labels is None else np.array(labels)
    return ImageResult(1, np.float32(boxes).reshape(-1, 4), scores, labels, 0, **shapes)


def objects(boxes, labels=None, **shapes):
    boxes = np.array(boxes, np.float64).reshape(-1, 4)
    return Objects(boxes, np.zeros(len(boxes), np.int64) if labels is None else np.array(labels), **shapes)


def mask(x1, x2):
    """Columns of a mask of 4 rows by 20."""
    pixels = np.zeros((4, 20), np.uint8)
    pixels[:, x1:x2] = 1
    run_lengths = coco_mask.encode(np.asfortranarray(pixels))
    return {'size': [4, 20], 'counts': run_lengths['counts'].decode()}


ANY = [[0, 0, 20, 4]]


def test_boxes_overlap_by_their_iou_and_lie_on_a_crowd_by_their_share():
    overlap = overlap_of(BOXES)
    found, truth = result([[0, 0, 10, 10]]), objects([[5, 0, 25, 10], [50, 50, 60, 60]])
    np.testing.assert_allclose(overlap.of_objects(found, truth), [[50 / 250, 0]])
    np.testing.assert_allclose(overlap.of_ignored(found, truth), [[0.5, 0]])
    assert overlap.of_ignored(result([[5, 5, 5, 9]]), truth).tolist() == [[0, 0]]


def test_masks_overlap_by_their_iou_and_lie_on_a_crowd_by_their_share():
    overlap = overlap_of(MASKS)
    found = result(ANY, masks=[mask(0, 10)])
    truth = objects(ANY * 2, masks=[mask(5, 20), mask(12, 15)])
    np.testing.assert_allclose(overlap.of_objects(found, truth), [[5 / 20, 0]])
    np.testing.assert_allclose(overlap.of_ignored(found, truth), [[0.5, 0]])
    assert overlap.of_objects(result([], masks=[]), truth).shape == (0, 2)
    assert overlap.of_objects(found, objects([], masks=[])).shape == (1, 0)


def test_rotated_boxes_overlap_by_their_polygons_with_what_is_ignored_too():
    overlap = overlap_of(RBOXES)
    found = result(ANY, rboxes=np.array([[5, 5, 4, 4, math.pi / 4]]))
    truth = objects(ANY, rboxes=np.array([[5.0, 5, 4, 4, 0]]))
    for measure in overlap:
        np.testing.assert_allclose(measure(found, truth), [[math.sqrt(0.5)]])


def test_keypoints_are_alike_by_the_formula():
    points = np.array([[[13.0, 14], [20, 20], [90, 90]]])
    truth = objects(
        [[0, 0, 20, 20]], areas=np.array([50.0]), keypoints=np.array([[[10.0, 10, 2], [20, 20, 1], [0, 0, 0]]])
    )
    sigmas = np.array([0.25, 0.1, 0.1])
    # The first is 5 pixels off, the second exact, the third not labelled.
    expected = (math.exp(-25 / (2 * 50 * 0.5**2)) + 1) / 2
    similar = keypoint_similarity(result(ANY, keypoints=points), truth, sigmas)
    np.testing.assert_allclose(similar, [[expected]], rtol=1e-12)


def test_of_an_object_without_labels_points_are_measured_from_its_enlarged_box():
    nothing = objects([[10, 10, 20, 30]], areas=np.array([200.0]), keypoints=np.zeros((1, 1, 3)))
    # One width and one height beyond: from x 0 to 30, from y -10 to 50.
    for place, beyond in (((15, 15), 0), ((30, 50), 0), ((33, 20), 3), ((33, 54), 5), ((-2, 20), 2)):
        found = result(ANY, keypoints=np.array([[place]], np.float64))
        similar = keypoint_similarity(found, nothing, np.array([0.1]))
        np.testing.assert_allclose(similar, [[math.exp(-(beyond**2) / (2 * 200 * 0.04))]], rtol=1e-9)


def test_keypoints_are_as_alike_as_the_evaluator_has_it():
    rng = np.random.default_rng(0)
    sigmas = rng.uniform(0.05, 0.3, 5)
    keypoints = np.concatenate([rng.uniform(0, 100, (6, 5, 2)), rng.integers(0, 3, (6, 5, 1))], axis=2)
    keypoints[3, :, 2] = 0
    corner, size, areas = rng.uniform(0, 50, (6, 2)), rng.uniform(10, 50, (6, 2)), rng.uniform(50, 2000, 6)
    points = rng.uniform(0, 100, (9, 5, 2))
    rows = [
        {'id': i + 1, 'image_id': 1, 'category_id': 1, 'bbox': [*c, *s], 'area': a, 'keypoints': k.ravel().tolist()}
        for i, (c, s, a, k) in enumerate(zip(corner.tolist(), size.tolist(), areas.tolist(), keypoints, strict=True))
    ]
    truth = COCO({'images': [{'id': 1}], 'annotations': rows, 'categories': [{'id': 1, 'name': 'a'}]})
    triples = np.concatenate([points, np.ones((9, 5, 1))], axis=2).reshape(9, -1).tolist()
    dets = [
        {
            'id': i + 1,
            'image_id': 1,
            'category_id': 1,
            'keypoints': k,
            'score': 0.9 - i / 100,
            'area': 1,
            'bbox': [0] * 4,
        }
        for i, k in enumerate(triples)
    ]
    found = COCO({**truth.dataset, 'annotations': dets})
    other = COCOeval_faster(truth, found, 'keypoints', print_function=lambda *_: None, kpt_oks_sigmas=sigmas)
    other.evaluate()
    ours = keypoint_similarity(
        result([[0, 0, 1, 1]] * 9, keypoints=points),
        objects(np.concatenate([corner, corner + size], axis=1), areas=areas, keypoints=keypoints),
        sigmas,
    )
    np.testing.assert_allclose(ours, other.ious[1, 1], rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize('kind', ['masks', 'rboxes', 'keypoints'])
def test_each_kind_is_matched_by_what_it_is_and_not_by_its_box(kind):
    """The boxes are all the same; the first detection fits the second object, the second nothing, the third a crowd."""
    rings = {'masks': [mask(0, 5), mask(5, 10), mask(10, 16), mask(11, 15)]}
    rings['rboxes'] = np.array([[x, 2.0, 4, 2, 0.3] for x in (2, 8, 14, 14)])
    rings['keypoints'] = np.array([[[x, 2.0]] for x in (2, 8, 14, 14)])
    first, second, crowd, on_crowd = (rings[kind][i : i + 1] for i in range(4))
    elsewhere = {
        'masks': [mask(17, 20)],
        'rboxes': np.array([[18.0, 2, 1, 1, 0]]),
        'keypoints': np.array([[[99.0, 2]]]),
    }
    joined = (lambda *parts: [*chain(*parts)]) if kind == 'masks' else (lambda *parts: np.concatenate(parts))

    def truth_of(*parts):
        values = joined(*parts)
        if kind == 'keypoints':
            values = np.concatenate([values, np.full((*values.shape[:2], 1), 2)], axis=2)
        return objects(ANY * len(values), areas=np.full(len(values), 8.0), **{kind: values})

    found = result(ANY * 3, **{kind: joined(second, elsewhere[kind], on_crowd)})
    truth = ImageTruth(truth_of(first, second), truth_of(crowd))
    overlap = overlap_of({'masks': MASKS, 'rboxes': RBOXES, 'keypoints': KEYPOINTS}[kind], np.array([0.2]))
    for match in (match_by_class, match_across_classes):
        assert match(found, truth, overlap=overlap).tolist() == [1, NONE, IGNORED]
    # Another class is no match by class.
    other = found._replace(labels=np.array([1, 1, 1]))
    assert match_by_class(other, truth, overlap=overlap).tolist() == [NONE] * 3
    assert match_across_classes(other, truth, overlap=overlap).tolist() == [1, NONE, NONE]
