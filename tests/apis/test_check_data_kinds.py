"""Outlines, rotated boxes and keypoints in the check of a data set, and in pictures of its samples."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from rich.console import Console

from lucid.apis import ConfigError, complete, load_config
from lucid.apis.browse import browse
from lucid.apis.check_data import check_data
from lucid.datasets import ShapesDataset

FOLDER = Path(__file__).parents[2] / 'configs/yolo/detect_n_folder.py'
SMALL: dict[str, Any] = {
    'image_size': 128,
    'train_dataloader.num_workers': 0,
    'train_dataloader.persistent_workers': False,
    'val_dataloader.num_workers': 0,
    'val_dataloader.persistent_workers': False,
}


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks; what was printed is ``check.printed``."""
    for name in ('box_figure', 'class_figure'):  # nobody looks at the charts, which take the longest
        monkeypatch.setattr(f'lucid.apis.check_data_pictures.{name}', lambda *_, **__: True)
    monkeypatch.setattr('lucid.apis.check_data_pictures.to_image', lambda _: np.zeros((8, 8, 3), np.uint8))
    console = Console(record=True, width=120, file=io.StringIO())

    def run(target, **options):
        found = check_data(target, tmp_path / 'out', **{'samples': 0, 'image_size': 64, 'console': console, **options})
        run.printed = console.export_text()
        return found

    return run


@pytest.fixture
def shapes(tmp_path):
    for split, number in (('train', 6), ('val', 3)):
        ShapesDataset(tmp_path / 'shapes', split=split, num_images=number, image_size=64)
    return tmp_path / 'shapes'


@pytest.fixture
def dota(tmp_path, test_data):
    """The two real images, one for training and one for validation."""
    for split, name in (('train', 'P0706'), ('val', 'P1888')):
        for folder, suffix in (('images', 'png'), ('labelTxt', 'txt')):
            (tmp_path / 'dota' / split / folder).mkdir(parents=True)
            shutil.copy(test_data / f'dota/{folder}/{name}.{suffix}', tmp_path / 'dota' / split / folder)
    return tmp_path / 'dota'


@pytest.fixture
def persons(tmp_path, test_data):
    """The four real photographs, in the places where a folder has them; all of them in both splits."""
    for split in ('train', 'val'):
        (tmp_path / 'persons' / split).mkdir(parents=True)
        for path in (test_data / 'coco_person').glob('*.jpg'):
            shutil.copy(path, tmp_path / 'persons' / split)
        (tmp_path / 'persons/annotations').mkdir(exist_ok=True)
        shutil.copy(test_data / 'coco_person/person_keypoints.json', tmp_path / f'persons/annotations/{split}.json')
    return tmp_path / 'persons'


def test_all_kinds_are_counted_where_they_are_asked_for(shapes, check):
    kinds = check(shapes, targets=('boxes', 'masks', 'rboxes', 'keypoints')).splits[0].kinds
    entries = json.loads((shapes / 'train/_annotations.coco.json').read_text())['annotations']
    assert kinds.objects == kinds.outlined == kinds.rings == kinds.with_points == len(entries)
    hidden = sum(visibility == 1 for entry in entries for visibility in entry['keypoints'][2::3])
    assert sum(one.visible for one in kinds.keypoints) == 4 * len(entries) - hidden
    assert [one.name for one in kinds.keypoints] == ['top', 'right', 'bottom', 'left']
    assert min(kinds.side_ratio.values()) > 1
    for word in ('with an outline, rings', 'rotated: degrees', 'with keypoints', 'keypoint in train'):
        assert word in check.printed
    report = json.loads((shapes.parent / 'out/report.json').read_text())
    assert report['splits']['train']['kinds']['outlined'] == len(entries)
    # Control: of boxes alone nothing is told.
    plain = check(shapes).splits[0].kinds
    assert (plain.objects, plain[2:]) == (len(entries), (None,) * 6)
    assert 'with an outline' not in check.printed
    assert 'keypoint in train' not in check.printed


def test_bad_kinds_are_problems_only_where_they_are_asked_for(shapes, check):
    path = shapes / 'train/_annotations.coco.json'
    content = json.loads(path.read_text())
    content['annotations'][0]['segmentation'] = {'size': [64, 64], 'counts': 'x'}
    content['annotations'][1]['segmentation'] = []
    path.write_text(json.dumps(content))
    assert check(shapes).num_problems == 0
    assert [problem.kind for problem in check(shapes, targets=('masks',)).splits[0].problems] == [
        'malformed_mask',
        'missing_outline',
    ]
    assert [problem.kind for problem in check(shapes, targets=('polygons',)).splits[0].problems] == ['malformed_mask']


def test_a_config_states_its_own_kinds(shapes, check):
    options = {**SMALL, 'data_root': str(shapes), 'train_dataloader.dataset.targets': ('boxes', 'masks')}
    found = check(FOLDER, options=options, image_size=None)
    assert found.splits[0].kinds.outlined == found.splits[0].kinds.objects > 0
    assert found.splits[1].kinds.outlined is None
    with pytest.raises(ConfigError, match='is a config, which states targets of its own; leave out --targets'):
        check(FOLDER, options=options, targets=('masks',))
    with pytest.raises(ConfigError, match=r"has \['depth'\], which the layout coco does not hold"):
        check(shapes, targets=('depth',))


def difference(one: Path, other: Path) -> float:
    """The share of two pictures in which they differ."""
    pictures = [cv2.imread(str(path)) for path in (one, other)]
    assert pictures[0].shape == pictures[1].shape
    return float((np.abs(pictures[0].astype(int) - pictures[1]).max(axis=2) > 8).mean())


def test_sample_pictures_show_what_was_loaded(shapes, check, tmp_path):
    check(shapes, samples=4)
    (tmp_path / 'out/samples_train.png').rename(tmp_path / 'boxes.png')
    seen = {}
    for kind in ('masks', 'rboxes', 'keypoints'):
        check(shapes, samples=4, targets=('boxes', kind))
        seen[kind] = difference(tmp_path / 'boxes.png', tmp_path / 'out/samples_train.png')
    check(shapes, samples=4)
    assert difference(tmp_path / 'boxes.png', tmp_path / 'out/samples_train.png') == 0
    assert seen['masks'] > 0.02
    assert min(seen.values()) > 0.002


def test_the_real_aerial_images_are_checked_and_drawn(dota, check, tmp_path):
    found = check(dota, targets=('boxes', 'rboxes'), samples=2)
    assert found.num_problems == 0
    train, val = found.splits
    assert (train.kinds.objects, train.kinds.difficult, val.kinds.objects) == (536, 6, 64)
    assert {note.kind for note in val.notes} == {'unused_class'}
    assert 'crowded_image' in {note.kind for note in train.notes}  # 536 boxes
    assert 'rotated: long/short' in check.printed
    assert {'samples_train.png', 'samples_val.png', 'boxes_val.png'} <= {
        path.name for path in (tmp_path / 'out').iterdir()
    }
    options = {**SMALL, 'data_root': str(dota)} | {
        f'{split}_dataloader.dataset.targets': ('boxes', 'rboxes') for split in ('train', 'val')
    }
    pictures = browse(complete(load_config(FOLDER, options)), out=tmp_path / 'look', split='val')
    assert len(pictures) == 1


def test_the_real_persons_are_checked_and_drawn(persons, check, tmp_path):
    found = check(persons, targets=('boxes', 'masks', 'keypoints'), samples=4)
    assert found.num_problems == 0
    kinds = found.splits[0].kinds
    assert (kinds.objects, kinds.outlined, kinds.rings, kinds.with_points) == (14, 14, 17, 12)
    entries = json.loads((persons / 'annotations/train.json').read_text())['annotations']
    assert sum(one.labelled for one in kinds.keypoints) == sum(entry['num_keypoints'] for entry in entries)
    options = {**SMALL, 'data_root': str(persons)}
    options['train_dataloader.dataset.targets'] = ('boxes', 'masks', 'keypoints')
    options['train_dataloader.dataset.pipeline'] = [
        {'type': 'Mosaic', 'close_last': 0},
        {'type': 'RandomAffine', 'degrees': 10},
        {'type': 'CopyPaste', 'prob': 1.0, 'close_last': 0},
        {'type': 'HorizontalFlip', 'prob': 1.0},
    ]
    pictures = browse(complete(load_config(FOLDER, options)), out=tmp_path / 'look', view='steps', number=2)
    assert len(pictures) == 2
