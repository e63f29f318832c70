import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
import yaml
from rich.console import Console

from lucid.apis.conversion import convert, print_conversion
from lucid.datasets import FolderDataset

IMAGES = {'train': ('b.jpg', 'a/c.png', 'd.jpg'), 'val': ('e.jpg',)}
BOXES = {
    'train': [
        (1, 3, [1, 2, 10, 20]),
        (1, 7, [0, 0, 60, 40]),
        (2, 20, [0.1, 3.37, 7.123, 9.5]),
        (2, 3, [59.5, 39, 0.5, 1]),
    ],
    'val': [(1, 7, [33.333, 12.25, 1e-2, 5])],
}


def coco_json(split, boxes=None, **extra):
    images = [
        {'id': order, 'file_name': name, 'height': 40, 'width': 60} for order, name in enumerate(IMAGES[split], 1)
    ]
    annotations = [
        {'id': order, 'image_id': image, 'category_id': category, 'bbox': bbox, **extra}
        for order, (image, category, bbox) in enumerate(boxes or BOXES[split], 1)
    ]
    categories = [{'id': 7, 'name': 'cat'}, {'id': 3, 'name': 'red ant'}, {'id': 20, 'name': 'dog'}]
    return {'images': images, 'annotations': annotations, 'categories': categories}


@pytest.fixture
def source(tmp_path):
    """COCO JSON of two splits; three classes, whose order is neither that of the file nor alphabetical."""
    root = tmp_path / 'source'
    picture = cv2.resize(np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8), (60, 40))
    (root / 'annotations').mkdir(parents=True)
    for split, names in IMAGES.items():
        for name in names:
            (root / split / name).parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(root / split / name), picture)
        (root / f'annotations/{split}.json').write_text(json.dumps(coco_json(split)))
    return root


def contents(root, split='train'):
    """Boxes as text has them, by image name, with the name of their class."""
    content = json.loads((root / f'annotations/{split}.json').read_text())
    names = {category['id']: category['name'] for category in content['categories']}
    boxes = {image['file_name']: [] for image in content['images']}
    files = {image['id']: image['file_name'] for image in content['images']}
    for row in content['annotations']:
        boxes[files[row['image_id']]].append((names[row['category_id']], row['bbox'], row.get('iscrowd', 0)))
    return boxes


def state(root):
    return {path: path.lstat().st_mtime_ns for path in root.rglob('*')}


def sets(root, split='train'):
    """Every box in float32, by the name of its image."""
    data = FolderDataset(root, split=split, image_size=64)
    truths = [data.ground_truth(index) for index in range(len(data))]
    return data.classes, {Path(t.file).stem: (t.boxes.tolist(), t.labels.tolist(), t.iscrowd.tolist()) for t in truths}


def test_coco_to_yolo_and_back_changes_no_box(source, tmp_path):
    before = state(source)
    done = convert(source, tmp_path / 'yolo', layout='yolo')
    assert (done.source, done.images, done.boxes) == ('coco', {'train': 3, 'val': 1}, {'train': 4, 'val': 1})
    assert done.lost == {}
    assert yaml.safe_load((tmp_path / 'yolo/data.yaml').read_text()) == {
        'train': 'images/train',
        'val': 'images/val',
        'nc': 3,
        'names': {0: 'red ant', 1: 'cat', 2: 'dog'},
    }
    # (1, 2, 10, 20) of 60x40: centre (6, 12), so 0.1 and 0.3.
    first = (tmp_path / 'yolo/labels/train/b.txt').read_text().splitlines()
    assert first == ['0 0.1 0.3 0.166666666666667 0.5', '1 0.5 0.5 1 1']
    assert (tmp_path / 'yolo/labels/train/d.txt').read_text() == ''
    assert (tmp_path / 'yolo/images/train/a/c.png').read_bytes() == (source / 'train/a/c.png').read_bytes()
    convert(tmp_path / 'yolo', tmp_path / 'back', layout='coco')
    for split in IMAGES:
        assert contents(tmp_path / 'back', split) == contents(source, split)
        assert sets(tmp_path / 'yolo', split) == sets(source, split) == sets(tmp_path / 'back', split)
    assert state(source) == before


def test_coco_to_voc_and_back_changes_no_box(source, tmp_path):
    before = state(source)
    boxes = coco_json('train')
    boxes['annotations'][1]['iscrowd'] = 1
    (source / 'annotations/train.json').write_text(json.dumps(boxes))
    done = convert(source, tmp_path / 'voc', layout='voc')
    assert done.boxes == {'train': 4, 'val': 1}
    root = ElementTree.parse(tmp_path / 'voc/Annotations/b.xml').getroot()
    assert [root.findtext(tag) for tag in ('filename', 'size/width', 'size/height')] == ['b.jpg', '60', '40']
    ant, cat = root.iterfind('object')
    corners = [[item.findtext(f'bndbox/{side}') for side in ('xmin', 'ymin', 'xmax', 'ymax')] for item in (ant, cat)]
    assert corners == [['2', '3', '11', '22'], ['1', '1', '60', '40']]
    assert [item.findtext('difficult') for item in (ant, cat)] == ['0', '1']
    assert (tmp_path / 'voc/ImageSets/Main/train.txt').read_text() == 'b\na_c\nd\n'
    convert(tmp_path / 'voc', tmp_path / 'back', layout='coco')
    expected = {name.replace('/', '_'): rows for name, rows in contents(source).items()}
    assert contents(tmp_path / 'back') == expected
    assert contents(tmp_path / 'back', 'val') == contents(source, 'val')
    classes, images = sets(source)
    assert sets(tmp_path / 'voc') == (classes, {'a_c' if stem == 'c' else stem: rows for stem, rows in images.items()})
    assert [time for path, time in state(source).items() if path.suffix != '.json'] == [
        time for path, time in before.items() if path.suffix != '.json'
    ]


def test_yolo_and_voc_convert_into_each_other(source, tmp_path):
    convert(source, tmp_path / 'yolo', layout='yolo', splits=['val'])
    convert(tmp_path / 'yolo', tmp_path / 'voc', layout='voc')
    convert(tmp_path / 'voc', tmp_path / 'again', layout='yolo')
    for name in ('data.yaml', 'labels/val/e.txt'):
        assert (tmp_path / 'again' / name).read_text() == (tmp_path / 'yolo' / name).read_text()


def test_names_that_two_splits_share_get_the_name_of_their_split_in_voc(source, tmp_path):
    (source / 'val/e.jpg').rename(source / 'val/b.jpg')
    path = source / 'annotations/val.json'
    path.write_text(path.read_text().replace('e.jpg', 'b.jpg'))
    convert(source, tmp_path / 'voc', layout='voc')
    assert sorted(file.name for file in (tmp_path / 'voc/JPEGImages').iterdir()) == [
        'train_a_c.png', 'train_b.jpg', 'train_d.jpg', 'val_b.jpg'
    ]  # fmt: skip
    assert sets(tmp_path / 'voc', 'val')[1]['val_b'] == sets(source, 'val')[1]['b']


def test_four_corners_are_kept_in_coco_and_lost_in_voc(source, tmp_path):
    convert(source, tmp_path / 'yolo', layout='yolo', splits=['val'])
    (tmp_path / 'yolo/labels/val/e.txt').write_text('1 0.5 0.25 0.75 0.5 0.5 0.75 0.25 0.5\n')
    done = convert(tmp_path / 'yolo', tmp_path / 'coco', layout='coco')
    assert done.lost == {}
    (row,) = json.loads((tmp_path / 'coco/annotations/val.json').read_text())['annotations']
    assert row['obb'] == row['segmentation'][0] == [30, 10, 45, 20, 30, 30, 15, 20]
    assert row['bbox'] == [15, 10, 30, 20]
    rotated = FolderDataset(tmp_path / 'coco', split='val', image_size=64, targets=['rboxes'])[0].rboxes
    np.testing.assert_allclose(rotated[0, :2], [30, 20])
    assert convert(tmp_path / 'yolo', tmp_path / 'voc', layout='voc').lost == {'rotated boxes': 1}


def test_what_a_layout_cannot_hold_is_counted_and_said(source, tmp_path):
    content = coco_json('train', segmentation=[[0, 0, 9, 0, 9, 9]], keypoints=[1, 2, 2])
    content['annotations'][0]['iscrowd'] = 1
    del content['annotations'][1]['keypoints']
    (source / 'annotations/train.json').write_text(json.dumps(content))
    done = convert(source, tmp_path / 'yolo', layout='yolo', splits=['train'])
    assert done.lost == {'polygons or masks': 4, 'keypoints': 3, 'ignored regions': 1}
    assert done.boxes == {'train': 3}
    assert len((tmp_path / 'yolo/labels/train/b.txt').read_text().splitlines()) == 1
    console = Console(record=True, width=200)
    print_conversion(done, console)
    text = console.export_text()
    assert 'yolo cannot hold, and the new folder lacks: ignored regions of 1 objects, polygons or masks of 4' in text
    assert convert(source, tmp_path / 'voc', layout='voc', splits=['train']).lost == {
        'polygons or masks': 4, 'keypoints': 3
    }  # fmt: skip


def test_images_are_copied_or_linked(source, tmp_path):
    convert(source, tmp_path / 'copies', layout='yolo')
    convert(source, tmp_path / 'links', layout='voc', images='link')
    copy, link = tmp_path / 'copies/images/train/b.jpg', tmp_path / 'links/JPEGImages/b.jpg'
    assert (copy.is_symlink(), link.is_symlink()) == (False, True)
    assert link.resolve() == (source / 'train/b.jpg').resolve()
    assert copy.read_bytes() == link.read_bytes()
    assert len(sets(tmp_path / 'links')[1]) == 3


def test_bad_data_is_refused_or_left_out_and_counted(source, tmp_path):
    content = coco_json('train', [*BOXES['train'], (3, 3, [5, 5, 0, 9])])
    (source / 'annotations/train.json').write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r'1 empty_box(?s:.*)annotation 5 of image'):
        convert(source, tmp_path / 'out', layout='yolo')
    assert not (tmp_path / 'out').exists()
    done = convert(source, tmp_path / 'out', layout='yolo', on_bad='skip_box')
    assert (done.problems, done.images['train']) == ({'train': {'empty_box': 1}, 'val': {}}, 3)
    done = convert(source, tmp_path / 'fewer', layout='voc', on_bad='skip_image')
    assert (done.images['train'], done.boxes['train']) == (2, 4)
    console = Console(record=True, width=200)
    print_conversion(done, console)
    assert '1 empty_box' in console.export_text()


def test_a_target_that_holds_something_or_lies_in_the_source_is_refused(source, tmp_path):
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full/a.txt').touch()
    before = state(tmp_path)
    for target, message in (
        (tmp_path / 'full', 'is not empty; choose another target'),
        (tmp_path / 'full/a.txt', 'is not empty'),
        (tmp_path, 'is not empty'),
        (source / 'yolo', 'is inside the source .*, which is never written to'),
        (source, 'is inside the source'),
    ):
        with pytest.raises(ValueError, match=message):
            convert(source, target, layout='yolo')
    assert state(tmp_path) == before
    (tmp_path / 'empty').mkdir()
    convert(source, tmp_path / 'empty', layout='yolo')
    assert (tmp_path / 'empty/data.yaml').is_file()


def test_a_target_among_images_outside_the_source_is_refused(source, tmp_path):
    convert(source, tmp_path / 'yolo', layout='yolo', splits=['val'])
    (tmp_path / 'list.yaml').write_text(f'names: [a, cat]\nval: {tmp_path}/yolo/images/val\n')
    (tmp_path / 'apart').mkdir()
    shutil.move(tmp_path / 'list.yaml', tmp_path / 'apart/data.yaml')
    with pytest.raises(ValueError, match='is inside the images of split val; choose another target'):
        convert(tmp_path / 'apart', tmp_path / 'yolo/images/val/new', layout='coco')
    assert convert(tmp_path / 'apart/data.yaml', tmp_path / 'new', layout='coco').images == {'val': 1}


def test_a_conversion_that_fails_leaves_nothing(source, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError('disk is full')

    monkeypatch.setattr(shutil, 'copyfile', fail)
    before = state(tmp_path)
    with pytest.raises(OSError, match='disk is full'):
        convert(source, tmp_path / 'out', layout='yolo')
    assert state(tmp_path).keys() == before.keys()


def test_what_cannot_be_meant_is_refused(source, tmp_path):
    out = tmp_path / 'out'
    with pytest.raises(ValueError, match='has layout coco already; choose another'):
        convert(source, out, layout='coco')
    with pytest.raises(ValueError, match="layout='dota' is unknown; choose one of coco, yolo, voc"):
        convert(source, out, layout='dota')
    with pytest.raises(ValueError, match="images='move' is unknown; choose one of copy, link"):
        convert(source, out, layout='yolo', images='move')
    with pytest.raises(ValueError, match="no known layout for split 'test'"):
        convert(source, out, layout='yolo', splits=['test'])
    with pytest.raises(ValueError, match='is that of one split; state it with --splits'):
        convert(source, out, layout='yolo', ann_file='annotations/val.json')
    done = convert(source, out, layout='yolo', ann_file='annotations/val.json', image_dir='val', splits=['holdout'])
    assert done.images == {'holdout': 1}


def test_splits_with_other_classes_are_refused(source, tmp_path):
    path = source / 'annotations/val.json'
    path.write_text(path.read_text().replace('red ant', 'bee'))
    with pytest.raises(ValueError, match=r"split val has the classes \['bee', 'cat', 'dog'\], train \['red ant'"):
        convert(source, tmp_path / 'out', layout='voc')


def test_names_that_do_not_fit_a_layout_are_refused(source, tmp_path):
    for path in (source / 'annotations').iterdir():
        path.write_text(path.read_text().replace('red ant', 'dog'))
    with pytest.raises(ValueError, match='cannot all be told by name in one line; rename'):
        convert(source, tmp_path / 'out', layout='voc')
    (source / 'train/d.jpg').rename(source / 'train/b.png')
    path = source / 'annotations/train.json'
    path.write_text(path.read_text().replace('d.jpg', 'b.png'))
    with pytest.raises(ValueError, match=r'split train: b\.jpg, b\.png would share one label file; rename'):
        convert(source, tmp_path / 'out', layout='yolo')


@pytest.fixture
def dota(tmp_path):
    """Two splits of one 60x40 image in the DOTA layout; an object reaches beyond its image, one is difficult."""
    root = tmp_path / 'dota'
    rows = '10 5 30 5 30 15 10 15 ship 0\n40 10 50 20 45 25 35 15 plane 1\n-4 30 8 30 8 36 -4 36 harbor 0\n'
    for split, text in (('train', rows), ('val', '')):
        for folder in ('images', 'labelTxt'):
            (root / split / folder).mkdir(parents=True)
        cv2.imwrite(str(root / split / 'images/P1.png'), np.zeros((40, 60, 3), np.uint8))
        (root / split / 'labelTxt/P1.txt').write_text('imagesource:x\ngsd:1\n' + text)
    return root


def test_dota_becomes_oriented_coco_with_the_same_rotated_boxes(dota, tmp_path):
    before = state(dota)
    done = convert(dota, tmp_path / 'coco', layout='coco')
    assert (done.source, done.target) == ('dota', 'coco')
    assert (done.images, done.boxes, done.lost) == ({'train': 1, 'val': 1}, {'train': 3, 'val': 0}, {})
    one, other = (
        FolderDataset(root, split='train', image_size=64, targets=('boxes', 'rboxes')).ground_truth(0)
        for root in (dota, tmp_path / 'coco')
    )
    for name in ('boxes', 'rboxes', 'labels', 'areas', 'difficult'):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert other.difficult.tolist() == [False, True, False]
    content = json.loads((tmp_path / 'coco/annotations/train.json').read_text())
    assert content['annotations'][2]['obb'] == [-4, 30, 8, 30, 8, 36, -4, 36]
    assert content['annotations'][2]['bbox'] == [0, 30, 8, 6]
    assert len(content['categories']) == 15
    assert state(dota) == before


@pytest.mark.parametrize(
    ('layout', 'lost'), [('yolo', {'rotated boxes': 3, 'difficult flags': 1}), ('voc', {'rotated boxes': 3})]
)
def test_what_other_layouts_lose_of_dota_is_counted(dota, tmp_path, layout, lost):
    done = convert(dota, tmp_path / 'out', layout=layout)
    assert done.lost == lost
    data = FolderDataset(tmp_path / 'out', split='train', image_size=64)
    np.testing.assert_allclose(data.ground_truth(0).boxes[1], [35, 10, 50, 25], atol=1e-4)
    assert data.ground_truth(0).iscrowd.tolist() == [False, layout == 'voc', False]


def test_nothing_is_written_as_dota(dota, source, tmp_path):
    with pytest.raises(ValueError, match="layout='dota' is unknown; choose one of coco, yolo, voc"):
        convert(source, tmp_path / 'out', layout='dota')
    with pytest.raises(ValueError, match="no split 'test'"):
        convert(dota, tmp_path / 'out', layout='coco', source_layout='dota', splits=['test'])
