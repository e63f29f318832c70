from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest
from mmengine.logging import MMLogger

from lucid.datasets import SampleKey, YoloDataset
from lucid.datasets.yolo_file import find_yolo_file, find_yolo_images, label_of, read_yolo_file
from lucid.registry import DATASETS

YAML = 'train: images/train\nval: images/val\nnames: [ant, cat, dog]\n'
GOOD = '1 0.5 0.5 0.25 0.5\n'


@pytest.fixture
def yolo(tmp_path):
    """Writes a data set: ``data.yaml``, images of 60x40 pixels by path, label files by path (None: no file)."""

    def write(labels=GOOD, yaml=YAML, images=('images/train/a.jpg', 'images/train/b.png'), **other):
        (tmp_path / 'data.yaml').write_text(yaml)
        picture = cv2.resize(np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8), (60, 40))
        for name in images:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), picture)
            label = label_of(path, tmp_path)
            label.parent.mkdir(parents=True, exist_ok=True)
            text = other.get(path.stem, labels)
            if text is not None:
                label.write_text(text)
        return tmp_path

    return write


def build(root, **changes):
    return YoloDataset(root, **{'split': 'train', 'image_size': 64, **changes})


def test_rows_become_boxes_in_pixels(yolo):
    data = build(yolo(a='2 0.5 0.5 0.25 0.5\n0 0.25 0.5 0.1 0.05\n', b=''))
    # 0.25 of 60 is 15 wide around 30, 0.5 of 40 is 20 high around 20.
    np.testing.assert_allclose(data[0].boxes, [[22.5, 10, 37.5, 30], [12, 19, 18, 21]], atol=1e-5)
    np.testing.assert_array_equal(data[0].labels, [2, 0])
    assert data[1].boxes.shape == (0, 4), 'an empty file is an image without objects'
    assert data.classes == ('ant', 'cat', 'dog')
    assert data.category_ids == (0, 1, 2)
    assert data.image_ids.tolist() == [1, 2]
    assert (data.layout, data.annotation_file, data.metainfo) == ('yolo', None, {'classes': data.classes})


def test_boxes_that_reach_beyond_the_image_are_clipped(yolo):
    data = build(yolo('0 0 1 0.5 0.5\n'))
    np.testing.assert_allclose(data[0].boxes, [[0, 30, 15, 40]], atol=1e-5)


def test_four_corners_are_a_rotated_box_and_its_envelope(yolo):
    corners = '1 0.5 0.25 0.75 0.5 0.5 0.75 0.25 0.5\n'  # of 60x40: (30, 10), (45, 20), (30, 30), (15, 20)
    sample = build(yolo(corners), targets=['rboxes'])[0]
    np.testing.assert_allclose(sample.boxes, [[15, 10, 45, 30]], atol=1e-4)
    np.testing.assert_allclose(sample.rboxes[0, :2], [30, 20], atol=1e-4)
    assert build(yolo(corners))[0].rboxes is None
    with pytest.raises(ValueError, match=r'1 malformed_rbox.*\n.*a\.txt:1.*has no corners; write class and four'):
        build(yolo(corners, a=GOOD), targets=['rboxes'])


def test_images_are_sorted_and_found_in_folders_below(yolo):
    data = build(yolo(images=('images/train/c.jpg', 'images/train/B/d.jpg', 'images/train/a.JPG')))
    assert [file.split('train/')[1] for file in data.files] == ['B/d.jpg', 'a.JPG', 'c.jpg']
    assert len(data[0].boxes) == 1


def test_it_is_described_by_a_config(yolo):
    config = {'type': 'YoloDataset', 'data_root': str(yolo()), 'split': 'train', 'image_size': 32}
    data = DATASETS.build({**config, 'pipeline': [{'type': 'Mosaic'}, {'type': 'RandomAffine'}]})
    assert data[SampleKey(0, 1, 100)].image.shape == (32, 32, 3)


@pytest.mark.parametrize(
    ('kind', 'row', 'message'),
    [
        ('unknown_class', '3 0.5 0.5 0.1 0.1', 'class 3 is none of 0 to 2'),
        ('unknown_class', '-1 0.5 0.5 0.1 0.1', 'class -1'),
        ('unknown_class', '1.5 0.5 0.5 0.1 0.1', r'class 1\.5'),
        ('unknown_class', 'nan 0.5 0.5 0.1 0.1', 'class nan'),
        ('empty_box', '1 0.5 0.5 0 0.1', r'box 0\.5 0\.5 0 0\.1 has no area'),
        ('empty_box', '1 0.5 0.5 0.1 0.0', 'has no area'),
        ('empty_box', '1 0.5 0.5 0.1 0.00001', 'has no area'),
        ('empty_box', '1 0.1 0.1 0.1 0.2 0.1 0.3 0.1 0.2', 'has no area'),
        ('inverted_box', '1 0.5 0.5 -0.1 0.1', 'negative width or height'),
        ('inverted_box', '1 0.5 0.5 0.1 -0.1', 'negative width or height'),
        ('outside_box', '1 1.2 0.5 0.1 0.1', r'has 1\.2, which is no fraction of 0 to 1'),
        ('outside_box', '1 0.5 -0.2 0.1 0.1', r'has -0\.2'),
        ('outside_box', '1 0.5 0.5 0.1 1.000001', r'has 1\.000001, which is no fraction'),
        ('outside_box', '1 30 20 15 20', 'has 30.0, which is no fraction'),
        ('outside_box', '1 0.1 0.1 0.2 0.1 0.2 1.1 0.1 0.2', r'has 1\.1'),
        ('nan_box', '1 nan 0.5 0.1 0.1', 'is not finite'),
        ('nan_box', '1 0.5 0.5 inf 0.1', 'is not finite'),
        ('malformed_row', '0.5 0.5 0.1 0.1', 'a row of 4 values; write class cx cy w h, or class and four corners'),
        ('malformed_row', '1 0.1 0.1 0.2 0.2 0.3 0.1', 'a row of 7 values'),
        ('malformed_row', '1 0.5 0.5 0.1 wide', "'1 0.5 0.5 0.1 wide' are not all numbers"),
        ('malformed_row', '1,0.5,0.5,0.1,0.1', 'a row of 1 values'),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line_or_left_out_and_counted(yolo, kind, row, message):
    root = yolo(a=f'{GOOD}\n{row}\n{GOOD}')
    with pytest.raises(ValueError, match=rf'(?s)\(1 {kind}\).*labels/train/a\.txt:3: .*{message}') as caught:
        build(root)
    assert str(caught.value).endswith("set on_bad='skip_box' or on_bad='skip_image' to leave out what is bad")
    (problem,) = caught.value.problems
    assert (problem.kind, problem.image, problem.annotation) == (kind, 0, 3)
    assert problem.place == str(root / 'labels/train/a.txt:3')
    lenient = build(root, on_bad='skip_box')
    assert lenient.problems == {kind: 1}
    assert [len(lenient[index].boxes) for index in range(2)] == [2, 1]
    strict = build(root, on_bad='skip_image')
    assert [file[-5:] for file in strict.files] == ['b.png']


def test_the_box_of_a_bad_row_can_be_drawn(yolo):
    problems = build(yolo(a='7 0.5 0.5 0.5 0.5\n1 1 1 1\n'), on_bad='skip_box').findings
    assert [problem.box for problem in problems] == [(15, 10, 45, 30), None]


@pytest.mark.parametrize(
    ('kind', 'damage', 'message'),
    [
        (
            'missing_label',
            lambda root: (root / 'labels/train/a.txt').unlink(),
            r"a\.jpg has no label file; [\s\S]*missing_labels='background'",
        ),
        ('broken_label', lambda root: (root / 'labels/train/a.txt').write_bytes(b'\xff\xfe1'), 'cannot be read'),
        ('empty_file', lambda root: (root / 'images/train/a.jpg').write_bytes(b''), 'empty'),
        ('broken_image', lambda root: (root / 'images/train/a.jpg').write_bytes(b'no image'), 'truncated or no image'),
        (
            'broken_image',
            lambda root: (root / 'images/train/a.jpg').write_bytes((root / 'images/train/a.jpg').read_bytes()[:-200]),
            'truncated or no image',
        ),
    ],
)
def test_a_bad_file_is_refused_by_name_or_left_out_with_its_image(yolo, kind, damage, message):
    root = yolo()
    damage(root)
    for policy in ('error', 'skip_box'):
        with pytest.raises(ValueError, match=rf'(?s)\(1 {kind}\).*train/a\.\w+: .*{message}'):
            build(root, on_bad=policy)
    data = build(root, on_bad='skip_image')
    assert data.problems == {kind: 1}
    assert [file[-5:] for file in data.files] == ['b.png']


def test_a_missing_label_file_may_mean_background(yolo):
    data = build(yolo(a=None), missing_labels='background')
    assert [len(data[index].boxes) for index in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="missing_labels='ignore' is unknown; choose one of error, background"):
        build(yolo(), missing_labels='ignore')


def test_a_label_file_whose_image_is_missing_is_found(yolo):
    root = yolo()
    (root / 'labels/train/classes.txt').write_text('ant\ncat\ndog\n')  # as some tools leave it there
    assert build(root).problems == {}
    (root / 'images/train/a.jpg').unlink()
    with pytest.raises(ValueError, match=r'(?s)\(1 missing_image\).*labels/train/a\.txt: no image belongs to'):
        build(root, on_bad='skip_box')
    assert build(root, on_bad='skip_image').problems == {'missing_image': 1}


def test_images_may_be_listed_in_their_order_with_labels_beside_them(yolo, tmp_path):
    yolo(
        yaml='train: [lists/one.txt, pictures]\nnames: {0: ant, 1: cat}\nnc: 2\n', images=('pictures/a.jpg', 'x/b.jpg')
    )
    (tmp_path / 'lists').mkdir()
    (tmp_path / 'lists/one.txt').write_text(f'../x/b.jpg\n\n{tmp_path}/pictures/a.jpg\n../x/none.jpg\n')
    assert (tmp_path / 'x/b.txt').is_file()
    with pytest.raises(ValueError, match='1 missing_image, 1 missing_label'):
        build(tmp_path)
    data = build(tmp_path, on_bad='skip_image')
    assert [file[-5:] for file in data.files] == ['b.jpg', 'a.jpg', 'a.jpg']


def test_an_image_turned_by_its_exif_has_the_turned_size(yolo, tmp_path):
    root = yolo('0 0.5 0.5 0.5 0.5\n', images=('images/train/a.jpg',))
    picture = PIL.Image.open(root / 'images/train/a.jpg')
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    picture.save(root / 'images/train/a.jpg', exif=exif)
    sample = build(root)[0]
    assert sample.image.shape[:2] == (60, 40)
    np.testing.assert_allclose(sample.boxes, [[10, 15, 30, 45]], atol=1e-5)


@pytest.mark.parametrize(
    ('yaml', 'message'),
    [
        ('names: [a\n', r'data\.yaml is no YAML'),
        ('- a\n', 'holds no mapping; write names'),
        ('train: images/train\n', 'names is None; list the classes'),
        ('names: {0: a, 2: b}\n', r'names has the keys \[0, 2\]; number them 0 to 1'),
        ('names: [yes, b]\n', 'names has True, which is no text; put it in quotes'),
        ('names: [a, b]\nnc: 3\n', 'nc is 3, but names lists 2 classes; make them agree'),
        ('names: [a, b]\nval: images/val\n', r"states no 'train' \(it has val\); state one folder"),
        ('names: [a, b]\ntrain: 5\n', 'train is 5; write a folder'),
        ('names: [a, b]\ntrain: images/trian\n', r"train is 'images/trian', which does not exist; looked for .*trian"),
        ('names: [a, b]\ntrain: labels/train\n', "leads to 'labels/train', where there is no image"),
    ],
)
def test_a_data_yaml_that_cannot_be_meant_is_refused(yolo, yaml, message):
    with pytest.raises(ValueError, match=message):
        build(yolo(yaml=yaml))


def test_leading_dots_are_dropped_where_they_lead_nowhere(yolo):
    root = yolo(yaml='train: ../images/train\nval: ../images/val\nnames: [ant, cat]\npath: /no/such/folder\n')
    assert len(build(root)) == 2


def test_val_may_be_called_valid(yolo):
    root = yolo(yaml='names: [ant, cat]\nvalid: images/val\n', images=('images/val/a.jpg',))
    assert len(build(root, split='val')) == 1
    with pytest.raises(ValueError, match='states both val and valid'):
        build(yolo(yaml='names: [ant, cat]\nvalid: images/val\nval: images/val\n'), split='val')


def test_a_path_that_leads_to_other_images_is_refused(yolo, tmp_path):
    root = yolo(yaml=f'{YAML}path: other\n')
    assert len(build(root)) == 2
    (tmp_path / 'other/images/train').mkdir(parents=True)
    with pytest.raises(ValueError, match=r"train could be .*images/train or, by its path 'other', .*; remove path"):
        build(root)
    elsewhere = tmp_path / 'elsewhere.yaml'
    elsewhere.write_text('path: other\ntrain: more\nnames: [ant]\n')
    (tmp_path / 'other/more').mkdir()
    with pytest.raises(ValueError, match="leads to 'more', where there is no image"):
        find_yolo_images(read_yolo_file(elsewhere), 'train')


def test_the_yaml_file_may_be_given_or_have_another_name(yolo, tmp_path):
    root = yolo()
    assert len(build(root / 'data.yaml')) == 2
    (root / 'data.yaml').rename(root / 'cells.yml')
    (root / 'notes.yaml').write_text('lr: 0.1\n')
    assert build(root).source == root / 'cells.yml'
    (root / 'more.yaml').write_text(YAML)
    with pytest.raises(ValueError, match=r'files that name classes: cells\.yml, more\.yaml; give the path of one'):
        build(root)
    assert find_yolo_file(tmp_path / 'nowhere') is None
    with pytest.raises(ValueError, match=r'nowhere has no data\.yaml'):
        build(tmp_path / 'nowhere')


@pytest.mark.parametrize(
    ('image', 'label'),
    [
        ('/r/images/train/a.jpg', '/r/labels/train/a.txt'),
        ('/r/train/images/sub/a.b.png', '/r/train/labels/sub/a.b.txt'),
        ('/r/images/images/a.jpg', '/r/images/labels/a.txt'),
        ('/r/train/a.jpg', '/r/train/a.txt'),
        ('/elsewhere/images/a.jpg', '/elsewhere/labels/a.txt'),
    ],
)
def test_labels_lie_where_the_last_folder_called_images_is_replaced(image, label):
    assert label_of(Path(image), Path('/r')) == Path(label)
    # A folder called images above the data set stands for nothing.
    assert label_of(Path('/home/images/set/train/a.jpg'), Path('/home/images/set')) == Path(
        '/home/images/set/train/a.txt'
    )


def test_a_data_set_is_never_written_to(yolo):
    root = yolo(a='9 0 0 0 0\n')
    state = {path: path.stat().st_mtime_ns for path in root.rglob('*')}
    data = build(root, on_bad='skip_box', cache_mb=1)
    data[0], data.as_coco()
    assert {path: path.stat().st_mtime_ns for path in root.rglob('*')} == state


def test_the_boxes_are_handed_out_as_coco(yolo):
    content = build(yolo(b='')).as_coco()
    assert content['categories'] == [{'id': 0, 'name': 'ant'}, {'id': 1, 'name': 'cat'}, {'id': 2, 'name': 'dog'}]
    assert [(image['id'], image['height'], image['width']) for image in content['images']] == [(1, 40, 60), (2, 40, 60)]
    assert content['annotations'] == [
        {'id': 1, 'image_id': 1, 'category_id': 1, 'bbox': [22.5, 10, 15, 20], 'area': 300, 'iscrowd': 0}
    ]


def test_blood_cells_are_read_without_a_problem(test_data):
    train, val = (build(test_data / 'bccd_yolo', split=split) for split in ('train', 'val'))
    assert (len(train), len(val)) == (40, 12)
    assert train.classes == val.classes == ('RBC', 'WBC', 'Platelets')
    assert train.problems == val.problems == {}


def test_the_split_is_named_and_no_policy_that_would_not_help(yolo):
    root = yolo(a=f'{GOOD}\n7 0.5 0.5 0.5 0.5\n')
    (root / 'images/train/b.png').write_bytes(b'')
    with pytest.raises(ValueError, match=r'data\.yaml, split train has bad data') as caught:
        build(root)
    assert "set on_bad='skip_image' to leave out" in str(caught.value)
    assert 'skip_box' not in str(caught.value)
    assert caught.value.told('a.{}={}').endswith('set a.on_bad=skip_image to leave out what is bad')


def test_what_an_image_takes_with_it_is_logged(yolo, caplog):
    log = MMLogger.get_instance('leaves_out')
    log.addHandler(caplog.handler)
    build(yolo(a=f'{GOOD}\n{GOOD}\n7 0.5 0.5 0.5 0.5\n'), on_bad='skip_image')
    assert 'split train: skip_image leaves out 1 of 2 images, with 2 good boxes: 1 unknown_class' in caplog.text
