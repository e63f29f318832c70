import json
import math

import numpy as np
import pytest
from faster_coco_eval import COCO, COCOeval_faster
from faster_coco_eval import mask as coco_mask

from lucid.datasets import ShapesDataset
from lucid.evaluation import CocoMaskMetric
from lucid.registry import METRICS

SIZE = (100, 120)


def evaluate(metric, predictions):
    metric.process(None, predictions)
    return metric.evaluate(len(predictions))


def ring(x, y, width, height):
    return [x, y, x + width, y, x + width, y + height, x, y + height]


def row(x, y, width, height, **more):
    return {'bbox': [x, y, width, height], 'segmentation': [ring(x, y, width, height)], **more}


def pixels(x, y, width, height):
    mask = np.zeros(SIZE, np.uint8)
    mask[y : y + height, x : x + width] = 1
    return mask


def packed(mask):
    """Compressed run lengths as text."""
    run_lengths = coco_mask.encode(np.asfortranarray(mask))
    return {'size': [*SIZE], 'counts': run_lengths['counts'].decode()}


def unpacked(mask):
    """Run lengths as numbers: down the columns, the first one of zeros."""
    flat = mask.T.ravel().tolist()
    counts, value = [0], 0
    for pixel in flat:
        if pixel != value:
            counts.append(0)
            value = pixel
        counts[-1] += 1
    return {'size': [*SIZE], 'counts': counts}


def test_the_metric_is_found_by_its_bare_name(coco_json):
    metric = METRICS.build({'type': 'CocoMaskMetric', 'ann_file': str(coco_json([row(10, 10, 20, 20)]))})
    assert isinstance(metric, CocoMaskMetric)
    assert metric.prefix == 'coco'


def test_generated_truth_as_prediction_scores_exactly_one_and_other_classes_zero(tmp_path, oracle):
    data = ShapesDataset(tmp_path, split='val', num_images=12, image_size=160)
    metric = CocoMaskMetric()
    metric.dataset_meta = data.metainfo
    result = evaluate(metric, oracle(data.annotation_file))
    assert {value for value in result.values() if not math.isnan(value)} == {1.0}
    assert result['coco/mask/IoU'] == result['coco/mask/mAP'] == result['coco/mAP'] == 1
    turned = evaluate(metric, oracle(data.annotation_file, turn=1))
    assert turned['coco/mask/mAP'] == turned['coco/mask/IoU'] == turned['coco/mAP50'] == 0


def test_real_persons_as_prediction_score_one(test_data, oracle):
    path = test_data / 'coco_person' / 'person_keypoints.json'
    result = evaluate(CocoMaskMetric(ann_file=path), oracle(path))
    assert {key: value for key, value in result.items() if value != 1} == {}


def test_half_of_a_mask_in_the_right_box_passes_the_first_threshold_alone(coco_json, predicted):
    path = coco_json([row(10, 10, 20, 20)])
    half = packed(pixels(10, 10, 10, 20))
    result = evaluate(CocoMaskMetric(ann_file=path), [predicted(1, [[10, 10, 30, 30]], [0.9], masks=[half])])
    assert result['coco/mask/mAP'] == pytest.approx(0.1)
    assert (result['coco/mask/mAP50'], result['coco/mask/mAP75'], result['coco/mask/IoU']) == (1, 0, 0.5)
    assert result['coco/mAP'] == 1
    # A mask of 8 of 20 columns is found by nothing, and then counts 0.
    less = packed(pixels(10, 10, 8, 20))
    result = evaluate(CocoMaskMetric(ann_file=path), [predicted(1, [[10, 10, 30, 30]], [0.9], masks=[less])])
    assert (result['coco/mask/mAP50'], result['coco/mask/IoU'], result['coco/mAP']) == (0, 0, 1)


def test_the_mean_iou_is_over_all_objects_and_of_the_best_score(coco_json, predicted):
    path = coco_json([row(0, 0, 20, 20), row(40, 0, 20, 20), row(80, 0, 20, 20)])
    masks = [packed(pixels(*each)) for each in ((0, 0, 20, 15), (0, 0, 20, 20), (40, 0, 20, 12))]
    boxes = [[0, 0, 20, 20], [0, 0, 20, 20], [40, 0, 60, 20]]
    result = evaluate(CocoMaskMetric(ann_file=path), [predicted(1, boxes, [0.9, 0.8, 0.7], masks=masks)])
    # The first object is taken by the better score although a later mask fits it exactly; the third is not found.
    assert result['coco/mask/IoU'] == pytest.approx((0.75 + 0.6 + 0) / 3)


def test_all_rings_of_an_object_are_its_truth(coco_json, predicted):
    parts = {'bbox': [10, 10, 60, 20], 'segmentation': [ring(10, 10, 20, 20), ring(50, 10, 20, 20)]}
    both = pixels(10, 10, 20, 20) | pixels(50, 10, 20, 20)
    found = predicted(1, [[10, 10, 70, 30]], [0.9], masks=[packed(both)])
    assert evaluate(CocoMaskMetric(ann_file=coco_json([parts])), [found])['coco/mask/mAP'] == 1
    # Control: the first ring alone is half of the mask.
    first = {**parts, 'segmentation': parts['segmentation'][:1]}
    assert evaluate(CocoMaskMetric(ann_file=coco_json([first])), [found])['coco/mask/IoU'] == 0.5


@pytest.mark.parametrize('form', ['rings', 'numbers', 'text', 'bytes'])
def test_truth_may_have_any_form_of_a_mask(coco_json, predicted, form):
    mask = pixels(10, 10, 20, 20)
    text = packed(mask)
    segmentation = {
        'rings': [ring(10, 10, 20, 20)],
        'numbers': unpacked(mask),
        'text': text,
        'bytes': {**text, 'counts': text['counts'].encode()},
    }[form]
    content = json.loads(coco_json([row(10, 10, 20, 20)]).read_text())
    content['annotations'][0]['segmentation'] = segmentation
    two_thirds = [packed(pixels(10, 10, 20, 13))]  # 0.65 passes 0.50 .. 0.65
    result = evaluate(CocoMaskMetric(ann_file=content), [predicted(1, [[10, 10, 30, 30]], [0.9], masks=two_thirds)])
    assert result['coco/mask/mAP'] == pytest.approx(0.4)
    assert result['coco/mask/IoU'] == pytest.approx(0.65)


def test_a_predicted_mask_as_bytes_counts_like_one_as_text(coco_json, predicted):
    path, text = coco_json([row(10, 10, 20, 20)]), packed(pixels(10, 10, 20, 20))
    for counts in (text['counts'], text['counts'].encode()):
        found = predicted(1, [[10, 10, 30, 30]], [0.9], masks=[{**text, 'counts': counts}])
        assert evaluate(CocoMaskMetric(ann_file=path), [found])['coco/mask/mAP'] == 1


@pytest.mark.parametrize('form', [packed, unpacked])
def test_a_mask_on_a_crowd_is_neither_right_nor_wrong(coco_json, predicted, form):
    crowd = {'bbox': [60, 50, 60, 50], 'segmentation': form(pixels(60, 50, 60, 50)), 'iscrowd': 1}
    masks = [packed(pixels(70, 60, 10, 10)), packed(pixels(10, 10, 20, 20))]
    found = predicted(1, [[70, 60, 80, 70], [10, 10, 30, 30]], [0.9, 0.5], masks=masks)
    result = evaluate(CocoMaskMetric(ann_file=coco_json([row(10, 10, 20, 20), crowd])), [found])
    assert (result['coco/mask/mAP'], result['coco/mask/recall50'], result['coco/mask/IoU']) == (1, 1, 1)
    # Control: without the crowd the same mask is a false detection above the right one.
    result = evaluate(CocoMaskMetric(ann_file=coco_json([row(10, 10, 20, 20)])), [found])
    assert result['coco/mask/mAP'] == pytest.approx(0.5)


def test_random_scenes_agree_with_a_reference_of_pixels(coco_json, predicted, reference_ap):
    rng = np.random.default_rng(0)
    rows, predictions, masks, truths, scores = [], [], {}, {}, {}
    for image in range(1, 9):
        count = int(rng.integers(1, 6))
        corners = np.column_stack([rng.integers(0, 80, (count, 2)), rng.integers(8, 30, (count, 2))]).tolist()
        truths[image] = [pixels(*corner) for corner in corners]
        rows += [row(*corner, image_id=image) for corner in corners]
        shifted = [np.roll(mask, rng.integers(-6, 7, 2), axis=(0, 1)) for mask in truths[image] * 2]
        masks[image], scores[image] = shifted, rng.permutation(len(shifted)) / 10 + 0.05 * rng.random()
        boxes = [[0, 0, 9, 9]] * len(shifted)
        predictions.append(predicted(image, boxes, scores[image], masks=[packed(mask) for mask in shifted]))

    def iou(image, d, n):
        return (masks[image][d] & truths[image][n]).sum() / (masks[image][d] | truths[image][n]).sum()

    result = evaluate(CocoMaskMetric(ann_file=coco_json(rows, num_images=8)), predictions)
    numbers = {image: len(truth) for image, truth in truths.items()}
    expected = [reference_ap(scores, numbers, iou, t / 100) for t in range(50, 100, 5)]
    assert 0.1 < np.mean(expected) < 0.9
    assert result['coco/mask/mAP'] == pytest.approx(np.mean(expected), abs=1e-9)
    assert result['coco/mask/mAP50'] == pytest.approx(expected[0], abs=1e-9)
    assert result['coco/mask/AP/bolt'] == pytest.approx(np.mean(expected), abs=1e-9)


def test_a_hundred_masks_count_for_ap_and_three_hundred_for_recall(coco_json, predicted):
    path = coco_json([row(10, 10, 20, 20)])
    masks = [packed(pixels(60, 60, 10, 10))] * 100 + [packed(pixels(10, 10, 20, 20))]
    found = predicted(1, [[60, 60, 70, 70]] * 100 + [[10, 10, 30, 30]], [0.9] * 100 + [0.1], masks=masks)
    result = evaluate(CocoMaskMetric(ann_file=path), [found])
    assert (result['coco/mask/mAP'], result['coco/mask/recall50']) == (0, 1)
    result = evaluate(CocoMaskMetric(ann_file=path, max_detections=101), [found])
    assert result['coco/mask/mAP'] == pytest.approx(1 / 101)


def test_sizes_of_truth_are_its_area_and_of_strays_that_of_the_mask(coco_json, predicted):
    # Of medium size by its area; the stray's box is medium too, its mask small.
    path = coco_json([row(0, 0, 40, 40, area=1600.0)])
    masks = [packed(pixels(60, 40, 10, 10)), packed(pixels(0, 0, 40, 40))]
    found = predicted(1, [[60, 40, 100, 80], [0, 0, 40, 40]], [0.9, 0.8], masks=masks)
    result = evaluate(CocoMaskMetric(ann_file=path), [found])
    assert result['coco/mask/mAP'] == pytest.approx(0.5)
    assert result['coco/mask/mAP_m'] == 1
    # Control: the box of the stray is of medium size, and so it counts among medium boxes.
    assert result['coco/mAP_m'] == pytest.approx(0.5)


def test_both_paths_have_their_keys_and_the_table_says_whose_it_is(coco_json, predicted, capsys):
    path = coco_json([row(10, 10, 20, 20)])
    whole, half = packed(pixels(10, 10, 20, 20)), packed(pixels(10, 10, 10, 20))
    second = predicted(1, [[10, 10, 30, 30]], [0.9], masks=[half], path='nms')
    first = predicted(1, [[10, 10, 30, 30]], [0.9], masks=[whole], path='one_to_one', nms=second)
    metric = CocoMaskMetric(ann_file=path, paths=('one_to_one', 'nms'))
    result = evaluate(metric, [first])
    keys = metric.keys()
    assert set(result) == {f'coco/{key}' for key in keys}
    assert next(iter(result)) == 'coco/mask/mAP'  # what CurvesHook marks the best of
    assert result['coco/mask/mAP'] == 1
    assert result['coco/nms/mask/mAP'] == pytest.approx(0.1)
    assert result['coco/nms/mAP'] == 1
    assert 'coco/nms/mask/AP/bolt' not in result
    reports = metric.reports()
    assert [report.path for report in reports] == ['one_to_one', 'nms']
    assert reports[1].ap_K.tolist() == [pytest.approx(0.1)]


def test_the_results_file_is_coco_json_with_masks_that_score_the_same(coco_json, predicted, tmp_path):
    path, out = coco_json([row(10, 10, 20, 20), row(60, 10, 20, 20)]), tmp_path / 'results.json'
    masks = [packed(pixels(10, 10, 20, 17)), packed(pixels(60, 10, 20, 12))]
    found = predicted(1, [[10, 10, 30, 30], [60, 10, 80, 30]], [0.9, 0.8], masks=masks)
    result = evaluate(CocoMaskMetric(ann_file=path, outfile=out), [found])
    written = json.loads(out.read_text())
    assert [each['segmentation'] for each in written] == masks
    truth = COCO(str(path))
    other = COCOeval_faster(truth, truth.loadRes(written), 'segm', print_function=lambda *_: None)
    other.run()
    assert 0 < other.stats[0] < 1
    assert other.stats[:3] == pytest.approx([result[f'coco/mask/{key}'] for key in ('mAP', 'mAP50', 'mAP75')])


def test_an_object_without_a_mask_is_left_out_and_a_file_without_any_refused(coco_json, predicted):
    rows = [row(10, 10, 20, 20), {'bbox': [60, 10, 20, 20]}]
    found = predicted(1, [[10, 10, 30, 30]], [0.9], masks=[packed(pixels(10, 10, 20, 20))])
    assert evaluate(CocoMaskMetric(ann_file=coco_json(rows)), [found])['coco/mask/recall50'] == 1
    with pytest.raises(ValueError, match=r'truth\.json: none of 1 annotations has the masks .*CocoMetric'):
        CocoMaskMetric(ann_file=coco_json(rows[1:])).dataset_meta = {}


def test_predictions_that_do_not_fit_are_named(coco_json, predicted):
    path = coco_json([row(10, 10, 20, 20)])
    with pytest.raises(ValueError, match=r'masks, one for each box, and have none \(image 1\).*SegmentHead'):
        evaluate(CocoMaskMetric(ann_file=path), [predicted(1, [[10, 10, 30, 30]], [0.9])])
    with pytest.raises(ValueError, match='have 0 for 1 boxes'):
        evaluate(CocoMaskMetric(ann_file=path), [predicted(1, [[10, 10, 30, 30]], [0.9], masks=[])])
    small = coco_mask.encode(np.asfortranarray(np.ones((50, 60), np.uint8)))
    with pytest.raises(ValueError, match=r'masks of image 1 are of \(height, width\) \[\(50, 60\)\].*\(100, 120\)'):
        evaluate(CocoMaskMetric(ann_file=path), [predicted(1, [[10, 10, 30, 30]], [0.9], masks=[small])])


def test_rows_that_are_not_finite_are_dropped_with_their_masks(coco_json, predicted):
    path, nan = coco_json([row(10, 10, 20, 20)]), float('nan')
    masks = [packed(pixels(60, 10, 9, 9)), packed(pixels(10, 10, 20, 20))]
    found = predicted(1, [[nan, 0, 5, 5], [10, 10, 30, 30]], [0.9, 0.8], masks=masks)
    assert evaluate(CocoMaskMetric(ann_file=path), [found])['coco/mask/mAP'] == 1


def test_no_detection_at_all_scores_zero_and_no_truth_at_all_is_nan(coco_json, predicted):
    path = coco_json([row(10, 10, 20, 20)], num_images=2)
    result = evaluate(CocoMaskMetric(ann_file=path), [predicted(1, masks=[]), predicted(2, masks=[])])
    assert result['coco/mask/mAP'] == result['coco/mask/IoU'] == result['coco/mAP'] == 0
    for found in ([], [predicted(1, [[1, 1, 5, 5]], [0.9], masks=[packed(pixels(1, 1, 4, 4))])]):
        result = evaluate(CocoMaskMetric(ann_file=coco_json([])), found)
        assert all(math.isnan(value) for value in result.values())
        assert len(result) == 9 + 8 + 4


def test_reports_match_by_masks_and_show_them(coco_json, predicted):
    path = coco_json([row(10, 10, 20, 20), row(60, 10, 20, 20)])
    masks = [packed(pixels(10, 10, 20, 20)), packed(pixels(60, 10, 5, 20))]
    metric = CocoMaskMetric(ann_file=path)
    evaluate(metric, [predicted(1, [[10, 10, 30, 30], [60, 10, 80, 30]], [0.9, 0.9], masks=masks)])
    (report,) = metric.reports()
    # By its box the second one would be right.
    assert report.confusion.tolist() == [[1, 1], [1, 0]]
    assert report.overlap == 'mask IoU'
    (worst,) = report.worst
    assert (worst.num_missed, worst.num_false) == (1, 1)
    assert list(worst.shapes['masks']) == masks
    assert len(worst.truth_shapes['masks']) == 2
