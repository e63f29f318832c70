import json
import math

import numpy as np
import pytest
from faster_coco_eval import COCO, COCOeval_faster

from lucid.datasets import ShapesDataset
from lucid.evaluation import CocoKeypointMetric
from lucid.registry import METRICS

NAMES = ('front', 'back')
SIGMA = 0.1


def evaluate(metric, predictions):
    metric.process(None, predictions)
    return metric.evaluate(len(predictions))


def metric_of(path, **options):
    return CocoKeypointMetric(ann_file=path, **{'sigmas': SIGMA, **options})


def row(*points, area=400.0, box=(10, 10, 20, 20), **more):
    """Points are x, y, visibility."""
    return {'bbox': [*box], 'area': area, 'keypoints': [value for point in points for value in point], **more}


def oks(distances, area, sigma=SIGMA):
    return sum(math.exp(-(d**2) / (2 * area * (2 * sigma) ** 2)) for d in distances) / len(distances)


def test_the_metric_is_found_by_its_bare_name(coco_json):
    path = coco_json([row((12, 12, 2), (20, 20, 2))], keypoints=NAMES)
    metric = METRICS.build({'type': 'CocoKeypointMetric', 'ann_file': str(path), 'sigmas': 0.1})
    assert isinstance(metric, CocoKeypointMetric)
    assert metric.prefix == 'coco'


def test_generated_truth_as_prediction_scores_exactly_one_and_other_classes_zero(tmp_path, oracle):
    data = ShapesDataset(tmp_path, split='val', num_images=12, image_size=160)
    metric = CocoKeypointMetric(sigmas=0.072)
    metric.dataset_meta = data.metainfo
    result = evaluate(metric, oracle(data.annotation_file))
    assert {value for value in result.values() if not math.isnan(value)} == {1.0}
    assert result['coco/keypoint/mAP'] == result['coco/mAP'] == 1
    assert all(result[f'coco/keypoint/AP/{name}'] == 1 for name in data.classes)
    turned = evaluate(metric, oracle(data.annotation_file, turn=1))
    assert turned['coco/keypoint/mAP'] == turned['coco/mAP50'] == 0


def test_real_persons_as_prediction_score_one_with_the_sigmas_of_coco(test_data, oracle):
    path = test_data / 'coco_person' / 'person_keypoints.json'
    result = evaluate(CocoKeypointMetric(ann_file=path), oracle(path))
    # COCO labels no keypoints of small persons: there is no figure of them.
    assert {key: value for key, value in result.items() if value != 1 and not math.isnan(value)} == {}
    assert result['coco/keypoint/mAP'] == 1
    moved = oracle(path)
    for found in moved:
        found['keypoints'] = found['keypoints'] + 12
    metric = CocoKeypointMetric(ann_file=path)
    assert 0 < evaluate(metric, moved)['coco/keypoint/mAP'] < 1
    worst = metric.reports()[0].worst[0]
    assert len(worst.shapes['limbs']) == len(worst.truth_shapes['limbs']) == 19


def test_a_displaced_point_passes_the_thresholds_up_to_the_formula(coco_json, predicted):
    path = coco_json([row((12, 12, 2), (20, 20, 2))], keypoints=NAMES)
    for shift, passed in ((0, 10), (3, 8), (5, 5), (40, 1)):
        # One of two points stays: OKS goes from 1 to 0.5.
        assert passed == sum(oks((shift, 0), 400) >= t / 100 for t in range(50, 100, 5))
        found = predicted(1, [[10, 10, 30, 30]], [0.9], keypoints=[[[12 + shift, 12], [20, 20]]])
        result = evaluate(metric_of(path), [found])
        assert result['coco/keypoint/mAP'] == pytest.approx(passed / 10), shift
        assert result['coco/mAP'] == 1


def test_the_scale_is_the_objects_own_area_and_its_sigma(coco_json, predicted):
    found = predicted(1, [[10, 10, 30, 30]], [0.9], keypoints=[[[15, 12], [23, 20]]])  # both are 3 pixels off
    for area, sigma in ((400.0, 0.1), (100.0, 0.1), (400.0, 0.05), (100.0, 0.2)):
        path = coco_json([row((12, 12, 2), (20, 20, 2), area=area)], keypoints=NAMES)
        passed = sum(oks((3, 3), area, sigma) >= t / 100 for t in range(50, 100, 5))
        figure = evaluate(metric_of(path, sigmas=sigma), [found])['coco/keypoint/mAP']
        assert figure == pytest.approx(passed / 10), (area, sigma)
    # Without an area it is that of the box, 20 by 20.
    path = coco_json([row((12, 12, 2), (20, 20, 2), area=None)], keypoints=NAMES)
    assert evaluate(metric_of(path), [found])['coco/keypoint/mAP'] == pytest.approx(
        sum(oks((3, 3), 400) >= t / 100 for t in range(50, 100, 5)) / 10
    )


def test_each_point_has_its_own_sigma(coco_json, predicted):
    path = coco_json([row((12, 12, 2), (20, 20, 2))], keypoints=NAMES)
    first_off, second_off = (
        predicted(1, [[10, 10, 30, 30]], [0.9], keypoints=points)
        for points in ([[[18, 12], [20, 20]]], [[[12, 12], [26, 20]]])
    )
    loose_first = metric_of(path, sigmas=[10.0, 0.01])
    assert evaluate(loose_first, [first_off])['coco/keypoint/mAP'] == 1
    assert evaluate(loose_first, [second_off])['coco/keypoint/mAP'] == pytest.approx(0.1)  # OKS (1 + 0) / 2


def test_points_that_are_not_labelled_do_not_count_and_hidden_ones_do(coco_json, predicted):
    found = predicted(1, [[10, 10, 30, 30]], [0.9], keypoints=[[[12, 12], [90, 90]]])
    for visibility, figure in ((0, 1), (1, 0.1), (2, 0.1)):
        second = (0, 0, 0) if visibility == 0 else (20, 20, visibility)
        path = coco_json([row((12, 12, 2), second)], keypoints=NAMES)
        assert evaluate(metric_of(path), [found])['coco/keypoint/mAP'] == pytest.approx(figure)


@pytest.mark.parametrize('ignored', ['crowd', 'none labelled', 'no keypoints'])
def test_what_lies_on_a_crowd_or_an_object_without_labels_is_neither_right_nor_wrong(coco_json, predicted, ignored):
    right = row((12, 12, 2), (20, 20, 2))
    far = {
        'crowd': row((70, 70, 2), (80, 80, 2), box=(60, 60, 30, 30), iscrowd=1),
        'none labelled': row((0, 0, 0), (0, 0, 0), box=(60, 60, 30, 30), num_keypoints=0),
        'no keypoints': {'bbox': [60, 60, 30, 30], 'area': 900.0},
    }[ignored]
    points = [[[70, 70], [80, 80]], [[12, 12], [20, 20]]]
    found = predicted(1, [[60, 60, 90, 90], [10, 10, 30, 30]], [0.9, 0.5], keypoints=points)
    result = evaluate(metric_of(coco_json([right, far], keypoints=NAMES)), [found])
    assert (result['coco/keypoint/mAP'], result['coco/keypoint/recall50']) == (1, 1)
    # As a box an object without labels counts like any other.
    assert result['coco/mAP'] == 1
    # Control: alone, the detection far off is false.
    result = evaluate(metric_of(coco_json([right], keypoints=NAMES)), [found])
    assert result['coco/keypoint/mAP'] == pytest.approx(0.5)


def test_an_object_without_labels_takes_one_detection_and_a_crowd_any_number(coco_json, predicted):
    right = row((12, 12, 2), (20, 20, 2))
    points = [[[70, 70], [80, 80]]] * 2 + [[[12, 12], [20, 20]]]
    boxes = [[60, 60, 90, 90]] * 2 + [[10, 10, 30, 30]]
    found = predicted(1, boxes, [0.9, 0.8, 0.5], keypoints=points)
    for more, figure in (({'num_keypoints': 0}, 0.5), ({'iscrowd': 1}, 1)):
        far = row((0, 0, 0), (0, 0, 0), box=(60, 60, 30, 30), **more)
        result = evaluate(metric_of(coco_json([right, far], keypoints=NAMES)), [found])
        assert result['coco/keypoint/mAP'] == pytest.approx(figure), more


def test_classes_are_evaluated_apart_and_one_without_labels_is_nan(coco_json, predicted):
    rows = [
        row((12, 12, 2), (20, 20, 2)),
        row((72, 12, 2), (80, 20, 2), box=(70, 10, 20, 20), category_id=2),
        row((0, 0, 0), (0, 0, 0), box=(70, 60, 20, 20), category_id=3),
    ]
    path = coco_json(rows, classes=('bolt', 'nut', 'pin'), keypoints=NAMES)
    points = [[[12, 12], [20, 20]], [[72, 12], [80, 20]]]
    found = predicted(1, [[10, 10, 30, 30], [70, 10, 90, 30]], [0.9, 0.9], [0, 0], keypoints=points)
    result = evaluate(metric_of(path), [found])
    # Of one score, the object's own comes first or second: its precision is at least a half.
    assert result['coco/keypoint/AP/bolt'] == pytest.approx(1)
    assert result['coco/keypoint/AP/nut'] == 0
    assert math.isnan(result['coco/keypoint/AP/pin'])
    assert result['coco/keypoint/mAP'] == pytest.approx(0.5)
    assert result['coco/AP/pin'] == 0  # the box is there


def test_random_scenes_agree_with_a_reference_written_from_the_formula(coco_json, predicted, reference_ap):
    rng = np.random.default_rng(0)
    rows, predictions, truths, found, scores = [], [], {}, {}, {}
    for image in range(1, 9):
        count = int(rng.integers(1, 5))
        truths[image] = [(rng.uniform(0, 90, (2, 2)), float(rng.uniform(100, 900))) for _ in range(count)]
        rows += [row(*[(*p, 2) for p in points.tolist()], area=area, image_id=image) for points, area in truths[image]]
        found[image] = [points + rng.normal(0, 3, (2, 2)) for points, _ in truths[image] * 2]
        scores[image] = (rng.permutation(2 * count) + rng.random()) / 10
        boxes = [[10, 10, 30, 30]] * 2 * count
        predictions.append(predicted(image, boxes, scores[image], keypoints=np.array(found[image])))

    def similarity(image, d, n):
        points, area = truths[image][n]
        return oks(np.linalg.norm(found[image][d] - points, axis=1), area)

    result = evaluate(metric_of(coco_json(rows, num_images=8, keypoints=NAMES)), predictions)
    numbers = {image: len(truth) for image, truth in truths.items()}
    expected = [reference_ap(scores, numbers, similarity, t / 100) for t in range(50, 100, 5)]
    assert 0.1 < np.mean(expected) < 0.9
    assert result['coco/keypoint/mAP'] == pytest.approx(np.mean(expected), abs=1e-6)  # predictions are float32
    assert result['coco/keypoint/mAP50'] == pytest.approx(expected[0], abs=1e-6)


def test_twenty_detections_count_for_ap_and_three_hundred_for_recall(coco_json, predicted):
    path = coco_json([row((12, 12, 2), (20, 20, 2))], keypoints=NAMES)
    points = [[[90, 90], [95, 95]]] * 20 + [[[12, 12], [20, 20]]]
    found = predicted(1, [[85, 85, 99, 99]] * 20 + [[10, 10, 30, 30]], [0.9] * 20 + [0.1], keypoints=points)
    result = evaluate(metric_of(path), [found])
    assert (result['coco/keypoint/mAP'], result['coco/keypoint/recall50']) == (0, 1)
    assert result['coco/mAP'] == pytest.approx(1 / 21)  # of boxes a hundred count
    assert evaluate(metric_of(path, max_detections=21), [found])['coco/keypoint/mAP'] == pytest.approx(1 / 21)


def test_without_sigmas_any_number_of_points_but_17_is_refused(coco_json):
    path = coco_json([row((12, 12, 2), (20, 20, 2))], keypoints=NAMES)
    with pytest.raises(ValueError, match='have 2 keypoints, and only for the 17 of COCO are the sigmas known; give'):
        CocoKeypointMetric(ann_file=path).dataset_meta = {}
    for wrong in ([0.1], [0.1, 0.0], [0.1, math.nan], -1):
        with pytest.raises(ValueError, match='must be 2 numbers above 0'):
            CocoKeypointMetric(ann_file=path, sigmas=wrong).dataset_meta = {}
    CocoKeypointMetric(ann_file=path, sigmas=[0.1, 0.2]).dataset_meta = {}
    persons = coco_json([row(*[(1, 1, 2)] * 17)], keypoints=[f'point {i}' for i in range(17)], name='persons.json')
    CocoKeypointMetric(ann_file=persons).dataset_meta = {}


def test_files_without_keypoints_or_with_two_numbers_of_them_are_refused(coco_json):
    with pytest.raises(ValueError, match='no category names its keypoints, and no annotation has any'):
        metric_of(coco_json([{'bbox': [1, 1, 5, 5]}])).dataset_meta = {}
    path = coco_json([row((12, 12, 2), (20, 20, 2))], classes=('bolt', 'nut'), keypoints=NAMES)
    content = json.loads(path.read_text())
    content['categories'][1]['keypoints'] = ['one']
    with pytest.raises(ValueError, match=r'name \[1, 2\] keypoints'):
        metric_of(content).dataset_meta = {}
    # Names may be missing: then the annotations tell.
    for category in content['categories']:
        del category['keypoints']
    metric_of(content).dataset_meta = {}


def test_an_object_with_another_number_of_points_is_left_out(coco_json, predicted):
    rows = [row((12, 12, 2), (20, 20, 2)), row((70, 70, 2), box=(60, 60, 30, 30))]
    found = predicted(1, [[10, 10, 30, 30]], [0.9], keypoints=[[[12, 12], [20, 20]]])
    assert evaluate(metric_of(coco_json(rows, keypoints=NAMES)), [found])['coco/keypoint/recall50'] == 1


def test_predictions_that_do_not_fit_are_named_and_those_not_finite_dropped(coco_json, predicted):
    path, nan = coco_json([row((12, 12, 2), (20, 20, 2))], keypoints=NAMES), float('nan')
    with pytest.raises(ValueError, match='keypoints, one for each box, and have none'):
        evaluate(metric_of(path), [predicted(1, [[10, 10, 30, 30]], [0.9])])
    with pytest.raises(ValueError, match='detections have 1 keypoints, objects of ann_file 2'):
        evaluate(metric_of(path), [predicted(1, [[10, 10, 30, 30]], [0.9], keypoints=[[[12, 12]]])])
    points = [[[nan, 12], [20, 20]], [[12, 12], [20, 20]]]
    found = predicted(1, [[10, 10, 30, 30]] * 2, [0.9, 0.8], keypoints=points)
    assert evaluate(metric_of(path), [found])['coco/keypoint/mAP'] == 1


def test_an_image_without_detections_is_no_special_case(coco_json, predicted):
    rows = [row((12, 12, 2), (20, 20, 2)), row((12, 12, 2), (20, 20, 2), image_id=2)]
    path = coco_json(rows, num_images=2, keypoints=NAMES)
    nothing = predicted(1, keypoints=np.zeros((0, 2, 2)))
    found = predicted(2, [[10, 10, 30, 30]], [0.9], keypoints=[[[12, 12], [20, 20]]])
    metric = metric_of(path)
    assert evaluate(metric, [nothing, found])['coco/keypoint/mAP'] == pytest.approx(51 / 101)
    assert [(worst.image_id, worst.num_missed) for worst in metric.reports()[0].worst] == [(1, 1)]
    result = evaluate(metric_of(coco_json([], num_images=2, keypoints=NAMES)), [nothing, found])
    assert all(math.isnan(value) for value in result.values())


def test_the_results_file_is_coco_json_with_keypoints_that_score_the_same(test_data, oracle, tmp_path):
    path, out = test_data / 'coco_person' / 'person_keypoints.json', tmp_path / 'results.json'
    moved = oracle(path)
    for number, found in enumerate(moved):
        found['keypoints'] = found['keypoints'] + 4 * number
    result = evaluate(CocoKeypointMetric(ann_file=path, outfile=out), moved)
    written = [{key: each[key] for key in each if key != 'bbox'} for each in json.loads(out.read_text())]
    truth = COCO(str(path))
    other = COCOeval_faster(truth, truth.loadRes(written), 'keypoints', print_function=lambda *_: None)
    other.run()
    figures = [result[f'coco/keypoint/{key}'] for key in ('mAP', 'mAP50', 'mAP75', 'mAP_m', 'mAP_l')]
    assert 0.1 < figures[0] < 0.9
    assert other.stats[:5] == pytest.approx(figures, abs=0.02)  # its recall grid loses some of the points


def test_both_paths_and_boxes_beside_them_have_the_keys_that_were_told(coco_json, predicted):
    path = coco_json([row((12, 12, 2), (20, 20, 2))], keypoints=NAMES)
    second = predicted(1, [[10, 10, 30, 30]], [0.9], keypoints=[[[90, 90], [95, 95]]], path='nms')
    first = predicted(1, [[10, 10, 30, 30]], [0.9], keypoints=[[[12, 12], [20, 20]]], nms=second)
    metric = metric_of(path, paths=('one_to_one', 'nms'))
    result = evaluate(metric, [first])
    keys = metric.keys()
    assert set(result) == {f'coco/{key}' for key in keys}
    assert [result[f'coco/{key}'] for key in ('keypoint/mAP', 'nms/keypoint/mAP', 'nms/mAP')] == [1, 0, 1]
    reports = metric.reports()
    assert [report.overlap for report in reports] == ['OKS'] * 2
    assert [report.confusion.tolist() for report in reports] == [[[1, 0], [0, 0]], [[0, 1], [1, 0]]]
    assert reports[1].worst[0].shapes['keypoints'].shape == (1, 2, 2)
    assert reports[1].worst[0].truth_shapes['keypoints'].shape == (1, 2, 3)
