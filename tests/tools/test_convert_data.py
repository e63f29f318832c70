import runpy
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    for name in ('images/train', 'labels/train'):
        (tmp_path / 'source' / name).mkdir(parents=True)
    cv2.imwrite(str(tmp_path / 'source/images/train/a.jpg'), np.zeros((40, 60, 3), np.uint8))
    (tmp_path / 'source/labels/train/a.txt').write_text('0 0.5 0.5 0.5 0.5\n')
    (tmp_path / 'source/data.yaml').write_text('names: [ant]\ntrain: images/train\n')
    return tmp_path


@pytest.fixture
def call(folder, monkeypatch):
    def run(*words):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, 'argv', ['convert_data.py', *words])
        return runpy.run_path(str(ROOT / 'tools/convert_data.py'))['main']()

    return run


def test_it_converts_and_says_what_it_wrote(folder, call, capsys):
    assert call('source', 'out', '--to', 'voc', '--images', 'link') == 0
    assert '<xmin>16</xmin>' in (folder / 'out/Annotations/a.xml').read_text()
    assert (folder / 'out/JPEGImages/a.jpg').is_symlink()
    words = capsys.readouterr().out.split()
    assert {'split', 'train', '1'} <= set(words)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['nowhere', 'out', '--to', 'coco'], 'nowhere does not exist; set the source to the folder'),
        (['source', 'out', '--to', 'yolo'], 'has layout yolo already'),
        (['source', 'source/out', '--to', 'coco'], 'is inside the source'),
        (['source', 'source', '--to', 'coco'], 'is inside the source'),
        (['source', 'out', '--to', 'coco', '--splits', 'val'], "states no 'val' (it has train)"),
        (['source', 'out', '--to', 'voc', '--splits', 'val'], 'or name others with --splits'),
        (['source', 'out', '--to', 'voc', '--from', 'coco', '--splits', 'val'], 'annotations/val.json'),
        (['source', 'out', '--to', 'voc', '--from', 'coco', '--splits', 'train'], 'set --ann-file'),
        (['source', 'out', '--to', 'coco', '--from', 'voc', '--splits', 'val'], 'val.txt does not exist'),
        (['source', 'out', '--to', 'coco', '--from', 'voc'], 'has none of the splits train, val, test'),
    ],
)
def test_a_mistake_is_one_message_and_writes_nothing(folder, call, capsys, words, message):
    before = set(folder.rglob('*'))
    assert call(*words) == 2
    shown = capsys.readouterr().err
    assert shown.startswith('error: ')
    assert message in shown
    assert set(folder.rglob('*')) == before


def test_bad_data_is_refused_by_line_or_left_out_by_a_word(folder, call, capsys):
    (folder / 'source/labels/train/a.txt').write_text('0 0.5 0.5 0.5 0.5\n4 0.5 0.5 0.5 0.5\n')
    assert call('source', 'out', '--to', 'coco') == 2
    assert 'a.txt:2: class 4 is none of 0 to 0' in capsys.readouterr().err
    assert call('source', 'out', '--to', 'coco', '--on-bad', 'skip_box') == 0
    assert '1 unknown_class' in capsys.readouterr().out


def test_help_shows_examples(call, capsys):
    with pytest.raises(SystemExit, match='0'):
        call('--help')
    assert 'examples:\n  tools/convert_data.py data/cells data/cells_yolo --to yolo' in capsys.readouterr().out


def test_bad_data_is_refused_with_the_flags_that_help(folder, call, capsys):
    labels = folder / 'source/labels/train/a.txt'
    labels.write_text('7 0.5 0.5 0.5 0.5\n')
    assert call('source', 'out', '--to', 'voc') == 2
    assert 'set --on-bad skip_box or --on-bad skip_image to leave out' in capsys.readouterr().err
    labels.unlink()
    assert call('source', 'out', '--to', 'voc') == 2
    shown = capsys.readouterr().err
    assert 'set --on-bad skip_image to leave out' in shown
    assert shown.rstrip().endswith('set --missing-labels background')
