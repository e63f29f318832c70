import json
import pickle

import numpy as np
import pytest

from lucid.datasets.coco import CocoDataset
from lucid.datasets.samplers import SampleKey
from lucid.registry import DATASETS

NAN = float('nan')
PERSON = {'id': 1, 'name': 'person', 'keypoints': ['nose', 'left_eye', 'right_eye']}


def build(root, **changes):
    return CocoDataset(root, **{'split': 'train', 'image_size': 64, **changes})


def test_boxes_become_corners_clipped_to_the_image(coco):
    data = build(coco([{'bbox': [-5, 10, 20, 20]}, {'bbox': [50, 30, 100, 100]}, {'bbox': [1.5, 2, 10, 20]}]))
    np.testing.assert_array_equal(data[0].boxes, [[0, 10, 15, 30], [50, 30, 60, 40], [1.5, 2, 11.5, 22]])
    assert data[0].boxes.dtype == np.float32


def test_classes_are_numbered_by_ascending_category_id(coco):
    data = build(coco([{'category_id': 20}, {'category_id': 3}, {'category_id': 7}]))
    assert data.classes == ('ant', 'cat', 'dog')
    assert data.category_ids == (3, 7, 20)
    np.testing.assert_array_equal(data[0].labels, [2, 0, 1])
    assert data.metainfo == {'classes': data.classes, 'annotation_file': str(data.annotation_file)}


def test_images_without_boxes_are_kept(coco):
    data = build(coco([{'image_id': 2}]))
    assert len(data) == 2
    assert data[0].boxes.shape == (0, 4)
    assert data[1].boxes.shape == (1, 4)
    assert data[1].image.shape == (50, 30, 3)
    assert (data[1].image_id, data[1].original_hw) == (2, (50, 30))
    assert data[1].file == data.files[1] == str(data.annotation_file.parents[1] / 'train/b.png')
    np.testing.assert_array_equal(data.image_ids, [1, 2])


def test_crowds_are_ground_truth_but_no_targets(coco):
    rle = {'counts': 'abc', 'size': [40, 60]}
    root = coco([{'iscrowd': 1, 'segmentation': rle, 'area': 33.5}, {'bbox': [0, 0, 4, 5]}])
    data = build(root, targets=('polygons',))
    np.testing.assert_array_equal(data[0].boxes, [[0, 0, 4, 5]])
    truth = data.ground_truth(0)
    np.testing.assert_array_equal(truth.iscrowd, [True, False])
    np.testing.assert_array_equal(truth.areas, [33.5, 20])
    np.testing.assert_array_equal(truth.ids, [100, 101])
    np.testing.assert_array_equal(truth.boxes, [[1, 2, 11, 22], [0, 0, 4, 5]])
    assert (truth.image_id, truth.file, truth.original_hw) == (1, data.files[0], (40, 60))


def test_annotations_of_an_image_may_be_scattered_over_the_file(coco):
    data = build(
        coco([{'image_id': 2, 'bbox': [0, 0, 1, 1]}, {'bbox': [0, 0, 2, 2]}, {'image_id': 2, 'bbox': [0, 0, 3, 3]}])
    )
    assert data[0].boxes[:, 2].tolist() == [2]
    assert data[1].boxes[:, 2].tolist() == [1, 3]


def test_all_kinds_of_targets_are_row_paired(coco):
    ring = [0, 0, 10, 0, 10, 4, 0, 4]
    note = {'image_id': 2, 'category_id': 1}
    data = build(
        coco(
            [
                {**note, 'segmentation': [ring, [20, 20, 30, 20, 25, 30]], 'obb': [0, 0, 0, 8, 2, 8, 2, 0]},
                {'category_id': 1, 'segmentation': [ring], 'keypoints': [1, 2, 2, 0, 0, 0, 5, 6, 1]},
                {**note, 'segmentation': [[v + 1 for v in ring]]},
            ],
            categories=[PERSON],
        ),
        targets=('boxes', 'polygons', 'rboxes', 'keypoints'),
    )
    first, second = data[0], data[1]
    assert [[len(ring) for ring in rings] for rings in second.polygons] == [[4, 3], [4]]
    np.testing.assert_array_equal(second.polygons[0][1], [[20, 20], [30, 20], [25, 30]])
    np.testing.assert_array_equal(second.polygons[1][0], [[1, 1], [11, 1], [11, 5], [1, 5]])
    # obb first: 8 long, pointing down; then a ring of four points stands for it.
    np.testing.assert_allclose(second.rboxes, [[1, 4, 8, 2, np.pi / 2], [6, 3, 10, 4, 0]], atol=1e-6)
    np.testing.assert_array_equal(first.keypoints, [[[1, 2, 2], [0, 0, 0], [5, 6, 1]]])
    assert second.keypoints.shape == (2, 3, 3)
    assert data.keypoint_names == ('nose', 'left_eye', 'right_eye')


def test_kinds_that_were_not_asked_for_are_not_loaded(coco):
    sample = build(coco([{'segmentation': 'nonsense', 'keypoints': 'nonsense'}]))[0]
    assert sample.polygons is sample.rboxes is sample.keypoints is None


def test_a_data_set_is_described_by_a_config(coco):
    config = {'type': 'CocoDataset', 'data_root': str(coco()), 'split': 'train', 'image_size': [32, 64]}
    config['pipeline'] = [{'type': 'Letterbox'}]
    data = DATASETS.build(config)
    assert data[0].image.shape == (32, 64, 3)
    assert config['pipeline'] == [{'type': 'Letterbox'}]


@pytest.mark.parametrize(
    ('kind', 'change', 'message'),
    [
        ('unknown_class', {'category_id': 8}, 'category_id 8 is none of 3, 7, 20'),
        ('unknown_class', {'category_id': -1}, 'category_id -1'),
        ('unknown_class', {'category_id': 7.5}, r'category_id 7\.5'),
        ('unknown_class', {'category_id': None}, 'category_id None'),
        ('unknown_class', {'category_id': [7]}, r'category_id \[7\]'),
        ('empty_box', {'bbox': [5, 5, 0, 9]}, r'bbox \[5, 5, 0, 9\] has no area'),
        ('empty_box', {'bbox': [5, 5, 9, 0]}, 'has no area'),
        ('empty_box', {'bbox': [5, 5, 1e-9, 9]}, 'has no area'),
        ('inverted_box', {'bbox': [5, 5, -3, 9]}, 'negative width or height'),
        ('inverted_box', {'bbox': [5, 5, 3, -9]}, 'negative width or height'),
        ('outside_box', {'bbox': [60, 5, 3, 9]}, 'outside the 60x40 image'),
        ('outside_box', {'bbox': [5, -9, 3, 9]}, 'outside the 60x40 image'),
        ('nan_box', {'bbox': [5, NAN, 3, 9]}, 'not finite'),
        ('nan_box', {'bbox': [5, 5, float('inf'), 9]}, 'not finite'),
        ('malformed_box', {'bbox': [5, 5, 3]}, 'no list of 4 numbers'),
        ('malformed_box', {'bbox': None}, 'no list of 4 numbers'),
        ('malformed_box', {'bbox': [5, 5, '3', 9]}, 'no list of 4 numbers'),
        ('malformed_polygon', {'segmentation': [[1, 2, 3, 4]]}, 'a ring of 4 numbers'),
        ('malformed_polygon', {'segmentation': [[1, 2, 3, 4, 5, NAN]]}, 'a ring of 6 numbers'),
        ('malformed_polygon', {'segmentation': [7]}, 'no list of numbers'),
        ('malformed_polygon', {'segmentation': 7}, 'segmentation 7 is no list of rings'),
        ('malformed_mask', {'segmentation': {'counts': 'x'}}, 'a run-length mask needs counts, .* and size'),
        ('malformed_mask', {'segmentation': {'counts': 'x', 'size': [40, 60]}}, 'cannot be decoded'),
        ('malformed_mask', {'segmentation': {'counts': [1, 2], 'size': [40, 60]}}, 'cannot be decoded'),
        ('malformed_mask', {'segmentation': {'counts': [2401, -1], 'size': [40, 60]}}, 'not all whole numbers from 0'),
        ('malformed_mask', {'segmentation': {'counts': [2400], 'size': [60, 40]}}, r'size \[60, 40\], .* \[40, 60\]'),
        ('malformed_rbox', {'obb': [1, 2, 3]}, 'no list of 8 numbers'),
        ('malformed_rbox', {'obb': [1, 2, 1, 2, 1, 2, 1, 2]}, 'enclose no area'),
        ('malformed_rbox', {'obb': [1, 2, 5, 6, 1, 2, 5, 6]}, 'enclose no area'),
        ('malformed_rbox', {'obb': [0, 0, 9, 9, 9, 0, 0, 9]}, 'two edges cross; give the corners in turn'),
        ('malformed_rbox', {'obb': [0, 0, 9, 0, 0, 9, 9, 9]}, 'two edges cross; give the corners in turn'),
        ('malformed_rbox', {'obb': [0, 0, 9, 0, NAN, 9, 0, 9]}, 'not finite'),
        ('malformed_keypoints', {'keypoints': [1, 2]}, 'no list of 9 numbers, but of 2'),
        ('malformed_rbox', {'obb': [123.456] * 12}, r'123\.456, 123\.456.* \.\.\. is no list of 8 numbers, but of 12'),
        ('malformed_keypoints', {'keypoints': [1, 2, 3, 1, 2, 2, 1, 2, 2]}, 'visibility'),
        ('unknown_image', {'image_id': 9}, 'image_id 9 is not listed'),
    ],
)
def test_a_bad_annotation_is_refused_by_name_or_left_out_and_counted(coco, kind, change, message):
    square = [[0, 0, 9, 0, 9, 9, 0, 9]]
    good = {'segmentation': square, 'obb': square[0]}
    categories = [{**PERSON, 'id': number} for number in (3, 7, 20)]
    root = coco([good, {**good, **change}, {**good, 'image_id': 2}], categories=categories)
    kinds = ('boxes', 'polygons', 'rboxes', 'keypoints')
    with pytest.raises(ValueError, match=r'train\.json: annotation 101 of .*' + message) as caught:
        build(root, targets=kinds)
    assert str(caught.value).endswith("set on_bad='skip_box' or on_bad='skip_image' to leave out what is bad")
    assert f'(1 {kind})' in str(caught.value)
    if kind != 'unknown_image':
        assert 'of image a.jpg' in str(caught.value)

    lenient = build(root, targets=kinds, on_bad='skip_box')
    assert lenient.problems == {kind: 1}
    assert [len(lenient[index].boxes) for index in range(2)] == [1, 1]
    strict = build(root, targets=kinds, on_bad='skip_image')
    assert strict.problems == {kind: 1}
    assert strict.image_ids.tolist() == ([1, 2] if kind == 'unknown_image' else [2])
    assert strict[len(strict) - 1].file.endswith('b.png')
    assert len(strict[len(strict) - 1].boxes) == 1


def test_good_data_has_no_problems(coco):
    assert build(coco([{}, {'image_id': 2}])).problems == {}


def test_many_problems_are_counted_and_the_first_are_shown(coco):
    root = coco([{'bbox': [0, 0, 0, 0]}] * 7 + [{'category_id': 1}] * 2)
    with pytest.raises(ValueError, match=r'2 unknown_class.*\n(.*annotation 10[0-4] .*\n){5}.* 4 more') as caught:
        build(root)
    assert '7 empty_box' in str(caught.value)


@pytest.mark.parametrize(
    ('kind', 'damage', 'message'),
    [
        ('missing_image', lambda path: path.unlink(), 'No such file.*restore the file'),
        ('empty_file', lambda path: path.write_bytes(b''), 'empty'),
        ('broken_image', lambda path: path.write_bytes(path.read_bytes()[:-200]), 'truncated or no image'),
        ('wrong_size', lambda path: path.write_bytes((path.parent / 'b.png').read_bytes()), '30x50 .* say 60x40'),
    ],
)
def test_a_bad_image_is_refused_by_name_or_left_out_and_counted(coco, kind, damage, message):
    root = coco([{}, {'image_id': 2}])
    damage(root / 'train/a.jpg')
    for policy in ('error', 'skip_box'):
        with pytest.raises(ValueError, match=rf'(?s)1 {kind}.*train/a\.jpg.*{message}'):
            build(root, on_bad=policy)
    data = build(root, on_bad='skip_image')
    assert data.problems == {kind: 1}
    assert data.image_ids.tolist() == [2]
    assert len(data[0].boxes) == 1


def test_missing_and_empty_images_are_found_at_the_start(coco):
    root = coco([{}])
    (root / 'train/a.jpg').unlink()
    (root / 'train/b.png').write_bytes(b'')
    with pytest.raises(ValueError, match=r"(?s)1 empty_file, 1 missing_image.*a\.jpg.*b\.png.*set on_bad='skip_image'"):
        build(root, on_bad='skip_box')
    with pytest.raises(ValueError, match='no image is usable'):
        build(root, on_bad='skip_image')


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ('{"images": [', r'train\.json is no JSON .*write it again'),
        ('[]', "no list 'images'"),
        ('{"images": [], "annotations": {}, "categories": []}', "no list 'annotations'"),
        ('{"images": [], "annotations": [], "categories": []}', 'lists no categories; give at least one'),
        (
            '{"images": [], "annotations": [], "categories": [{"id": 1}]}',
            'category at position 0 needs a whole-number id, a name',
        ),
        ('{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}', 'lists no images'),
        (
            '{"images": [{"id": 1, "file_name": "a"}], "annotations": [], "categories": [{"id": 1, "name": "a"}]}',
            'position 0: needs .*height.*add them',
        ),
    ],
)
def test_an_unusable_file_is_refused_by_name(coco, content, message):
    root = coco()
    (root / 'annotations/train.json').write_text(content)
    with pytest.raises(ValueError, match=message):
        build(root, on_bad='skip_image')


@pytest.mark.parametrize(
    ('part', 'change', 'message'),
    [
        ('images', {'id': float('inf')}, r'image at position 1: needs .*inf is no whole number'),
        ('images', {'id': NAN}, r'image at position 1: needs .*nan is no whole number'),
        ('images', {'id': 10**400}, 'image at position 1: needs .*10000.* is no whole number'),
        ('images', {'id': 1e300}, 'image at position 1: needs '),
        ('images', {'height': float('-inf')}, 'image at position 1: needs '),
        ('images', {'height': 2**31}, r'image b\.png: is 30x2147483648 pixels; correct its size'),
        ('images', None, 'image at position 1: needs '),
        ('categories', {'id': float('inf')}, 'category at position 1 needs '),
        ('categories', {'keypoints': 5}, 'category at position 1 needs .*keypoints are 5'),
        ('categories', {'keypoints': 'nose'}, "category at position 1 needs .*keypoints are 'nose'"),
        ('categories', {'keypoints': ['nose', 2]}, r"category at position 1 needs .*keypoints are \['nose', 2\]"),
        ('categories', None, 'category at position 1 needs '),
    ],
)
def test_a_malformed_entry_is_refused_by_its_position(coco, part, change, message):
    root = coco([{}])
    path = root / 'annotations/train.json'
    content = json.loads(path.read_text())
    content[part][1] = change and {**content[part][1], **change}
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r'train\.json: ' + message):
        build(root)


def test_absolute_file_names_are_taken_as_they_are(coco):
    root = coco([{}])
    path = root / 'annotations/train.json'
    content = json.loads(path.read_text())
    for entry in content['images'][1:], content['images']:
        for image in entry:
            image['file_name'] = str(root / 'train' / image['file_name'])
        path.write_text(json.dumps(content))
        assert build(root).files.tolist() == [str(root / 'train/a.jpg'), str(root / 'train/b.png')]
    (root / 'train/a.jpg').unlink()
    with pytest.raises(ValueError, match=r'1 missing_image.*\n.*train/a\.jpg'):
        build(root)


def test_ids_that_occur_twice_are_refused(coco):
    root = coco(categories=[{'id': 1, 'name': 'a'}, {'id': 1, 'name': 'b'}])
    with pytest.raises(ValueError, match=r'ids \[1, 1\]'):
        build(root)
    root = coco()
    content = json.loads((root / 'annotations/train.json').read_text())
    content['images'][1]['id'] = 1
    (root / 'annotations/train.json').write_text(json.dumps(content))
    with pytest.raises(ValueError, match='an image id occurs twice'):
        build(root)


def test_malformed_and_doubled_images_are_left_out_and_counted(coco):
    images = [(name, 40, 60) for name in ('a.jpg', 'b.jpg', 'c.jpg', 'd.jpg')]
    root = coco([{'image_id': 1}, {'image_id': 3}], images=images)
    path = root / 'annotations/train.json'
    content = json.loads(path.read_text())
    del content['images'][0]['height']
    content['images'][3]['id'] = 2
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match='2 duplicate_image_id, 1 malformed_image, 1 unknown_image'):
        build(root, on_bad='skip_box')
    data = build(root, on_bad='skip_image')
    assert data.problems == {'malformed_image': 1, 'duplicate_image_id': 2, 'unknown_image': 1}
    assert data.image_ids.tolist() == [3]
    assert len(data[0].boxes) == 1


@pytest.mark.parametrize('number', [10**400, -(10**400)])
def test_a_number_that_no_float_holds_is_a_bad_box_and_no_area(coco, number):
    data = build(coco([{'bbox': [number, 0, 1, 1]}, {'bbox': [0, 0, 2, 3], 'area': number}]), on_bad='skip_box')
    assert data.problems == {'malformed_box': 1}
    assert data.ground_truth(0).areas.tolist() == [6]


def test_unknown_words_are_refused_with_the_known_ones(coco):
    with pytest.raises(ValueError, match="on_bad='ignore' is no policy; choose one of error, skip_box, skip_image"):
        build(coco(), on_bad='ignore')
    with pytest.raises(ValueError, match=r"\['depth'\], which the layout coco does not hold; choose from boxes"):
        build(coco(), targets=['depth'])
    with pytest.raises(ValueError, match='must be a side in pixels'):
        build(coco(), image_size=(1, 2, 3))


def test_a_data_set_is_never_written_to(coco):
    root = coco([{}, {'bbox': [0, 0, 0, 0]}])
    state = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob('*')}
    data = build(root, on_bad='skip_box', cache_mb=1)
    data[0], data.ground_truth(1)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob('*')} == state


def test_no_python_object_per_annotation_is_kept(coco):
    one, many = (len(pickle.dumps(build(coco([{}] * count)))) for count in (10, 1010))
    # ids and labels of 8 bytes, boxes of 16, areas of 4, crowd flags of 1
    assert many - one < 1000 * 40


def test_a_cached_data_set_gives_the_same_samples(coco):
    root = coco([{}])
    pipeline = [{'type': 'Mosaic'}, {'type': 'RandomAffine'}, {'type': 'RandomHSV'}, {'type': 'HorizontalFlip'}]
    plain, cached = (build(root, pipeline=pipeline, cache_mb=size) for size in (0, 1))
    for index in range(2):
        key = SampleKey(0, index, 100)
        np.testing.assert_array_equal(plain[key].image, cached[key].image)


def test_bccd_raw_has_exactly_two_degenerate_boxes(test_data):
    places = {'split': 'train', 'ann_file': 'annotations/train_raw.json'}
    with pytest.raises(ValueError, match='2 empty_box') as caught:
        build(test_data / 'bccd', **places)
    assert 'annotation 3153 of image BloodImage_00' in str(caught.value)
    assert 'annotation 3197 of image BloodImage_00' in str(caught.value)
    data = build(test_data / 'bccd', on_bad='skip_box', **places)
    assert data.problems == {'empty_box': 2}
    assert len(data) == 292
    clean = build(test_data / 'bccd')
    assert clean.classes == data.classes == ('RBC', 'WBC', 'Platelets')
    assert clean.problems == {}


def test_coco_persons_have_polygons_and_keypoints(test_data):
    data = build(
        test_data / 'coco_person',
        ann_file='person_keypoints.json',
        image_dir='.',
        targets=('polygons', 'keypoints'),
        pipeline=[{'type': 'HorizontalFlip', 'prob': 1.0}],
        on_bad='skip_box',
    )
    assert data.problems == {}
    sample = data[0]
    assert sample.keypoints.shape[1:] == (17, 3)
    assert len(sample.polygons) == len(sample.boxes) > 0
    # A mirrored left shoulder is a right one.
    plain = data.read(0)
    width = plain.original_hw[1]
    labelled = plain.keypoints[:, 5, 2] > 0
    np.testing.assert_allclose(sample.keypoints[labelled, 6, 0], width - plain.keypoints[labelled, 5, 0], atol=1e-4)
