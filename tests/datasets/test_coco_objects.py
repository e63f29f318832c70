"""Outlines, run-length masks, tiles and keypoints of COCO JSON; test_coco.py has boxes and bad data of all kinds."""

import json
import pickle
import time

import numpy as np
import pytest
from faster_coco_eval import mask as coco_mask

from lucid.datasets import CocoDataset, DataError, detection_collate
from lucid.structures.masks import fill_rings

SQUARE = [0, 0, 9, 0, 9, 9, 0, 9]
PERSON = {'id': 1, 'name': 'person', 'keypoints': ['nose', 'left_eye', 'right_eye']}


def build(root, **changes):
    return CocoDataset(root, **{'split': 'train', 'image_size': 64, **changes})


def packed(mask):
    return {'size': list(mask.shape), 'counts': coco_mask.encode(np.asfortranarray(mask, np.uint8))['counts'].decode()}


def counted(mask):
    """The same without compression, run by run."""
    counts, value = [0], False
    for pixel in mask.T.ravel().tolist():
        if pixel == value:
            counts[-1] += 1
        else:
            counts.append(1)
            value = pixel
    return {'size': list(mask.shape), 'counts': counts}


@pytest.mark.parametrize('form', [packed, counted])
@pytest.mark.parametrize('kind', ['polygons', 'masks'])
def test_run_length_masks_are_read_as_rings_that_give_them_back(coco, form, kind):
    rng = np.random.default_rng(3)
    masks = [rng.random((40, 60)) < share for share in (0.5, 0.9, 0.02)]
    masks[1][10:20, 10:20] = False  # a hole
    masks.append(np.ones((40, 60), bool))
    rows = [{'segmentation': form(mask)} for mask in masks]
    sample = build(coco([*rows, {'segmentation': [SQUARE]}]), targets=('boxes', kind))[0]
    for mask, rings in zip(masks, sample.polygons, strict=False):
        np.testing.assert_array_equal(fill_rings(rings, (40, 60)), mask)
    np.testing.assert_array_equal(sample.polygons[4], [[[0, 0], [9, 0], [9, 9], [0, 9]]])
    # Control: one pixel more is another mask.
    masks[0][0, 0] = ~masks[0][0, 0]
    assert (fill_rings(sample.polygons[0], (40, 60)) != masks[0]).sum() == 1


@pytest.mark.parametrize('outline', [None, [], {'size': [40, 60], 'counts': [2400]}])
def test_an_object_without_outline_is_a_problem_of_masks_alone(coco, outline):
    root = coco([{'segmentation': [SQUARE]}, {'segmentation': outline}, {'iscrowd': 1}])
    assert build(root, targets=('boxes', 'polygons'))[0].polygons[1] == []
    assert build(root)[0].polygons is None
    with pytest.raises(
        DataError, match=r'(?s)\(1 missing_outline\).*annotation 101 of image a\.jpg: segmentation'
    ) as bad:
        build(root, targets=('boxes', 'masks'))
    assert [problem.kind for problem in bad.value.problems] == ['missing_outline']
    lenient = build(root, targets=('boxes', 'masks'), on_bad='skip_box')
    assert lenient.problems == {'missing_outline': 1}
    assert [len(rings) for rings in lenient[0].polygons] == [1]
    assert lenient.num_rings == 1
    assert build(root, targets=('boxes', 'masks'), on_bad='skip_image').image_ids.tolist() == [2]


def test_crowds_may_have_any_run_length_mask(coco):
    root = coco([{'segmentation': [SQUARE]}, {'iscrowd': 1, 'segmentation': {'size': [1, 1], 'counts': 'nonsense'}}])
    data = build(root, targets=('boxes', 'masks'))
    assert data.problems == {}
    assert data.ground_truth(0).num_rings.tolist() == [1, 0]


def test_other_layouts_refuse_masks_by_name(tmp_path):
    from lucid.datasets.content import KINDS, check_targets

    assert {layout for layout, kinds in KINDS.items() if 'masks' in kinds} == {'coco'}
    for layout in ('yolo', 'voc', 'dota'):
        with pytest.raises(
            ValueError, match=rf"\['masks'\], which the layout {layout} does not hold; choose from boxes"
        ):
            check_targets(('boxes', 'masks'), layout)


def test_no_python_object_per_outline_is_kept(coco):
    ring = np.arange(40).tolist()
    one, many = (
        len(pickle.dumps(build(coco([{'segmentation': [ring, ring]}] * count), targets=('masks',))))
        for count in (10, 1010)
    )
    # 40 points of 8 bytes, two ring offsets and a row offset of 8 bytes each, and what a box needs
    assert many - one < 1000 * (40 * 8 + 3 * 8 + 41)


def test_loading_takes_as_long_as_there_are_objects(coco):
    kinds = ('masks', 'rboxes', 'keypoints')
    row = {'category_id': 1, 'segmentation': [SQUARE], 'keypoints': [5, 5, 2] * 3}
    seconds = []
    for count in (300, 2400):
        root = coco([row] * count, categories=[PERSON])
        starts = [time.process_time()]
        for _ in range(3):
            build(root, targets=kinds)
            starts.append(time.process_time())
        seconds.append(min(np.diff(starts)))
    # Eight times the objects: what grows with the square would take 64 times as long.
    assert seconds[1] < 24 * seconds[0]


def test_difficult_objects_are_trained_on_and_told(coco):
    data = build(coco([{'difficult': 1}, {'difficult': 0}, {}]))
    assert len(data[0].boxes) == 3
    assert data.ground_truth(0).difficult.tolist() == [True, False, False]
    assert [len(row) for row in data.as_coco()['annotations']] == [6] * 3  # not where no metric asks for it


def tiles(root, **changes):
    path = root / 'annotations/train.json'
    content = json.loads(path.read_text())
    content['images'][1] |= {'source_image': 'whole.png', 'window': [100, 20, 130, 70], **changes}
    path.write_text(json.dumps(content))
    return root


def test_tiles_tell_where_they_were_cut_out(coco):
    obb = {'obb': SQUARE, 'difficult': 1, 'visible_fraction': 0.4}
    data = build(tiles(coco([obb, {**obb, 'image_id': 2}, {'iscrowd': 1}])), targets=('boxes', 'rboxes'))
    assert (data.ground_truth(0).source_image, data.ground_truth(0).window) == ('a.jpg', (0, 0, 60, 40))
    assert (data.ground_truth(1).source_image, data.ground_truth(1).window) == ('whole.png', (100, 20, 130, 70))
    content = data.as_coco()
    assert [image['source_image'] for image in content['images']] == ['a.jpg', 'whole.png']
    assert [image['window'] for image in content['images']] == [[0, 0, 60, 40], [100, 20, 130, 70]]
    first, crowd, second = content['annotations']
    assert 'obb' not in crowd
    assert crowd['iscrowd'] == 1
    assert [row['difficult'] for row in (first, crowd, second)] == [1, 0, 1]
    got = np.reshape(first['obb'], (4, 2))
    assert {tuple(point) for point in np.round(got, 3).tolist()} == {(0, 0), (9, 0), (9, 9), (0, 9)}
    assert data.metainfo['annotation_file'] == str(data.annotation_file)


@pytest.mark.parametrize('window', [None, [1, 2, 3], 'all'])
def test_a_tile_without_window_is_a_problem(coco, window):
    with pytest.raises(ValueError, match=r"(?s)1 malformed_image.*a tile of 'whole\.png' needs a window"):
        build(tiles(coco([{}]), window=window))


def test_names_of_keypoints_and_who_swaps_with_whom_are_told_where_they_are_loaded(coco):
    root = coco([{'category_id': 1, 'keypoints': [1, 2, 2, -5, 90, 1, 0, 0, 0]}], categories=[PERSON])
    data = build(root, targets=('boxes', 'keypoints'))
    assert data.metainfo['keypoint_names'] == ('nose', 'left_eye', 'right_eye')
    assert data.metainfo['flip_order'] == (0, 2, 1)
    assert set(build(root).metainfo) == {'classes', 'annotation_file'}
    # Beyond the image they keep place and visibility, as labelled.
    np.testing.assert_array_equal(data[0].keypoints, [[[1, 2, 2], [-5, 90, 1], [0, 0, 0]]])


def test_points_that_a_transform_moves_off_the_canvas_stay_labelled(coco):
    points = [30, 20, 2, 55, 35, 1, 0, 0, 0]
    root = coco([{'category_id': 1, 'bbox': [5, 5, 50, 30], 'keypoints': points}], categories=[PERSON])
    pipeline = [{'type': 'RandomAffine', 'scale': 0.0, 'translate': 0.0, 'image_size': 64}]
    data = build(root, targets=('boxes', 'keypoints'), pipeline=pipeline)
    whole = data[0]
    # 60x40 fitted to 64 px: ratio 16/15; then everything is moved by half of the canvas.
    transform = data.pipeline[0]
    parameters = transform.draw(np.random.default_rng(0), whole)._replace(translate=(0.5, 0.0))
    moved = transform.apply(data.read(0), parameters)
    np.testing.assert_allclose(moved.keypoints[0, :2, 0], whole.keypoints[0, :2, 0] + 32, atol=1e-4)
    assert moved.keypoints[0, 1, 0] > 64
    assert moved.keypoints[0, :, 2].tolist() == [2, 1, 0]
    assert moved.boxes[0, 2] == 64


def test_an_object_without_any_labelled_keypoint_is_fine(coco):
    rows = [
        {'category_id': 1, 'keypoints': [0] * 9},
        {'category_id': 1},
        {'category_id': 1, 'keypoints': [7, 7, 1] * 3},
    ]
    data = build(coco(rows, categories=[PERSON]), targets=('boxes', 'keypoints'))
    assert data.problems == {}
    assert (data[0].keypoints[..., 2] > 0).sum(axis=1).tolist() == [0, 0, 3]


def test_categories_without_names_of_keypoints_are_refused_with_what_to_write(coco):
    root = coco([{'category_id': 1}], categories=[{'id': 1, 'name': 'person'}])
    with pytest.raises(ValueError, match=r"no category names its keypoints; give those that have some 'keypoints'"):
        build(root, targets=('boxes', 'keypoints'))


def test_coco_persons_have_masks_and_seventeen_keypoints(test_data):
    pipeline = [{'type': 'Mosaic', 'close_last': 0}, {'type': 'RandomAffine'}, {'type': 'HorizontalFlip'}]
    data = build(
        test_data / 'coco_person',
        ann_file='person_keypoints.json',
        image_dir='.',
        image_size=256,
        targets=('boxes', 'masks', 'keypoints'),
        pipeline=pipeline,
    )
    assert data.problems == {}
    pairs = [(0, 0)] + [(i, i + 1) for i in range(1, 17, 2)] + [(i + 1, i) for i in range(1, 17, 2)]
    assert data.metainfo['flip_order'] == tuple(partner for _, partner in sorted(pairs))
    targets = detection_collate([data[index] for index in range(4)], masks=True)['targets']
    count = len(targets.boxes_N4)
    assert count >= 8
    assert targets.keypoints_NJ3.shape == (count, 17, 3)
    assert targets.masks_NHW.shape == (count, 64, 64)
    for mask, box in zip(targets.masks_NHW.numpy(), targets.boxes_N4.numpy() / 4, strict=True):
        y, x = np.nonzero(mask)
        if len(x):
            assert (x.min() + 1 >= box[0] - 0.5, x.max() <= box[2] + 0.5) == (True, True)
            assert (y.min() + 1 >= box[1] - 0.5, y.max() <= box[3] + 0.5) == (True, True)
