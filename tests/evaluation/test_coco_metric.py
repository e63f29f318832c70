import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from faster_coco_eval import COCO, COCOeval_faster

from lucid.evaluation import CocoMetric
from lucid.registry import METRICS

CLASSES = ('bolt', 'nut')


def write_coco(folder: Path, rows, *, num_images=1, categories=((1, 'bolt'), (2, 'nut')), first_id=1) -> Path:
    """``rows``: (image_id, category_id, [x, y, w, h], further keys)."""
    path = folder / 'truth.json'
    annotations = [
        {'id': i, 'image_id': image, 'category_id': category, 'bbox': box, **extra}
        for i, (image, category, box, extra) in enumerate(rows, start=first_id)
    ]
    images = [{'id': i, 'file_name': f'{i}.jpg', 'width': 640, 'height': 480} for i in range(1, num_images + 1)]
    names = [{'id': i, 'name': name} for i, name in categories]
    path.write_text(json.dumps({'images': images, 'annotations': annotations, 'categories': names}))
    return path


def prediction(image_id, boxes=(), scores=(), labels=()):
    return {
        'image_id': image_id,
        'file': f'{image_id}.jpg',
        'boxes': torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        'scores': torch.tensor(scores, dtype=torch.float32),
        'labels': torch.tensor(labels, dtype=torch.int64),
    }


def evaluate(metric, predictions):
    metric.process(None, predictions)
    return metric.evaluate(len(predictions))


def random_scene(rng, num_images=12, num_boxes=9, num_classes=2):
    """Truth rows and noisy predictions of them, with misses, duplicates and strays."""
    rows, predictions = [], []
    for image in range(1, num_images + 1):
        count = int(rng.integers(0, num_boxes))
        corner, size = rng.uniform(0, 400, (count, 2)), rng.uniform(8, 200, (count, 2))
        labels = rng.integers(0, num_classes, count)
        rows += [
            (image, int(k) + 1, [*map(float, c), *map(float, s)], {})
            for k, c, s in zip(labels, corner, size, strict=True)
        ]
        source = rng.integers(0, count, 2 * count) if count else np.zeros(0, int)
        boxes = np.concatenate([corner[source], corner[source] + size[source]], axis=1)
        boxes += rng.normal(0, 0.06, boxes.shape) * np.tile(size[source], 2)
        strays = np.concatenate([rng.uniform(0, 200, (3, 2)), rng.uniform(210, 400, (3, 2))], axis=1)
        boxes = np.concatenate([boxes, strays])
        named = np.concatenate([labels[source], rng.integers(0, num_classes, 3)])
        predictions.append(prediction(image, boxes.tolist(), rng.permutation(len(boxes)) / 100 + 0.01, named))
    return rows, predictions


def iou(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def reference_ap(rows, predictions, label, threshold):
    """AP of one class, written from the definition: greedy by score, best free box, envelope at 101 recalls."""
    truth = {}
    for image, category, (x, y, w, h), _ in rows:
        if category == label + 1:
            truth.setdefault(image, []).append((x, y, x + w, y + h))
    total = sum(map(len, truth.values()))
    found = [
        (float(score), p['image_id'], box)
        for p in predictions
        for score, box, k in zip(p['scores'], p['boxes'].tolist(), p['labels'], strict=True)
        if k == label
    ]
    used, hits = set(), []
    for _, image, box in sorted(found, key=lambda row: -row[0]):
        free = [(iou(box, other), i) for i, other in enumerate(truth.get(image, ())) if (image, i) not in used]
        best = max(free, default=(0, 0))
        hits.append(best[0] >= threshold)
        if hits[-1]:
            used.add((image, best[1]))
    true = np.cumsum(hits)
    recall, precision = true / total, true / np.arange(1, len(hits) + 1)
    points = [precision[recall >= i / 100].max(initial=0) for i in range(101)]
    return sum(points) / 101, true[-1] / total


def test_the_metric_is_found_by_its_bare_name(tmp_path):
    metric = METRICS.build({'type': 'CocoMetric', 'ann_file': str(write_coco(tmp_path, []))})
    assert isinstance(metric, CocoMetric)
    assert metric.prefix == 'coco'


def test_the_truth_as_prediction_scores_exactly_one(tmp_path):
    boxes = [(1, 1, [10, 10, 20, 20], {}), (1, 2, [100, 50, 60, 50], {}), (2, 1, [0.5, 0.25, 300, 200.125], {})]
    metric = CocoMetric(ann_file=write_coco(tmp_path, boxes, num_images=2))
    result = evaluate(
        metric,
        [
            prediction(1, [[10, 10, 30, 30], [100, 50, 160, 100]], [0.4, 0.9], [0, 1]),
            prediction(2, [[0.5, 0.25, 300.5, 200.375]], [0.7], [0]),
        ],
    )
    assert set(result.values()) == {1.0}
    assert len(result) == 8 + 4
    keys = metric.keys()
    assert set(result) == {f'coco/{key}' for key in keys}


def test_swapped_classes_score_zero(tmp_path):
    rows = [(1, 1, [10, 10, 20, 20], {}), (1, 2, [100, 50, 60, 50], {})]
    metric = CocoMetric(ann_file=write_coco(tmp_path, rows))
    result = evaluate(metric, [prediction(1, [[10, 10, 30, 30], [100, 50, 160, 100]], [0.9, 0.9], [1, 0])])
    assert result['coco/mAP'] == result['coco/mAP50'] == result['coco/recall50'] == 0


@pytest.mark.parametrize(
    ('shift', 'passed'),
    [
        (0, 10),  # IoU 1
        (10, 7),  # 90 of 110 columns shared: 0.818 passes 0.50 .. 0.80
        (25, 3),  # 75 of 125: exactly 0.6 passes 0.50, 0.55 and 0.60
        (30, 1),  # 70 of 130: 0.538
        (40, 0),  # 60 of 140: 0.429
    ],
)
def test_a_shifted_box_passes_the_thresholds_up_to_its_iou(tmp_path, shift, passed):
    metric = CocoMetric(ann_file=write_coco(tmp_path, [(1, 1, [50, 50, 100, 100], {})], categories=((1, 'bolt'),)))
    result = evaluate(metric, [prediction(1, [[50 + shift, 50, 150 + shift, 150]], [0.5], [0])])
    assert result['coco/mAP'] == pytest.approx(passed / 10)
    assert result['coco/mAP50'] == result['coco/recall50'] == float(passed >= 1)
    assert result['coco/mAP75'] == float(passed >= 6)


def test_a_stray_box_between_two_hits_costs_what_the_curve_says(tmp_path):
    rows = [(1, 1, [0, 0, 50, 50], {}), (1, 1, [200, 0, 50, 50], {})]
    metric = CocoMetric(ann_file=write_coco(tmp_path, rows, categories=((1, 'bolt'),)))
    boxes = [[0, 0, 50, 50], [400, 400, 450, 450], [200, 0, 250, 50]]
    result = evaluate(metric, [prediction(1, boxes, [0.9, 0.8, 0.7], [0, 0, 0])])
    # Precision 1 up to recall 0.5 (51 points), then 2/3 (50 points).
    assert result['coco/mAP'] == pytest.approx((51 + 50 * 2 / 3) / 101, abs=1e-12)


def test_a_recall_of_exactly_0_35_reaches_its_grid_point(tmp_path):
    rows = [(1, 1, [30 * i, 0, 20, 20], {}) for i in range(20)]
    path = write_coco(tmp_path, rows, categories=((1, 'bolt'),))
    found = prediction(1, [[30 * i, 0, 30 * i + 20, 20] for i in range(7)], [0.9] * 7, [0] * 7)
    assert evaluate(CocoMetric(ann_file=path), [found])['coco/mAP'] == pytest.approx(36 / 101, abs=1e-12)

    # Control: the evaluator's own grid holds 0.35000000000000003 and loses the point.
    truth = COCO(str(path))
    rows = [{'image_id': 1, 'category_id': 1, 'bbox': [30 * i, 0, 20, 20], 'score': 0.9} for i in range(7)]
    other = COCOeval_faster(truth, truth.loadRes(rows), 'bbox', print_function=lambda *_: None)
    other.run()
    assert other.stats[0] == pytest.approx(35 / 101, abs=1e-12)


@pytest.mark.parametrize('seed', range(3))
def test_random_scenes_agree_with_a_reference_written_from_the_definition(tmp_path, seed):
    rows, predictions = random_scene(np.random.default_rng(seed))
    result = evaluate(CocoMetric(ann_file=write_coco(tmp_path, rows, num_images=12)), predictions)
    thresholds = [t / 100 for t in range(50, 100, 5)]
    by_class = np.array([[reference_ap(rows, predictions, k, t)[0] for t in thresholds] for k in range(2)])
    assert 0.1 < by_class.mean() < 0.9
    assert result['coco/mAP'] == pytest.approx(by_class.mean(), abs=1e-9)
    assert result['coco/mAP50'] == pytest.approx(by_class[:, 0].mean(), abs=1e-9)
    assert result['coco/AP/nut'] == pytest.approx(by_class[1].mean(), abs=1e-9)
    assert result['coco/AP50/bolt'] == pytest.approx(by_class[0, 0], abs=1e-9)
    counts = [sum(row[1] == k + 1 for row in rows) for k in range(2)]
    recalls = [reference_ap(rows, predictions, k, 0.5)[1] for k in range(2)]
    assert result['coco/recall50'] == pytest.approx(np.dot(counts, recalls) / sum(counts), abs=1e-9)


def test_a_hundred_detections_count_for_ap_and_three_hundred_for_recall(tmp_path):
    path = write_coco(tmp_path, [(1, 1, [10, 10, 20, 20], {})], categories=((1, 'bolt'),))
    strays = [[300, 300, 310, 310]] * 100
    found = prediction(1, [*strays, [10, 10, 30, 30]], [0.9] * 100 + [0.1], [0] * 101)
    result = evaluate(CocoMetric(ann_file=path), [found])
    assert (result['coco/mAP'], result['coco/recall50']) == (0, 1)
    result = evaluate(CocoMetric(ann_file=path, max_detections=101), [found])
    assert result['coco/mAP'] == pytest.approx(1 / 101)


def test_a_box_on_a_crowd_is_neither_right_nor_wrong(tmp_path):
    rows = [(1, 1, [10, 10, 20, 20], {}), (1, 1, [200, 200, 100, 100], {'iscrowd': 1})]
    found = prediction(1, [[210, 210, 240, 240], [10, 10, 30, 30]], [0.9, 0.5], [0, 0])
    categories = ((1, 'bolt'),)
    result = evaluate(CocoMetric(ann_file=write_coco(tmp_path, rows, categories=categories)), [found])
    assert (result['coco/mAP'], result['coco/recall50']) == (1, 1)
    # Control: without the crowd box the same detection is a false positive above the true one.
    result = evaluate(CocoMetric(ann_file=write_coco(tmp_path, rows[:1], categories=categories)), [found])
    assert result['coco/mAP'] == pytest.approx(0.5)


def test_sizes_come_from_the_area_and_from_the_box_where_it_is_missing(tmp_path):
    rows = [
        (1, 1, [10, 10, 20, 20], {}),  # 400: small
        (1, 1, [100, 10, 50, 50], {'area': 2500.0}),  # medium
        (1, 1, [200, 10, 200, 200], {'area': None}),  # large
        (1, 1, [10, 300, 60, 60], {'area': 900.0}),  # the box is medium, the object small
    ]
    metric = CocoMetric(ann_file=write_coco(tmp_path, rows, categories=((1, 'bolt'),)))
    found = prediction(1, [[10, 10, 30, 30], [100, 10, 150, 60]], [0.9, 0.8], [0, 0])
    result = evaluate(metric, [found])
    assert result['coco/mAP_s'] == pytest.approx(51 / 101)
    assert (result['coco/mAP_m'], result['coco/mAP_l']) == (1, 0)


def test_a_class_without_truth_is_nan_and_enters_no_mean(tmp_path):
    metric = CocoMetric(ann_file=write_coco(tmp_path, [(1, 1, [10, 10, 20, 20], {})], num_images=2))
    result = evaluate(
        metric, [prediction(1, [[10, 10, 30, 30]], [0.9], [0]), prediction(2, [[0, 0, 9, 9]], [0.9], [1])]
    )
    assert math.isnan(result['coco/AP/nut'])
    assert math.isnan(result['coco/mAP_l'])
    assert result['coco/mAP'] == 1


def test_no_detection_at_all_scores_zero_and_no_truth_at_all_is_nan(tmp_path):
    path = write_coco(tmp_path, [(1, 1, [10, 10, 20, 20], {})], num_images=2)
    result = evaluate(CocoMetric(ann_file=path), [prediction(1), prediction(2)])
    assert result['coco/mAP'] == result['coco/recall50'] == result['coco/AR'] == 0
    path = write_coco(tmp_path, [], num_images=2)
    for found in (prediction(1), prediction(1, [[0, 0, 9, 9]], [0.9], [1])):
        result = evaluate(CocoMetric(ann_file=path), [found, prediction(2)])
        assert all(math.isnan(value) for value in result.values())
        assert len(result) == 12
    assert len(evaluate(CocoMetric(ann_file=path), [])) == 12


def test_category_ids_are_mapped_in_ascending_order(tmp_path):
    rows = [(1, 7, [10, 10, 20, 20], {}), (1, 90, [100, 10, 20, 20], {})]
    path = write_coco(tmp_path, rows, categories=((90, 'nut'), (7, 'bolt')))
    found = prediction(1, [[10, 10, 30, 30], [100, 10, 120, 30]], [0.9, 0.9], [0, 1])
    result = evaluate(CocoMetric(ann_file=path), [found])
    assert result['coco/AP/bolt'] == result['coco/AP/nut'] == 1


def test_two_classes_of_one_name_keep_their_own_figures(tmp_path):
    rows = [(1, 7, [10, 10, 20, 20], {}), (1, 90, [100, 10, 20, 20], {})]
    path = write_coco(tmp_path, rows, categories=((90, 'nut'), (7, 'nut')))
    result = evaluate(CocoMetric(ann_file=path), [prediction(1, [[10, 10, 30, 30]], [0.9], [0])])
    assert (result['coco/AP/nut (id 7)'], result['coco/AP/nut (id 90)']) == (1, 0)


def test_annotation_ids_that_begin_at_zero_do_not_lose_a_match(tmp_path):
    path = write_coco(tmp_path, [(1, 1, [10, 10, 20, 20], {})], categories=((1, 'bolt'),), first_id=0)
    result = evaluate(CocoMetric(ann_file=path), [prediction(1, [[10, 10, 30, 30]], [0.9], [0])])
    assert result['coco/mAP'] == 1

    # Control: with the file's own id 0 the evaluator takes the match for none.
    with pytest.warns(UserWarning, match='annotation id 0'):
        truth = COCO(str(path))
    found = truth.loadRes([{'image_id': 1, 'category_id': 1, 'bbox': [10, 10, 20, 20], 'score': 0.9}])
    other = COCOeval_faster(truth, found, 'bbox', print_function=lambda *_: None)
    other.run()
    assert other.stats[0] == 0


def test_boxes_that_nothing_can_match_are_left_out(tmp_path):
    rows = [
        (1, 1, [10, 10, 20, 20], {}),
        (1, 1, [50, 50, 0, 10], {}),
        (9, 1, [0, 0, 5, 5], {}),
        (1, 8, [0, 0, 5, 5], {}),
    ]
    path = write_coco(tmp_path, rows, categories=((1, 'bolt'),))
    result = evaluate(CocoMetric(ann_file=path), [prediction(1, [[10, 10, 30, 30]], [0.9], [0])])
    assert (result['coco/mAP'], result['coco/recall50']) == (1, 1)


def test_an_image_that_comes_twice_counts_once(tmp_path):
    path = write_coco(tmp_path, [(1, 1, [10, 10, 20, 20], {}), (1, 1, [100, 10, 20, 20], {})], num_images=2)
    found = prediction(1, [[10, 10, 30, 30]], [0.9], [0])
    metric = CocoMetric(ann_file=path)
    once, twice = evaluate(metric, [found, prediction(2)]), evaluate(metric, [found, prediction(2), found])
    np.testing.assert_equal(once, twice)


def test_rows_that_are_not_finite_are_dropped(tmp_path):
    path = write_coco(tmp_path, [(1, 1, [10, 10, 20, 20], {})])
    nan = float('nan')
    found = prediction(1, [[nan, 0, 5, 5], [10, 10, 30, 30], [0, 0, 5, 5]], [0.99, 0.9, nan], [0, 0, 0])
    assert evaluate(CocoMetric(ann_file=path), [found])['coco/mAP'] == 1


def test_images_that_were_not_predicted_are_not_counted_as_misses(tmp_path):
    path = write_coco(tmp_path, [(1, 1, [10, 10, 20, 20], {}), (2, 1, [10, 10, 20, 20], {})], num_images=2)
    assert evaluate(CocoMetric(ann_file=path), [prediction(1, [[10, 10, 30, 30]], [0.9], [0])])['coco/recall50'] == 1


def test_the_results_file_is_coco_json_that_scores_the_same(tmp_path):
    rows, predictions = random_scene(np.random.default_rng(5))
    path, out = write_coco(tmp_path, rows, num_images=12), tmp_path / 'deep' / 'results.json'
    result = evaluate(CocoMetric(ann_file=path, outfile=out), predictions)
    written = json.loads(out.read_text())
    assert len(written) == sum(len(p['scores']) for p in predictions)
    assert set(written[0]) == {'image_id', 'category_id', 'bbox', 'score'}
    assert {row['category_id'] for row in written} == {1, 2}
    assert [p.name for p in out.parent.iterdir()] == ['results.json']

    truth = COCO(str(path))
    other = COCOeval_faster(truth, truth.loadRes(written), 'bbox', print_function=lambda *_: None)
    other.run()
    assert other.stats[1] == pytest.approx(result['coco/mAP50'], abs=2e-3)  # its grid is a linspace


def test_without_a_file_of_the_user_the_results_say_what_the_ids_stand_for(tmp_path):
    content, out = json.loads(write_coco(tmp_path, []).read_text()), tmp_path / 'results.json'
    found = {**prediction(1, [[10, 20, 40, 60]], [0.5], [1]), 'file': 'some/a.jpg'}
    evaluate(CocoMetric(ann_file=content, outfile=out), [found])
    (row,) = json.loads(out.read_text())
    name = next(each['name'] for each in content['categories'] if each['id'] == row['category_id'])
    assert (row['file'], row['class']) == ('some/a.jpg', name)


def test_format_only_writes_and_computes_nothing(tmp_path):
    path, out = write_coco(tmp_path, []), tmp_path / 'results.json'
    found = prediction(1, [[10, 20, 40, 60]], [0.5], [1])
    assert evaluate(CocoMetric(ann_file=path, outfile=out, format_only=True), [found]) == {}
    assert json.loads(out.read_text()) == [{'image_id': 1, 'category_id': 2, 'bbox': [10, 20, 30, 40], 'score': 0.5}]


def test_the_annotation_file_may_come_from_the_data_set(tmp_path):
    metric = CocoMetric()
    metric.dataset_meta = {'classes': CLASSES, 'annotation_file': write_coco(tmp_path, [(1, 1, [10, 10, 20, 20], {})])}
    assert evaluate(metric, [prediction(1, [[10, 10, 30, 30]], [0.9], [0])])['coco/mAP'] == 1


def test_mistakes_are_named_when_the_metric_meets_its_data_set(tmp_path):
    with pytest.raises(ValueError, match='outfile'):
        CocoMetric(format_only=True)
    with pytest.raises(ValueError, match='recall_detections'):
        CocoMetric(max_detections=500)
    with pytest.raises(ValueError, match='set ann_file'):
        CocoMetric().dataset_meta = {'classes': CLASSES}
    with pytest.raises(ValueError, match=r'nothing\.json cannot be read'):
        CocoMetric(ann_file=tmp_path / 'nothing.json').dataset_meta = {'classes': CLASSES}
    with pytest.raises(ValueError, match=r"\['bolt', 'nut'\].*\['nut', 'bolt'\]"):
        CocoMetric(ann_file=write_coco(tmp_path, [])).dataset_meta = {'classes': ('nut', 'bolt')}


def test_a_detection_of_an_unknown_image_or_class_is_an_error(tmp_path):
    path = write_coco(tmp_path, [])
    with pytest.raises(ValueError, match=r'image ids \[5\]'):
        evaluate(CocoMetric(ann_file=path), [prediction(5)])
    with pytest.raises(ValueError, match='label 2'):
        evaluate(CocoMetric(ann_file=path), [prediction(1, [[0, 0, 5, 5]], [0.5], [2])])


def test_real_blood_cells_as_prediction_score_one(test_data):
    path = test_data / 'bccd' / 'annotations' / 'val.json'
    content = json.loads(path.read_text())
    predictions = []
    for image in content['images']:
        rows = [row for row in content['annotations'] if row['image_id'] == image['id']]
        boxes = [[x, y, x + w, y + h] for x, y, w, h in (row['bbox'] for row in rows)]
        labels = [row['category_id'] - 1 for row in rows]
        predictions.append(prediction(image['id'], boxes, np.linspace(0.9, 0.1, len(rows)), labels))
    result = evaluate(CocoMetric(ann_file=path), predictions)
    assert {key: value for key, value in result.items() if value != 1} == {}


def by_two_paths(first, second):
    return {**first, 'path': 'one_to_one', 'nms': {**second, 'path': 'nms'}}


def test_both_paths_are_reported_and_the_plain_keys_stay_the_end_to_end_ones(tmp_path):
    path = write_coco(tmp_path, [(1, 1, [10, 10, 20, 20], {})], categories=((1, 'bolt'),))
    right = prediction(1, [[10, 10, 30, 30]], [0.9], [0])
    poor = prediction(1, [[300, 300, 310, 310], [10, 10, 30, 30]], [0.9, 0.8], [0, 0])
    metric = CocoMetric(ann_file=path, paths=('one_to_one', 'nms'), outfile=tmp_path / 'out.json')
    result = evaluate(metric, [by_two_paths(right, poor)])
    keys = metric.keys()
    assert set(result) == {f'coco/{key}' for key in keys}
    assert (result['coco/mAP'], result['coco/AP/bolt'], result['coco/nms/mAP']) == (1, 1, pytest.approx(0.5))
    assert result['coco/nms/recall50'] == 1
    assert 'coco/nms/AP/bolt' not in result
    # The plain keys are, bit by bit, those of a metric that knows no other path.
    alone = evaluate(CocoMetric(ann_file=path), [right])
    np.testing.assert_equal({key: result[key] for key in alone}, alone)
    assert len(json.loads((tmp_path / 'out.json').read_text())) == 1


def test_the_nms_path_alone_has_its_own_keys(tmp_path):
    path = write_coco(tmp_path, [(1, 1, [10, 10, 20, 20], {})], categories=((1, 'bolt'),))
    metric = CocoMetric(ann_file=path, paths=['nms'])
    result = evaluate(metric, [{**prediction(1, [[10, 10, 30, 30]], [0.9], [0]), 'path': 'nms'}])
    assert result['coco/nms/mAP'] == result['coco/nms/AP/bolt'] == 1
    assert all(key.startswith('coco/nms/') for key in result)
    keys = metric.keys()
    assert set(result) == {f'coco/{key}' for key in keys}


def test_a_path_that_predictions_lack_or_nobody_knows_is_refused(tmp_path):
    path = write_coco(tmp_path, [])
    with pytest.raises(ValueError, match="predictions have no path 'nms'"):
        evaluate(CocoMetric(ann_file=path, paths=('one_to_one', 'nms')), [prediction(1)])
    for paths in ((), ('soft',), ('nms', 'nms')):
        with pytest.raises(ValueError, match='must name one or more of'):
            CocoMetric(paths=paths)
