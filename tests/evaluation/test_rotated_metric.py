import json
import math

import numpy as np
import pytest

from lucid.datasets import ShapesDataset
from lucid.evaluation import RotatedMetric
from lucid.registry import METRICS
from lucid.structures.rotated import corners, from_corners


def evaluate(metric, predictions):
    metric.process(None, predictions)
    return metric.evaluate(len(predictions))


def row(rbox, **more):
    """An object by centre, sides and angle."""
    ring = corners(np.array([rbox], np.float64))[0].astype(float)
    (x1, y1), (x2, y2) = ring.min(axis=0).tolist(), ring.max(axis=0).tolist()
    return {'bbox': [x1, y1, x2 - x1, y2 - y1], 'obb': ring.ravel().tolist(), **more}


def found(predicted, image_id, rboxes, scores, labels=None, **more):
    return predicted(image_id, [[0, 0, 9, 9]] * len(scores), scores, labels, rboxes=rboxes, **more)


def test_the_metric_is_found_by_its_bare_name(coco_json):
    metric = METRICS.build({'type': 'RotatedMetric', 'ann_file': str(coco_json([row([50, 50, 20, 10, 0])]))})
    assert isinstance(metric, RotatedMetric)
    assert metric.prefix == 'rotated'


def test_generated_truth_as_prediction_scores_exactly_one_and_other_classes_zero(tmp_path, oracle):
    data = ShapesDataset(tmp_path, split='val', num_images=12, image_size=160)
    metric = RotatedMetric()
    metric.dataset_meta = data.metainfo
    result = evaluate(metric, oracle(data.annotation_file))
    assert {value for value in result.values() if not math.isnan(value)} == {1.0}
    assert result['rotated/mAP'] == 1
    turned = evaluate(metric, oracle(data.annotation_file, turn=1))
    assert turned['rotated/mAP50'] == turned['rotated/recall50'] == 0


def told(metric):
    """The keys that a metric says it gives."""
    return metric.keys()


def dota(folder, *, tile=None, overlap=200):
    """The label files of DOTA as COCO JSON, of whole images, or of tiles that hold every object whose centre they do.

    Written out here, so that nothing of the reader or of the tool that cuts tiles is tested by itself.
    """
    names = sorted({line.split()[8] for file in (folder / 'labelTxt').iterdir() for line in lines_of(file)})
    images, annotations = [], []
    for file in sorted((folder / 'labelTxt').iterdir()):
        objects = [(np.array(line.split()[:8], float).reshape(4, 2), *line.split()[8:]) for line in lines_of(file)]
        far = math.ceil(max(ring.max() for ring, *_ in objects))
        starts = [0] if tile is None else range(0, far, tile - overlap)
        for x, y in ((x, y) for y in starts for x in starts):
            side = far if tile is None else tile
            images.append({'id': len(images) + 1, 'file_name': f'{file.stem}_{x}_{y}.png', 'source_image': file.stem})
            images[-1]['window'] = [x, y, x + side, y + side]
            for ring, name, difficult in objects:
                if ((ring.mean(axis=0) >= (x, y)) & (ring.mean(axis=0) < (x + side, y + side))).all():
                    moved = ring - (x, y)
                    annotations.append(
                        {
                            'id': len(annotations) + 1,
                            'image_id': len(images),
                            'category_id': names.index(name) + 1,
                            'bbox': [*moved.min(axis=0).tolist(), *np.ptp(moved, axis=0).tolist()],
                            'obb': moved.ravel().tolist(),
                            'difficult': int(difficult),
                        }
                    )
    categories = [{'id': i, 'name': name} for i, name in enumerate(names, start=1)]
    return {'images': images, 'annotations': annotations, 'categories': categories}


def lines_of(file):
    return [line for line in file.read_text().splitlines() if line.split()[8:]]


def test_real_aerial_objects_as_prediction_score_one(test_data, oracle, tmp_path):
    content, path = dota(test_data / 'dota'), tmp_path / 'dota.json'
    path.write_text(json.dumps(content))
    assert len(content['annotations']) == 600
    predictions = oracle(path)
    # More than the 300 that count of an image: without the limit the rest would be missed.
    assert max(len(each['scores']) for each in predictions) > 300
    result = evaluate(RotatedMetric(ann_file=path, max_detections=1000), predictions)
    assert result['rotated/mAP'] == result['rotated/recall50'] == 1
    assert evaluate(RotatedMetric(ann_file=path), predictions)['rotated/recall50'] < 1


def test_real_aerial_objects_in_tiles_score_one_and_so_do_whole_images(test_data, oracle, tmp_path):
    content, path = dota(test_data / 'dota', tile=512), tmp_path / 'dota.json'
    path.write_text(json.dumps(content))
    metric = RotatedMetric(ann_file=path, merge_tiles=True)
    result = evaluate(metric, oracle(path))
    assert result['rotated/mAP'] == result['rotated/whole/mAP'] == result['rotated/whole/recall50'] == 1
    # Every object is in several tiles, and once in the whole images.
    whole = next(one for one in metric._evaluations if one.kind.prefix == 'whole/')
    assert len(whole.truth.coco.anns) == 600 < len(content['annotations'])
    assert sum(len(one.scores) for one in whole.images.values()) == 600


def test_tiles_that_the_tool_cuts_score_one_and_lose_no_object_of_the_whole_images(test_data, oracle, tmp_path):
    from lucid.apis.tiling import tile_dota

    tile_dota(test_data / 'dota', tmp_path / 'tiles', size=400, overlap=200)
    path = tmp_path / 'tiles' / 'annotations' / 'train.json'
    metric = RotatedMetric(ann_file=path)
    result = evaluate(metric, oracle(path))
    assert result['rotated/mAP'] == result['rotated/whole/mAP'] == 1
    whole = next(one for one in metric._evaluations if one.kind.prefix == 'whole/')
    assert sum(not row['iscrowd'] for row in whole.truth.coco.anns.values()) == 594


@pytest.mark.parametrize(
    ('rbox', 'passed'),
    [
        ((50, 50, 20, 20, math.pi / 4), 5),  # turned by an eighth: IoU 1 / sqrt 2 = 0.7071 passes 0.50 .. 0.70
        ((50, 50, 20, 20, 0), 10),
        ((55, 50, 20, 20, 0), 3),  # 15 of 25 columns: exactly 0.6
        ((50, 50, 20, 10, 0), 1),  # exactly 0.5
        ((50, 50, 20, 11.5, math.pi / 2), 2),  # 0.575
        ((50, 50, 20, 9, 0), 0),
    ],
)
def test_a_box_passes_the_thresholds_up_to_its_polygon_iou(coco_json, predicted, rbox, passed):
    metric = RotatedMetric(ann_file=coco_json([row([50, 50, 20, 20, 0])]))
    result = evaluate(metric, [found(predicted, 1, [rbox], [0.9])])
    assert result['rotated/mAP'] == pytest.approx(passed / 10)
    assert result['rotated/mAP50'] == float(passed >= 1)


def test_the_upright_box_of_a_prediction_does_not_matter(coco_json, predicted):
    thin = [50, 50, 60, 4, math.pi / 4]
    metric = RotatedMetric(ann_file=coco_json([row(thin)]))
    assert evaluate(metric, [found(predicted, 1, [thin], [0.9])])['rotated/mAP'] == 1
    # Turned the other way the upright box is the same.
    assert evaluate(metric, [found(predicted, 1, [[50, 50, 60, 4, -math.pi / 4]], [0.9])])['rotated/mAP50'] == 0


def test_a_difficult_object_is_neither_asked_for_nor_are_its_detections_false(coco_json, predicted):
    rows = [row([30, 30, 20, 10, 0]), row([80, 60, 20, 10, 0.5], difficult=1)]
    both = found(predicted, 1, [[80, 60, 20, 10, 0.5], [30, 30, 20, 10, 0]], [0.9, 0.5])
    result = evaluate(RotatedMetric(ann_file=coco_json(rows)), [both])
    assert (result['rotated/mAP'], result['rotated/recall50']) == (1, 1)
    # Several on it are all ignored.
    three = found(predicted, 1, [[80, 60, 20, 10, 0.5]] * 2 + [[30, 30, 20, 10, 0]], [0.9, 0.8, 0.5])
    assert evaluate(RotatedMetric(ann_file=coco_json(rows)), [three])['rotated/mAP'] == 1
    # Controls: an object that is not difficult is asked for, and one that is not there makes the detection false.
    rows[1]['difficult'] = 0
    alone = found(predicted, 1, [[30, 30, 20, 10, 0]], [0.9])
    assert evaluate(RotatedMetric(ann_file=coco_json(rows)), [alone])['rotated/mAP'] == pytest.approx(51 / 101)
    assert evaluate(RotatedMetric(ann_file=coco_json(rows[:1])), [both])['rotated/mAP'] == pytest.approx(0.5)


def test_an_object_that_is_not_difficult_is_taken_first(coco_json, predicted):
    """The better overlap with a difficult one does not keep the object beside it from being found."""
    rows = [row([50, 50, 20, 20, 0]), row([53, 50, 20, 20, 0], difficult=1)]
    nearer = found(predicted, 1, [[53, 50, 20, 20, 0]], [0.9])  # IoU 17 / 23 with the first, 1 with the difficult one
    result = evaluate(RotatedMetric(ann_file=coco_json(rows)), [nearer])
    assert result['rotated/recall50'] == 1
    assert result['rotated/mAP'] == pytest.approx(0.5)  # 0.739 passes 0.50 .. 0.70


def test_a_class_with_difficult_objects_alone_is_nan_and_enters_no_mean(coco_json, predicted):
    rows = [row([30, 30, 20, 10, 0]), row([80, 60, 20, 10, 0.5], difficult=1, category_id=2)]
    metric = RotatedMetric(ann_file=coco_json(rows, classes=('ship', 'plane')))
    result = evaluate(metric, [found(predicted, 1, [[30, 30, 20, 10, 0], [9, 9, 5, 4, 0]], [0.9, 0.8], [0, 1])])
    assert math.isnan(result['rotated/AP/plane'])
    assert result['rotated/mAP'] == 1


def test_three_hundred_detections_of_an_image_count_and_no_more(coco_json, predicted):
    path = coco_json([row([50, 50, 20, 20, 0])], classes=('ship', 'plane'))
    strays = [[100, 80, 6, 4, 0]] * 300
    # Of the other class, because the limit is that of the image.
    late = found(predicted, 1, [*strays, [50, 50, 20, 20, 0]], [0.9] * 300 + [0.1], [1] * 300 + [0])
    assert evaluate(RotatedMetric(ann_file=path), [late])['rotated/recall50'] == 0
    assert evaluate(RotatedMetric(ann_file=path, max_detections=301), [late])['rotated/mAP'] == 1


def test_the_corners_may_be_a_ring_and_an_object_without_any_is_left_out(coco_json, predicted):
    ring = {**row([50, 50, 20, 10, 0.3])}
    ring['segmentation'] = [ring.pop('obb')]
    rows = [ring, {'bbox': [1, 1, 5, 5]}, {'bbox': [1, 1, 5, 5], 'segmentation': [[1, 1, 2, 2, 3, 1]]}]
    exact = found(predicted, 1, [[50, 50, 20, 10, 0.3]], [0.9])
    result = evaluate(RotatedMetric(ann_file=coco_json(rows)), [exact])
    assert (result['rotated/mAP'], result['rotated/recall50']) == (1, 1)
    with pytest.raises(ValueError, match='none of 2 annotations has the rboxes'):
        RotatedMetric(ann_file=coco_json(rows[1:])).dataset_meta = {}
    # obb goes first.
    rows[0]['obb'] = row([50, 50, 20, 10, 0.3 + math.pi / 2])['obb']
    assert evaluate(RotatedMetric(ann_file=coco_json(rows)), [exact])['rotated/mAP50'] == 0


def test_random_scenes_agree_with_a_reference_on_a_fine_grid(coco_json, predicted, reference_ap):
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(np.arange(0.1, 120, 0.2), np.arange(0.1, 100, 0.2))

    def inside(box):
        cx, cy, w, h, theta = box
        along = (x - cx) * math.cos(theta) + (y - cy) * math.sin(theta)
        across = (y - cy) * math.cos(theta) - (x - cx) * math.sin(theta)
        return (abs(along) <= w / 2) & (abs(across) <= h / 2)

    truths, dets, rows, predictions, scores = {}, {}, [], [], {}
    for image in range(1, 6):
        count = int(rng.integers(1, 5))
        boxes = np.column_stack(
            [rng.uniform(25, 75, (count, 2)), rng.uniform(25, 40, count), rng.uniform(10, 20, count), rng.random(count)]
        )
        noisy = np.concatenate([boxes] * 2) + rng.normal(0, 1, (2 * count, 5)) * [2, 2, 3, 2, 0.1]
        rows += [row(box, image_id=image) for box in boxes.tolist()]
        scores[image] = (rng.permutation(2 * count) + rng.random()) / 10
        predictions.append(found(predicted, image, noisy, scores[image]))
        truths[image], dets[image] = [inside(box) for box in boxes], [inside(box) for box in noisy]

    def iou(image, d, n):
        return (dets[image][d] & truths[image][n]).sum() / (dets[image][d] | truths[image][n]).sum()

    # The grid knows an IoU to about a hundredth: thresholds that no pair comes near.
    result = evaluate(RotatedMetric(ann_file=coco_json(rows, num_images=5)), predictions)
    numbers = {image: len(truth) for image, truth in truths.items()}
    expected = [reference_ap(scores, numbers, iou, t / 100) for t in range(50, 100, 5)]
    assert 0.1 < np.mean(expected) < 0.9
    assert result['rotated/mAP50'] == pytest.approx(expected[0], abs=1e-9)
    assert result['rotated/mAP'] == pytest.approx(np.mean(expected), abs=0.02)


TILES = [{'source_image': 'port', 'window': [0, 0, 100, 100]}, {'source_image': 'port', 'window': [60, 0, 160, 100]}]


def test_a_tile_gives_what_is_centred_in_its_core_and_whole_images_know_no_limit(coco_json, predicted):
    # The tiles overlap from 60 to 100: their cores meet at 80.
    rows = [
        row([70, 50, 20, 10, 0]),
        row([10, 50, 20, 10, 0], image_id=2),  # the same object
        row([95, 20, 10, 10, 0], difficult=1),  # cut by the tile's edge; the other one has it whole
        row([42, 20, 24, 10, 0], image_id=2),
    ]
    path = coco_json(rows, num_images=2, image_keys=TILES)
    predictions = [
        found(predicted, 1, [[70, 50, 20, 10, 0], [95, 20, 10, 10, 0]], [0.9, 0.6]),
        found(predicted, 2, [[12, 50, 16, 10, 0], [42, 20, 24, 10, 0]], [0.95, 0.8]),
    ]
    metric = RotatedMetric(ann_file=path)
    result = evaluate(metric, predictions)
    assert set(result) == {f'rotated/{key}' for key in told(metric)}
    # In the tiles the poor one of the second tile counts too: IoU 0.8 at the best score.
    assert result['rotated/mAP'] < 1
    assert result['rotated/whole/mAP'] == result['rotated/whole/AP/bolt'] == 1
    # Control: without the rule of the core both tiles' detections of the first object would be there.
    assert len(metric._evaluations[1].images[1].scores) == 2
    np.testing.assert_allclose(metric._evaluations[1].images[1].rboxes[1], [102, 20, 24, 10, 0])
    # The limit is that of a tile.
    result = evaluate(RotatedMetric(ann_file=path, max_detections=1), predictions)
    assert result['rotated/recall50'] < 1
    assert result['rotated/whole/recall50'] == 1


def test_without_tiles_there_are_no_whole_images_and_merging_is_refused(coco_json, predicted):
    path = coco_json([row([50, 50, 20, 20, 0])])
    assert 'whole/mAP' not in told(RotatedMetric(ann_file=path))
    with pytest.raises(ValueError, match=r'merge_tiles=True .*source_image and window.*merge_tiles=False'):
        RotatedMetric(ann_file=path, merge_tiles=True).dataset_meta = {}
    tiles = coco_json([row([50, 50, 20, 20, 0])], num_images=2, image_keys=TILES, name='tiles.json')
    assert 'whole/mAP' in told(RotatedMetric(ann_file=tiles))
    assert 'whole/mAP' not in told(RotatedMetric(ann_file=tiles, merge_tiles=False))
    # Images that are no tiles may say so of themselves.
    own = [{'source_image': '1.png', 'window': [0, 0, 120, 100]}]
    single = coco_json([row([50, 50, 20, 20, 0])], image_keys=own, name='own.json')
    assert 'whole/mAP' not in told(RotatedMetric(ann_file=single))


def test_tiles_that_were_not_predicted_do_not_count_in_whole_images(coco_json, predicted):
    rows = [row([20, 50, 20, 10, 0]), row([60, 50, 20, 10, 0], image_id=2)]
    path = coco_json(rows, num_images=2, image_keys=TILES)
    result = evaluate(RotatedMetric(ann_file=path), [found(predicted, 1, [[20, 50, 20, 10, 0]], [0.9])])
    assert result['rotated/whole/recall50'] == result['rotated/recall50'] == 1


def test_predictions_without_rotated_boxes_are_named_and_those_not_finite_dropped(coco_json, predicted):
    path, nan = coco_json([row([50, 50, 20, 20, 0])]), float('nan')
    with pytest.raises(ValueError, match=r'rboxes, one for each box, and have none .*OrientedHead'):
        evaluate(RotatedMetric(ann_file=path), [predicted(1, [[0, 0, 9, 9]], [0.9])])
    some = found(predicted, 1, [[nan, 50, 20, 20, 0], [50, 50, 20, 20, 0]], [0.9, 0.8])
    assert evaluate(RotatedMetric(ann_file=path), [some])['rotated/mAP'] == 1


def test_an_image_without_detections_is_no_special_case(coco_json, predicted):
    path = coco_json([row([50, 50, 20, 20, 0]), row([50, 50, 20, 20, 0], image_id=2)], num_images=2, image_keys=TILES)
    nothing = predicted(1, rboxes=np.zeros((0, 5)))
    for second in (nothing | {'image_id': 2}, found(predicted, 2, [[50, 50, 20, 20, 0]], [0.9])):
        metric = RotatedMetric(ann_file=path)
        result = evaluate(metric, [nothing, second])
        figure = 51 / 101 if len(second['scores']) else 0
        assert result['rotated/mAP'] == result['rotated/whole/mAP'] == pytest.approx(figure)
        assert metric.reports()[0].worst[0].num_missed == 1


def test_the_results_file_has_the_four_corners(coco_json, predicted, tmp_path):
    path, out = coco_json([row([50, 50, 20, 10, 0.3])]), tmp_path / 'results.json'
    metric = RotatedMetric(ann_file=path, outfile=out, format_only=True)
    assert evaluate(metric, [found(predicted, 1, [[50, 50, 20, 10, 0.3]], [0.9])]) == {}
    (written,) = json.loads(out.read_text())
    assert set(written) == {'image_id', 'category_id', 'bbox', 'score', 'obb'}
    back = from_corners(np.array(written['obb']).reshape(1, 4, 2))
    np.testing.assert_allclose(back, [[50, 50, 20, 10, 0.3]], atol=1e-3)


def test_reports_match_by_polygons_and_show_them(coco_json, predicted):
    rows = [row([30, 30, 40, 4, 0.8]), row([80, 60, 20, 10, 0.5], difficult=1)]
    metric = RotatedMetric(ann_file=coco_json(rows))
    evaluate(metric, [found(predicted, 1, [[30, 30, 40, 4, -0.8], [80, 60, 20, 10, 0.5]], [0.9, 0.8])])
    (report,) = metric.reports()
    assert report.confusion.tolist() == [[0, 1], [1, 0]]  # the detection on the difficult object counts nowhere
    assert report.overlap == 'rotated IoU'
    assert report.worst[0].shapes['rboxes'].shape == (2, 5)
    assert report.worst[0].truth_shapes['rboxes'].shape == (1, 5)
