import hashlib
import io
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from rich.console import Console

from lucid.apis import ConfigError, load_config, train
from lucid.apis.check_data import check_data
from lucid.datasets import CocoDataset, DataError
from lucid.datasets.shape_painting import paint_scene
from lucid.datasets.shape_scenes import DIFFICULTIES, make_scene

CATEGORIES = [{'id': 1, 'name': 'cat'}, {'id': 2, 'name': 'ant'}]
GOOD = {'image_id': 1, 'category_id': 1, 'bbox': [2, 4, 20, 20]}


def picture(path, seed, size=64):
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), paint_scene(rng, make_scene(rng, size, DIFFICULTIES['easy']), size, DIFFICULTIES['easy']))


@pytest.fixture
def coco(tmp_path):
    """Writes splits of 64x64 images a.jpg, b.jpg ... with COCO JSON; ids of annotations count from 100."""

    def write(split='train', annotations=(GOOD,), num_images=2, images=None, categories=CATEGORIES, root='data'):
        folder = tmp_path / root
        names = [f'{chr(97 + number)}.jpg' for number in range(num_images)]
        for number, name in enumerate(names):
            picture(folder / split / name, 1000 * len(split) + number)
        entries = [{'id': number, 'file_name': name, 'height': 64, 'width': 64} for number, name in enumerate(names, 1)]
        # ``images`` changes the entries by their position.
        entries = [{**entry, **(images or {}).get(position, {})} for position, entry in enumerate(entries)]
        content = {
            'images': entries,
            'annotations': [
                {'id': number, **row} if isinstance(row, dict) else row for number, row in enumerate(annotations, 100)
            ],
            'categories': categories,
        }
        (folder / 'annotations').mkdir(exist_ok=True)
        (folder / 'annotations' / f'{split}.json').write_text(json.dumps(content))
        return folder

    return write


@pytest.fixture
def yolo(tmp_path):
    """Writes 64x64 images a.jpg, b.jpg ... in train and val with their label files; None writes no file."""

    def write(*labels):
        folder = tmp_path / 'data'
        for split, texts in (('train', labels), ('val', ['0 0.5 0.5 0.5 0.5\n1 0.2 0.2 0.2 0.2'])):
            for number, text in enumerate(texts):
                name = chr(97 + number)
                picture(folder / f'images/{split}/{name}.jpg', 1000 * len(split) + number)
                (folder / f'labels/{split}').mkdir(parents=True, exist_ok=True)
                if text is not None:
                    (folder / f'labels/{split}/{name}.txt').write_text(text)
        (folder / 'data.yaml').write_text('train: images/train\nval: images/val\nnames: [cat, ant]\n')
        return folder

    return write


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks without pictures, unless they are asked for; what was printed is ``check.printed``."""
    monkeypatch.setattr('lucid.visualization.figures.DPI', 30)  # nobody looks at them
    console = Console(record=True, width=110, file=io.StringIO())

    def run(target, **options):
        found = check_data(target, tmp_path / 'out', **{'samples': 0, 'image_size': 64, 'console': console, **options})
        run.printed = console.export_text()
        return found

    return run


def snapshot(folder):
    return {
        str(path): (path.stat().st_mtime_ns, path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob('*'))
    }


def of(check, split='train'):
    """Kinds and places of the problems of one split, folders left out."""
    (one,) = (one for one in check.splits if one.name == split)
    return [(problem.kind, problem.place.rpartition('/')[2]) for problem in one.problems]


def notes(check, split='train'):
    (one,) = (one for one in check.splits if one.name == split)
    return sorted(note.kind for note in one.notes)


BOTH = [GOOD, {**GOOD, 'category_id': 2, 'bbox': [30, 30, 9, 9]}]
BAD_COCO = [
    ('empty_box', {'bbox': [5, 5, 0, 9]}),
    ('inverted_box', {'bbox': [30, 5, -9, 9]}),
    ('outside_box', {'bbox': [70, 5, 9, 9]}),
    ('nan_box', {'bbox': [float('nan'), 5, 9, 9]}),
    ('nan_box', {'bbox': [5, 5, float('inf'), 9]}),
    ('malformed_box', {'bbox': [5, 5, 9]}),
    ('malformed_box', {'bbox': ['5', 5, 9, 9]}),
    ('unknown_class', {'category_id': 3}),
    ('unknown_class', {'category_id': -1}),
    ('unknown_class', {'category_id': 1.5}),
]


@pytest.mark.parametrize(('kind', 'change'), BAD_COCO)
def test_a_bad_annotation_of_coco_json_is_named_by_its_id(coco, check, kind, change):
    coco(split='val', annotations=BOTH)
    found = check(coco(annotations=[*BOTH, {**GOOD, **change}]))
    assert of(found) == [(kind, 'train.json: annotation 102 of image a.jpg')]
    assert of(found, 'val') == []
    assert f'{kind} in train' in check.printed


def test_annotations_of_no_image_and_of_no_form_are_named(coco, check):
    coco(split='val', annotations=BOTH)
    found = check(coco(annotations=[*BOTH, {**GOOD, 'image_id': 9}, 'nothing']))
    assert of(found) == [
        ('unknown_image', 'train.json: annotation 102 of no listed image'),
        ('malformed_annotation', 'train.json: annotation at position 3 of no listed image'),
    ]


BAD_YOLO = [
    ('unknown_class', '2 0.5 0.5 0.2 0.2'),
    ('unknown_class', '-1 0.5 0.5 0.2 0.2'),
    ('unknown_class', '1.5 0.5 0.5 0.2 0.2'),
    ('empty_box', '1 0.5 0.5 0 0.2'),
    ('inverted_box', '1 0.5 0.5 -0.2 0.2'),
    ('outside_box', '1 1.5 0.5 0.2 0.2'),
    ('nan_box', '1 nan 0.5 0.2 0.2'),
    ('malformed_row', '1 0.5 0.5 0.2'),
    ('malformed_row', '1 0.5 0.5 0.2 wide'),
]


@pytest.mark.parametrize(('kind', 'row'), BAD_YOLO)
def test_a_bad_row_of_a_label_file_is_named_by_its_line(yolo, check, kind, row):
    found = check(yolo(f'0 0.5 0.5 0.5 0.5\n\n{row}\n1 0.2 0.2 0.2 0.2\n', ''))
    assert of(found) == [(kind, 'a.txt:3')]
    assert found.splits[0].effect('skip_box').annotations == 1


def test_an_image_without_label_file_and_a_label_file_without_image_are_named(yolo, check):
    folder = yolo('0 0.5 0.5 0.5 0.5\n1 0.2 0.2 0.2 0.2', None)
    (folder / 'labels/train/z.txt').write_text('0 0.5 0.5 0.5 0.5')
    assert of(check(folder)) == [('missing_label', 'b.txt'), ('missing_image', 'z.txt')]


def test_a_bad_object_of_pascal_voc_is_named_by_its_line(tmp_path, check):
    folder = tmp_path / 'data'
    for name in ('Annotations', 'ImageSets/Main'):
        (folder / name).mkdir(parents=True)
    for split, name in (('train', 'a'), ('val', 'b')):
        picture(folder / f'JPEGImages/{name}.jpg', ord(name))
        (folder / f'ImageSets/Main/{split}.txt').write_text(name)
        objects = [
            f'<object><name>cat</name><bndbox><xmin>{x}</xmin><ymin>5</ymin><xmax>20</xmax><ymax>20</ymax></bndbox></object>'
            for x in ([5, 30, 5] if split == 'train' else [5])
        ]
        size = '<size><width>64</width><height>64</height><depth>3</depth></size>'
        lines = ['<annotation>', f'<filename>{name}.jpg</filename>', size, *objects, '</annotation>']
        (folder / f'Annotations/{name}.xml').write_text('\n'.join(lines))
    found = check(folder, samples=1)
    assert of(found) == [('inverted_box', 'a.xml:5')]
    (note,) = found.splits[0].notes
    assert note.kind == 'duplicate_box'
    assert note.place.startswith('line 6 of image ')
    assert 'like line 4' in note.text
    assert found.splits[0].problems[0].box == (29, 4, 20, 20)


def damage(path, how):
    content = path.read_bytes()
    if how == 'missing':
        path.unlink()
    else:
        path.write_bytes({'empty': b'', 'cut': content[: len(content) // 2], 'text': b'no image'}[how])


@pytest.mark.parametrize('layout', ['coco', 'yolo'])
@pytest.mark.parametrize(('how', 'kind'), [('empty', 'empty_file'), ('cut', 'broken_image'), ('text', 'broken_image')])
def test_a_bad_image_is_named_by_its_path(coco, yolo, check, layout, how, kind):
    if layout == 'coco':
        coco(split='val', annotations=BOTH)
        folder, image = coco(annotations=BOTH), 'train/b.jpg'
    else:
        folder, image = yolo('0 0.5 0.5 0.5 0.5\n1 0.2 0.2 0.2 0.2', ''), 'images/train/b.jpg'
    damage(folder / image, how)
    found = check(folder)
    assert of(found) == [(kind, 'b.jpg')]
    assert found.splits[0].effect('skip_box').refused
    assert found.splits[0].effect('skip_image')[:3] == (False, 0, 1)
    assert found.splits[0].statistics.images == 1


def test_damage_inside_a_whole_looking_file_is_found_because_all_is_decoded(coco, check):
    coco(split='val', annotations=BOTH)
    folder = coco(annotations=BOTH, images={1: {'file_name': 'b.png'}})
    picture(folder / 'train/b.png', 5)
    (folder / 'train/b.jpg').unlink()
    content = bytearray((folder / 'train/b.png').read_bytes())
    content[len(content) // 2 : len(content) // 2 + 50] = bytes(50)
    (folder / 'train/b.png').write_bytes(content)
    CocoDataset(folder, split='train', image_size=64)  # control: header and end are there
    assert of(check(folder)) == [('broken_image', 'b.png')]


def test_missing_and_wrongly_stated_images_and_doubled_ids_are_named(coco, check):
    coco(split='val', annotations=BOTH)
    folder = coco(annotations=BOTH, num_images=6, images={1: {'width': 63}, 3: {'id': 5}, 5: {'height': None}})
    damage(folder / 'train/c.jpg', 'missing')
    found = check(folder)
    assert sorted(of(found)) == [
        ('duplicate_image_id', 'train.json: image d.jpg'),
        ('duplicate_image_id', 'train.json: image e.jpg'),
        ('malformed_image', 'train.json: image at position 5'),
        ('missing_image', 'c.jpg'),
        ('wrong_size', 'b.jpg'),
    ]
    assert found.splits[0].effect('skip_image')[:3] == (False, 0, 5)


def test_a_clean_data_set_has_no_problems_and_no_notes(coco, check):
    coco(split='val', annotations=BOTH)
    found = check(coco(annotations=BOTH))
    assert (found.num_problems, found.num_notes) == (0, 0)
    assert [split.name for split in found.splits] == ['train', 'val']
    assert '0 problems, 0 notes' in check.printed


def test_a_test_split_is_checked_where_there_is_one(coco, check):
    for split in ('val', 'test'):
        coco(split=split, annotations=BOTH)
    assert [split.name for split in check(coco(annotations=BOTH)).splits] == ['train', 'val', 'test']


def test_what_training_takes_is_noted_and_is_no_problem(coco, check):
    folder = coco(split='val', annotations=[GOOD])
    coco(annotations=[*BOTH, GOOD, {**GOOD, 'category_id': 2}])
    picture(folder / 'train/z.jpg', 77)
    shutil.copy(folder / 'train/a.jpg', folder / 'val/b.jpg')
    shutil.copy(folder / 'train/a.jpg', folder / 'train/b.jpg')
    found = check(folder)
    assert found.num_problems == 0
    assert notes(found) == ['duplicate_box', 'two_classes', 'unlisted_image']
    assert notes(found, 'val') == ['unused_class']
    kinds = {pair: [one.kind for one in rows] for pair, rows in found.duplicates.items() if rows}
    assert kinds == {('train', 'train'): ['same_file'], ('train', 'val'): ['same_file']}
    assert found.num_notes == 6


def test_each_policy_does_to_training_what_the_table_says(coco, check):
    coco(split='val', annotations=BOTH)
    folder = coco(annotations=[*BOTH, {**GOOD, 'image_id': 2}, {**GOOD, 'bbox': [1, 1, 0, 0]}], num_images=3)
    (split, _) = check(folder).splits
    effects = {policy: split.effect(policy) for policy in ('error', 'skip_box', 'skip_image')}
    assert effects == {
        'error': (True, 0, 0, 0),
        'skip_box': (False, 1, 0, 0),
        'skip_image': (False, 1, 1, 2),
    }
    with pytest.raises(DataError):
        CocoDataset(folder, split='train', image_size=64)

    def size(policy):
        dataset = CocoDataset(folder, split='train', image_size=64, on_bad=policy)
        return len(dataset), sum(len(dataset.ground_truth(index).labels) for index in range(len(dataset)))

    assert size('skip_box') == (3, 3)
    assert size('skip_image') == (2, 3 - effects['skip_image'].lost)
    assert 'skips 1 image (2 good' in ' '.join(check.printed.split())


def test_splits_that_number_their_classes_differently_are_a_problem(coco, check):
    coco(split='val', annotations=[], categories=CATEGORIES[:1])
    found = check(coco(annotations=BOTH))
    assert found.num_problems == 1
    assert 'number their classes differently' in found.mismatches[0]


def test_a_split_that_cannot_be_read_is_a_problem_and_the_other_one_is_checked(coco, check):
    found = check(coco(annotations=BOTH))
    assert [kind for kind, _ in of(found, 'val')] == ['unreadable_split']
    assert found.splits[1].effect('skip_image').refused
    assert found.splits[0].statistics.boxes == 2


def test_a_split_without_a_usable_image_keeps_its_findings(coco, check):
    coco(split='val', annotations=BOTH)
    found = check(coco(num_images=1, images={0: {'height': 0}}))
    assert [kind for kind, _ in of(found)] == ['malformed_image', 'unusable_split']


def test_nothing_that_can_be_read_is_an_error(tmp_path, check):
    (tmp_path / 'void').mkdir()
    with pytest.raises(ConfigError, match='no known layout'):
        check(tmp_path / 'void')
    with pytest.raises(ConfigError, match='does not exist'):
        check(tmp_path / 'none.py')
    with pytest.raises(ConfigError, match='no options'):
        check(tmp_path / 'void', options={'image_size': 64})


def test_the_data_set_is_never_written_to(coco, check):
    coco(split='val', annotations=BOTH)
    folder = coco(annotations=[*BOTH, {**GOOD, 'bbox': [1, 1, 0, 0]}])
    damage(folder / 'train/b.jpg', 'cut')
    before = snapshot(folder)
    check(folder, samples=1)
    assert snapshot(folder) == before


@pytest.mark.parametrize('place', ['data/out', 'data', 'link/out', 'data/train/deep/out'])
def test_results_inside_the_data_set_are_refused(coco, tmp_path, place):
    folder = coco(annotations=BOTH)
    (tmp_path / 'link').symlink_to(folder)
    before = snapshot(folder)
    with pytest.raises(ConfigError, match='inside the data set'):
        check_data(folder, tmp_path / place)
    with pytest.raises(ConfigError, match='inside the data set'):
        check_data(folder, tmp_path / 'out', json_file=tmp_path / place / 'report.json')
    assert snapshot(folder) == before


def test_results_in_a_folder_of_images_elsewhere_are_refused(yolo, tmp_path):
    folder = yolo('0 0.5 0.5 0.5 0.5')
    shutil.move(folder / 'images', tmp_path / 'images')
    shutil.move(folder / 'labels', tmp_path / 'labels')
    (folder / 'data.yaml').write_text(f'train: {tmp_path}/images/train\nval: ../images/val\nnames: [cat, ant]\n')
    for name in ('images/train', 'labels/val'):
        with pytest.raises(ConfigError, match='inside the data set'):
            check_data(folder, tmp_path / name / 'out', samples=0)


def test_an_annotation_file_elsewhere_is_not_written_over(coco, tmp_path):
    folder = coco(annotations=BOTH)
    file = shutil.move(folder / 'annotations/train.json', tmp_path / 'train.json')
    (tmp_path / 'config.py').write_text(
        "train_dataloader = dict(dataset=dict(type='CocoDataset', split='train', "
        f'ann_file={str(file)!r}, data_root={str(folder)!r}))'
    )
    with pytest.raises(ConfigError, match='inside the data set'):
        check_data(tmp_path / 'config.py', tmp_path / 'out', json_file=file)


def test_pictures_show_what_there_is_and_replace_those_of_an_earlier_check(coco, check, tmp_path):
    folder = coco(split='val', annotations=BOTH)
    bad = {**GOOD, 'bbox': [1, 1, 0, 0]}
    coco(annotations=[*BOTH, GOOD, bad, {**GOOD, 'bbox': [float('nan'), 1, 2, 2]}], num_images=3)
    damage(folder / 'train/b.jpg', 'empty')
    shutil.copy(folder / 'train/c.jpg', folder / 'val/b.jpg')
    check(folder, samples=2, json_file=tmp_path / 'deep/report.json')
    report = json.loads((tmp_path / 'out/report.json').read_text())
    assert report == json.loads((tmp_path / 'deep/report.json').read_text())
    shown = {path.name for path in (tmp_path / 'out').glob('*.png')}
    assert (
        shown
        == set(report['pictures'])
        == {
            'classes.png',
            *(f'{name}_{split}.png' for name in ('boxes', 'samples') for split in ('train', 'val')),
            *(f'problems_train_{kind}.png' for kind in ('empty_box', 'nan_box', 'empty_file')),
            'notes_train_duplicate_box.png',
            'duplicates_train_val.png',
        }
    )
    assert all(cv2.imread(str(tmp_path / 'out' / name)) is not None for name in shown)
    (tmp_path / 'out/mine.png').touch()
    coco(annotations=BOTH)
    check(folder)
    left = {path.name for path in (tmp_path / 'out').glob('*.png')}
    assert left == {'mine.png'}


def test_the_report_has_every_problem_with_its_place_and_is_plain_json(coco, check, tmp_path):
    coco(split='val', annotations=BOTH)
    folder = coco(annotations=[*BOTH, *[{**GOOD, 'bbox': [float('nan'), 1, 2, 2]}] * 30])
    check(folder)
    assert 'and 20 more' in check.printed
    train = json.loads((tmp_path / 'out/report.json').read_text())['splits']['train']
    assert train['counts'] == {'nan_box': 30}
    assert len(train['problems']) == 30
    assert train['problems'][0]['box'] == [None, 1, None, 3]
    assert train['problems'][0]['file'].endswith('train/a.jpg')
    assert train['statistics']['boxes'] == 2


def test_a_config_says_what_is_checked_and_how(coco, check, tmp_path):
    coco(split='val', annotations=BOTH)
    folder = coco(annotations=[*BOTH, {**GOOD, 'bbox': [1, 1, 0, 0]}])
    config = tmp_path / 'config.py'
    config.write_text(
        f'data_root = {str(folder)!r}\n'
        'image_size = (64, 128)\n'
        "model = dict(type='YOLODetector', data_preprocessor=dict(type='DetDataPreprocessor', capacity=[1, 8]))\n"
        "train_dataloader = dict(batch_size=1, dataset=dict(type='CocoDataset', split='train', "
        "pipeline=[dict(type='Mosaic')]))\n"
    )
    found = check(config, image_size=None, options={'train_dataloader.dataset.on_bad': 'skip_box'})
    (split,) = found.splits
    assert split.policy == 'skip_box'
    assert split.statistics.image_size == (64, 128)
    assert split.statistics.images_per_capacity == {1: 1, 8: 1, -1: 0}
    assert of(found) == [('empty_box', 'train.json: annotation 102 of image a.jpg')]


def test_class_names_that_no_terminal_shows_do_not_stop_the_check(coco, check):
    names = [{'id': 1, 'name': '\ud800[bold]'}, {'id': 2, 'name': 'a\nb'}]
    coco(split='val', annotations=BOTH, categories=names)
    check(coco(annotations=BOTH, categories=names), samples=1)
    assert '?[bold]' in check.printed


def test_the_two_degenerate_boxes_of_bccd_are_named_exactly(test_data, check, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text(
        f'data_root = {str(test_data / "bccd")!r}\n'
        'image_size = 640\n'
        "train_dataloader = dict(dataset=dict(type='CocoDataset', split='train', "
        "ann_file='annotations/train_raw.json'))\n"
        "val_dataloader = dict(dataset=dict(type='CocoDataset', split='val'))\n"
    )
    found = check(config, image_size=None)
    assert of(found, 'val') == []
    assert [(problem.kind, problem.message) for problem in found.splits[0].problems] == [
        (
            'empty_box',
            'train_raw.json: annotation 3153 of image BloodImage_00338.jpg: bbox [504.0, 337.0, 0.0, 0.0] has no area',
        ),
        (
            'empty_box',
            'train_raw.json: annotation 3197 of image BloodImage_00343.jpg: bbox [181.0, 329.0, 0.0, 0.0] has no area',
        ),
    ]
    assert found.splits[0].statistics.boxes == 3941
    assert not any(found.duplicates.values())


def test_the_same_folder_of_bccd_trains_under_skip_box_and_is_refused_under_error(test_data, tmp_path):
    torch.set_num_threads(1)  # on a busy machine a second thread costs more than it gains with operators this small
    content = json.loads((test_data / 'bccd/annotations/train_raw.json').read_text())
    bad = {row['image_id'] for row in content['annotations'] if min(row['bbox'][2:]) <= 0}
    kept = [image for image in content['images'] if image['id'] in bad][:2] + content['images'][:6]  # a short epoch
    annotations = [row for row in content['annotations'] if row['image_id'] in {image['id'] for image in kept}]
    (tmp_path / 'some.json').write_text(json.dumps({**content, 'images': kept, 'annotations': annotations}))
    options = {
        'data_root': str(test_data / 'bccd'),
        'image_size': 64,
        'train_dataloader.dataset.ann_file': str(tmp_path / 'some.json'),
        'train_dataloader.batch_size': 4,
        'train_dataloader.num_workers': 0,
        'train_cfg.max_epochs': 1,
        'optim_wrapper.optimizer.ns_steps': 1,
        'default_hooks.pictures': None,
        'default_hooks.checkpoint.save_best': None,
    }
    config = Path(__file__).parents[2] / 'configs/yolo/detect_n_bccd.py'
    before = snapshot(test_data / 'bccd')
    for policy in ('error', 'skip_box'):
        cfg = load_config(config, {**options, 'train_dataloader.dataset.on_bad': policy})
        cfg.work_dir = str(tmp_path / policy)
        cfg.val_dataloader = cfg.val_evaluator = cfg.val_cfg = None
        if policy == 'error':
            with pytest.raises(ConfigError, match='2 empty_box'):
                train(cfg)
        else:
            train(cfg)
            assert (tmp_path / 'skip_box/last.pth').is_file()
    assert snapshot(test_data / 'bccd') == before


def test_data_sets_that_a_config_joins_are_checked_one_by_one(coco, check, tmp_path):
    first, second = coco(annotations=BOTH, root='one'), coco(annotations=[{**GOOD, 'category_id': 9}], root='two')
    parts = ', '.join(f"dict(type='CocoDataset', split='train', data_root={str(root)!r})" for root in (first, second))
    config = tmp_path / 'config.py'
    config.write_text(f"train_dataloader = dict(dataset=dict(type='ConcatDataset', datasets=[{parts}]))\n")
    found = check(config)
    assert of(found, 'train_0') == []
    assert of(found, 'train_1') == [('unknown_class', 'train.json: annotation 100 of image a.jpg')]
