import cv2
import numpy as np
import pytest

from lucid.apis import ConfigError
from lucid.apis.data import check_agreement
from lucid.datasets import FolderDataset
from lucid.registry import DATASETS

ROW = '1 0.5 0.5 0.5 0.5\n'
XML = (
    '<annotation><object><name>cat</name><bndbox><xmin>16</xmin><ymin>11</ymin><xmax>45</xmax><ymax>30</ymax></bndbox>'
    '</object></annotation>'
)


def build(root, **changes):
    return FolderDataset(root, **{'split': 'train', 'image_size': 64, **changes})


def write(root, files, images):
    picture = cv2.resize(np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8), (60, 40))
    for name in images:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / name), picture)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def folders(tmp_path, coco):
    """One image with one box, in each layout."""
    box = {'bbox': [15, 10, 30, 20], 'category_id': 2}
    categories = [{'id': 1, 'name': 'ant'}, {'id': 2, 'name': 'cat'}]
    coco(
        [box],
        images=[('a.jpg', 40, 60)],
        categories=categories,
        file='coco/annotations/{split}.json',
        folder='coco/{split}',
    )
    yaml = 'names: [ant, cat]\ntrain: images\n'
    write(tmp_path / 'yolo', {'data.yaml': yaml, 'labels/a.txt': ROW}, ['images/a.jpg'])
    files = {'Annotations/a.xml': XML, 'ImageSets/Main/train.txt': 'a\n', 'classes.txt': 'ant\ncat\n'}
    write(tmp_path / 'voc', files, ['JPEGImages/a.jpg'])
    return tmp_path


@pytest.mark.parametrize('layout', ['coco', 'yolo', 'voc'])
def test_the_same_box_is_read_from_each_layout(folders, layout):
    config = {'type': 'FolderDataset', 'data_root': str(folders / layout), 'split': 'train', 'image_size': 64}
    data = DATASETS.build(config)
    assert data.layout == layout
    assert data.classes == ('ant', 'cat')
    assert (data.annotation_file is None) == ('annotation_file' not in data.metainfo) == (layout != 'coco')
    sample = data[0]
    np.testing.assert_array_equal(sample.boxes, [[15, 10, 45, 30]])
    np.testing.assert_array_equal(sample.labels, [1])
    assert sample.image.shape == (40, 60, 3)
    stated = build(folders / layout, layout=layout)
    np.testing.assert_array_equal(stated[0].boxes, sample.boxes)


def test_a_folder_of_two_layouts_is_refused_unless_one_is_stated(folders):
    root = folders / 'yolo'
    files = {'Annotations/a.xml': XML, 'ImageSets/Main/train.txt': 'a\n'}
    write(root, files, ['JPEGImages/a.jpg'])
    with pytest.raises(ValueError, match=r"yolo \(.*data\.yaml\); voc \(.*Annotations\); set layout='yolo' or 'voc'"):
        build(root)
    assert build(root, layout='voc').classes == ('cat',)
    assert build(root, layout='yolo').classes == ('ant', 'cat')


def test_an_annotation_file_states_coco(folders):
    root = folders / 'coco'
    (root / 'data.yaml').write_text('names: [ant]\n')
    data = build(root, ann_file='annotations/train.json', image_dir='train')
    assert data.layout == 'coco'
    with pytest.raises(ValueError, match=r"ann_file='a\.json' belongs to layout coco, .* layout yolo; remove ann_file"):
        build(folders / 'yolo', layout='yolo', ann_file='a.json')
    with pytest.raises(ValueError, match="image_dir='images' belongs to layout coco"):
        build(folders / 'yolo', image_dir='images')


def test_words_are_checked_and_passed_on(folders):
    with pytest.raises(ValueError, match="layout='kitti' is unknown; choose one of coco, yolo, voc, dota"):
        build(folders / 'yolo', layout='kitti')
    with pytest.raises(ValueError, match=r"\['polygons'\], which the layout voc does not hold; choose from boxes"):
        build(folders / 'voc', targets=['polygons'])
    (folders / 'yolo/labels/a.txt').unlink()
    with pytest.raises(ValueError, match='1 missing_label'):
        build(folders / 'yolo')
    assert len(build(folders / 'yolo', missing_labels='background')[0].boxes) == 0
    assert build(folders / 'coco', targets=['polygons'])[0].polygons == [[]]


def test_splits_that_number_their_classes_differently_are_refused(folders):
    train = build(folders / 'yolo')
    (folders / 'yolo/data.yaml').write_text('names: [cat, ant]\ntrain: images\n')
    other = build(folders / 'yolo')
    with pytest.raises(ConfigError, match=r"data\.yaml.* number their classes differently: \[\(0, 'ant'\), .*'cat'\)"):
        check_agreement(train, other, train.classes)
    check_agreement(train, train, train.classes)
