import json
import re

import cv2
import numpy as np
import pytest

from lucid.apis.data import build_metric
from lucid.datasets import DataError, DotaDataset, FolderDataset
from lucid.datasets.dota_file import CLASSES, find_dota
from lucid.datasets.layout import find_layout, has_split
from lucid.registry import DATASETS
from lucid.structures.rotated import corners

HEADER = 'imagesource:GoogleEarth\ngsd:0.25\n'
SHIP = '10 5 30 5 30 15 10 15 ship 0'
TILTED = '40 10 50 20 45 25 35 15 plane 1'


@pytest.fixture
def dota(tmp_path):
    """Writes images of 60x40 pixels and their label files; None writes no label file."""

    def write(split='', **labels):
        root = tmp_path / 'dota'
        picture = cv2.resize(np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8), (60, 40))
        for folder in ('images', 'labelTxt'):
            (root / split / folder).mkdir(parents=True, exist_ok=True)
        for name, text in labels.items():
            cv2.imwrite(str(root / split / 'images' / f'{name}.png'), picture)
            if text is not None:
                (root / split / 'labelTxt' / f'{name}.txt').write_text(text)
        return root

    return write


def build(root, **changes):
    return DotaDataset(root, **{'split': 'train', 'image_size': 64, **changes})


def test_quadrilaterals_become_rotated_boxes_and_their_envelopes(dota):
    data = build(dota(a=f'{HEADER}{SHIP}\n{TILTED}\n', b=''))
    assert data.layout == 'dota'
    assert data.classes == CLASSES
    assert len(CLASSES) == 15
    assert data.category_ids == tuple(range(1, 16))
    sample = data[0]
    np.testing.assert_array_equal(sample.boxes, [[10, 5, 30, 15], [35, 10, 50, 25]])
    assert [CLASSES[label] for label in sample.labels] == ['ship', 'plane']
    # 20x10 along x; then sides of 10 and 5 times the root of 2, the long one going down to the right.
    root = 2**0.5
    expected = [[20, 10, 20, 10, 0], [42.5, 17.5, 10 * root, 5 * root, np.pi / 4]]
    np.testing.assert_allclose(sample.rboxes, expected, atol=1e-5)
    truth = data.ground_truth(0)
    assert truth.difficult.tolist() == [False, True]
    assert truth.ids.tolist() == [3, 4]  # lines of the file
    np.testing.assert_allclose(truth.areas, [200, 100], rtol=1e-6)
    assert len(data[1].boxes) == 0


@pytest.mark.parametrize(
    'text',
    [
        f'{HEADER}{SHIP}\n',
        f'\ufeff{HEADER}{SHIP}\n',
        f'{HEADER}{SHIP}\n'.replace('\n', '\r\n'),
        f'gsd:null\n\n{SHIP}\n\n',
        f'ImageSource: GoogleEarth\n{SHIP}',
        SHIP.removesuffix(' 0'),
        SHIP.replace(' ', '.0 ', 8),
    ],
)
def test_headers_blank_lines_and_line_ends_make_no_difference(dota, text):
    sample = build(dota(a=text))[0]
    np.testing.assert_array_equal(sample.boxes, [[10, 5, 30, 15]])


@pytest.mark.parametrize(
    ('kind', 'row', 'message'),
    [
        ('malformed_row', '10 5 30 5 30 15 10 ship 0', "'10 5 30 5 30 15 10 ship' are not all numbers; write x1 y1 "),
        ('malformed_row', '10 5 30 5 30 15 ship 0', 'a row of 8 values; write x1 y1 x2 y2 x3 y3 x4 y4 class difficult'),
        ('malformed_row', f'{SHIP} 1', 'a row of 11 values'),
        ('malformed_row', '10 5 30 5 30 15 10 x ship 0', 'are not all numbers'),
        ('malformed_row', '10 5 30 5 30 15 10 15 ship 2', "difficult is '2'; write 0 or 1"),
        ('malformed_row', 'imagesource:GoogleEarth', 'a row of 1 values'),
        ('unknown_class', '10 5 30 5 30 15 10 15 Ship 0', "class 'Ship' is none of plane, .* helicopter$"),
        ('nan_box', '10 5 30 nan 30 15 10 15 ship 0', 'are not finite'),
        ('nan_box', '10 5 30 5 inf 15 10 15 ship 0', 'are not finite'),
        ('outside_box', '70 5 90 5 90 15 70 15 ship 0', 'outside the 60x40 image'),
        ('malformed_rbox', '10 5 10 5 10 5 10 5 ship 0', 'the corners enclose no area'),
        ('malformed_rbox', '10 5 30 5 30 5 10 5 ship 0', 'the corners enclose no area'),
        ('malformed_rbox', '10 5 30 15 10 15 30 5 ship 0', 'two edges cross; give the corners in turn'),
    ],
)
def test_every_bad_row_is_named_by_file_and_line_or_left_out_and_counted(dota, kind, row, message):
    root = dota(a=f'{HEADER}{SHIP}\n{row}\n{row}\n', b=SHIP)
    with pytest.raises(DataError) as caught:
        build(root)
    assert [problem.kind for problem in caught.value.problems] == [kind, kind]
    assert [problem.place for problem in caught.value.problems] == [f'{root}/labelTxt/a.txt:{line}' for line in (4, 5)]
    assert re.search(message, caught.value.problems[0].text)
    assert str(caught.value).endswith("set on_bad='skip_box' or on_bad='skip_image' to leave out what is bad")
    lenient = build(root, on_bad='skip_box')
    assert lenient.problems == {kind: 2}
    assert [len(lenient[index].boxes) for index in range(2)] == [1, 1]
    strict = build(root, on_bad='skip_image')
    assert [file.rpartition('/')[2] for file in strict.files] == ['b.png']


def test_a_box_that_reaches_beyond_the_image_is_clipped_and_its_rotated_box_is_not(dota):
    sample = build(dota(a='-10 5 30 5 30 15 -10 15 ship 0'))[0]
    np.testing.assert_array_equal(sample.boxes, [[0, 5, 30, 15]])
    np.testing.assert_allclose(sample.rboxes, [[10, 10, 40, 10, 0]], atol=1e-5)


def test_files_without_partner_and_damaged_ones_are_problems(dota):
    root = dota(a=SHIP, b=None, c=SHIP, d='')
    (root / 'labelTxt/x.txt').write_text(SHIP)
    (root / 'images/c.png').write_bytes(b'')
    (root / 'labelTxt/d.txt').write_bytes(b'\xff\xfe\xff')
    with pytest.raises(
        DataError, match=r"set on_bad='skip_image' to leave out .* set missing_labels='background'"
    ) as bad:
        build(root)
    places = {problem.kind: problem.place.removeprefix(f'{root}/') for problem in bad.value.problems}
    assert places == {
        'missing_label': 'labelTxt/b.txt',
        'missing_image': 'labelTxt/x.txt',
        'empty_file': 'images/c.png',
        'broken_label': 'labelTxt/d.txt',
    }
    data = build(root, on_bad='skip_image', missing_labels='background')
    assert [len(data[index].boxes) for index in range(len(data))] == [1, 0]


def test_other_classes_can_be_given(dota):
    root = dota(a='10 5 30 5 30 15 10 15 container-crane 0')
    assert build(root, classes=[*CLASSES, 'container-crane'])[0].labels.tolist() == [15]
    for classes in ([], ['ship', 'ship']):
        with pytest.raises(ValueError, match='give each class once'):
            build(root, classes=classes)


def test_a_split_has_a_folder_and_the_folder_itself_is_train(dota):
    root = dota('valid', a=SHIP)
    dota('train', a=SHIP, b='')
    assert len(build(root)) == 2
    assert len(build(root, split='val')) == 1
    assert [has_split(root, 'dota', split) for split in ('train', 'val', 'test')] == [True, True, False]
    with pytest.raises(ValueError, match=r"has no split 'test'; looked for .*/test/images; correct data_root, or set"):
        build(root, split='test')
    dota(a=SHIP)
    with pytest.raises(ValueError, match=r"split 'train' could be .*dota/train and .*dota; remove one"):
        build(root)
    assert len(build(root, split='val')) == 1


def test_a_folder_without_splits_is_not_read_as_another_one(dota):
    root = dota(a=SHIP)
    assert find_dota(root, 'train').labels == root / 'labelTxt'
    assert find_dota(root, 'val') is None
    with pytest.raises(ValueError, match=r"no split 'val'; looked for .*val/images; correct data_root"):
        build(root, split='val')
    (root / 'images/a.png').unlink()
    with pytest.raises(ValueError, match='images holds no image'):
        build(root)


def test_the_layout_is_known_by_its_folders_and_no_other_is_taken_for_it(dota, tmp_path):
    root = dota(a=SHIP)
    assert find_layout(root, 'train') == 'dota'
    data = DATASETS.build({'type': 'FolderDataset', 'data_root': str(root), 'split': 'train', 'image_size': 64})
    assert (data.layout, data.classes, data.annotation_file) == ('dota', CLASSES, None)
    assert FolderDataset(root, split='train', image_size=64, targets=('rboxes',))[0].rboxes.shape == (1, 5)
    with pytest.raises(ValueError, match=r'no known layout for split .val.'):
        find_layout(root, 'val')
    # Images of another layout, beside labels of its own: no labelTxt, no DOTA.
    (tmp_path / 'yolo/images').mkdir(parents=True)
    (tmp_path / 'yolo/data.yaml').write_text('names: [a]\ntrain: images\n')
    assert find_layout(tmp_path / 'yolo', 'train') == 'yolo'
    (root / 'data.yaml').write_text('names: [a]\ntrain: images\n')
    with pytest.raises(ValueError, match=r"yolo \(.*data\.yaml\); dota \(.*labelTxt\); set layout='yolo' or 'dota'"):
        find_layout(root, 'train')
    assert FolderDataset(root, split='train', image_size=64, layout='dota').layout == 'dota'


def test_the_boxes_are_handed_out_as_the_coco_json_of_tiles(dota):
    content = build(dota(a=f'{SHIP}\n{TILTED}')).as_coco()
    assert content['categories'][0] == {'id': 1, 'name': 'plane'}
    (image,) = content['images']
    assert (image['source_image'], image['window']) == ('a.png', [0, 0, 60, 40])
    assert [row['difficult'] for row in content['annotations']] == [0, 1]
    assert [row['category_id'] for row in content['annotations']] == [7, 1]
    sides = np.round(np.reshape(content['annotations'][1]['obb'], (4, 2)), 3)
    assert {tuple(point) for point in sides.tolist()} == {(40, 10), (50, 20), (45, 25), (35, 15)}
    json.dumps(content)


def test_a_data_set_is_never_written_to(dota):
    root = dota(a=f'{SHIP}\nnonsense', b=None)
    state = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob('*')}
    data = build(root, on_bad='skip_box', missing_labels='background')
    data[0], data.as_coco()
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob('*')} == state


def test_the_real_images_are_read_without_a_problem(test_data):
    data = build(test_data / 'dota')
    assert data.problems == {}
    assert [file.rpartition('/')[2] for file in data.files] == ['P0706.png', 'P1888.png']
    first, second = (data.ground_truth(index) for index in range(2))
    assert (len(first.labels), len(second.labels)) == (536, 64)
    assert (first.difficult.sum(), second.difficult.sum()) == (6, 0)
    counts = {CLASSES[label]: int((second.labels == label).sum()) for label in set(second.labels.tolist())}
    assert counts == {'small-vehicle': 14, 'large-vehicle': 50}
    # The third row of P1888: 465 371 455 372 451 324 460 323, about 48 long, downwards.
    np.testing.assert_allclose(second.rboxes[2][:2], [457.75, 347.5], atol=1e-4)
    assert corners(second.rboxes[2:3])[0].min(axis=0) == pytest.approx([451, 323], abs=1)
    assert build_metric({'type': 'CocoMetric'}, data).ann_file['images'][0]['width'] == 1111
