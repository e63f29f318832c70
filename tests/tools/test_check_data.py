import json
import runpy
import sys
from pathlib import Path

import pytest

from lucid.datasets import ShapesDataset

TOOL = Path(__file__).parents[2] / 'tools' / 'check_data.py'


@pytest.fixture
def call(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, 'argv', [str(TOOL), *map(str, arguments)])
        return runpy.run_path(str(TOOL))['main']()

    return run


@pytest.fixture
def folder(tmp_path):
    for split in ('train', 'val'):
        ShapesDataset(tmp_path / 'shapes', split=split, num_images=3, image_size=64)
    return tmp_path / 'shapes'


def spoil(folder):
    path = folder / 'train/_annotations.coco.json'
    content = json.loads(path.read_text())
    content['annotations'][0]['bbox'][2] = 0
    path.write_text(json.dumps(content))


def test_it_returns_zero_for_clean_data_and_leaves_pictures_and_report(call, folder, tmp_path):
    assert call(folder, '--samples', 2) == 0
    out = tmp_path / 'work_dirs/check_data/shapes'
    assert {'report.json', 'classes.png', 'samples_train.png', 'boxes_val.png'} <= {path.name for path in out.iterdir()}


def test_it_returns_one_for_problems_and_names_them(call, folder, capsys):
    spoil(folder)
    assert call(folder, '--samples', 0, '--json', 'found/report.json', '--image-size', 64) == 1
    assert 'annotation 1 of image 000000.jpg: bbox' in capsys.readouterr().out
    report = json.loads(Path('found/report.json').read_text())
    assert report['splits']['train']['counts'] == {'empty_box': 1}
    assert report['pictures'] == []


def test_notes_count_only_when_it_is_strict(call, folder):
    (folder / 'val/more.jpg').write_bytes((folder / 'val/000000.jpg').read_bytes())
    assert call(folder, '--samples', 0) == 0
    assert call(folder, '--samples', 0, '--strict') == 1


def test_it_reads_a_config_with_options(call, folder, tmp_path):
    spoil(folder)
    config = tmp_path / 'config.py'
    config.write_text("train_dataloader = dict(dataset=dict(type='FolderDataset', split='train'))\ndata_root = 'no'\n")
    arguments = (config, '--samples', 0, '--out', 'found', '--cfg-options', f'data_root={folder}')
    assert call(*arguments) == 1
    assert call(*arguments, 'train_dataloader.dataset.split=val') == 0


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['nowhere'], 'nowhere does not exist; give the folder of a data set, or a config file'),
        (['nowhere', '--targets', 'masks'], 'nowhere does not exist; give the folder'),
        (['shapes', '--out', 'shapes/out'], 'inside the data set'),
        (['shapes', '--out', 'shapes/train/000000.jpg'], 'is a file'),
        (['shapes', '--cfg-options', 'image_size=64'], 'no options'),
    ],
)
def test_it_returns_two_where_it_cannot_check(call, folder, capsys, arguments, message):
    assert call(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize('sizes', [['64', '64', '64'], ['0']])
def test_an_image_size_that_is_none_is_refused(call, folder, sizes):
    with pytest.raises(SystemExit) as stop:
        call(folder, '--image-size', *sizes)
    assert stop.value.code == 2


def test_what_is_wrong_with_every_split_is_said_once(call, folder, capsys, tmp_path):
    target = tmp_path / 'yolo'
    target.mkdir()
    (target / 'data.yaml').write_text('train: images/train\nval: images/val\nnames: [a, b]\nnc: 3\n')
    assert call(target) == 2
    assert capsys.readouterr().err.count('nc is 3, but names lists 2 classes') == 1
