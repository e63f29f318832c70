import runpy
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

TOOL = Path(__file__).parents[2] / 'tools/tile_dota.py'


@pytest.fixture
def dota(tmp_path):
    for folder in ('images', 'labelTxt'):
        (tmp_path / 'dota' / folder).mkdir(parents=True)
    cv2.imwrite(str(tmp_path / 'dota/images/a.png'), np.zeros((40, 60, 3), np.uint8))
    (tmp_path / 'dota/labelTxt/a.txt').write_text('10 5 30 5 30 15 10 15 ship 0\n')
    return tmp_path / 'dota'


@pytest.fixture
def call(monkeypatch):
    def run(*words):
        monkeypatch.setattr(sys, 'argv', ['tile_dota.py', *map(str, words)])
        return runpy.run_path(str(TOOL))['main']()

    return run


def test_a_folder_is_cut_and_the_figures_are_printed(dota, call, tmp_path, capsys):
    assert call(dota, tmp_path / 'tiles', '--size', '32', '--overlap', '8', '--format', 'jpg') == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ('train', 'tiles', 'empty', 'difficult'))
    assert len(list((tmp_path / 'tiles/train').glob('a__*.jpg'))) == 6
    assert (tmp_path / 'tiles/annotations/train.json').is_file()


def test_what_is_wrong_ends_with_two_and_no_traceback(dota, call, tmp_path, capsys):
    (dota / 'labelTxt/a.txt').write_text('nonsense\n')
    assert call(dota, tmp_path / 'tiles') == 2
    assert 'error: ' in (message := capsys.readouterr().err)
    assert 'a.txt:1: a row of 1 values' in message
    assert 'set --on-bad skip_box' in message
    assert call(dota, tmp_path / 'tiles', '--on-bad', 'skip_box') == 0
    assert call(dota, tmp_path / 'tiles', '--on-bad', 'skip_box') == 2
    assert 'is not empty' in capsys.readouterr().err
    assert call(tmp_path / 'nowhere', tmp_path / 'other') == 2
    assert 'nowhere is no folder; set the source to the folder of the data set' in capsys.readouterr().err
    assert call(dota, tmp_path / 'other', '--classes', 'ship', 'boat', '--size', '8') == 2
    assert 'size=8' in capsys.readouterr().err


def test_help_shows_an_example_that_can_be_typed(call, capsys):
    with pytest.raises(SystemExit) as end:
        call('--help')
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert 'tools/tile_dota.py data/dota data/dota_tiles --overlap 512 --format jpg' in printed
    assert 'CocoDataset' in printed
