import importlib.util
import sys
from pathlib import Path

import pytest

from lucid.datasets import ShapesDataset

ROOT = Path(__file__).parents[2]
TINY = ROOT / 'tests' / 'configs' / 'tiny.py'


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the tool in an empty folder and returns its exit code."""
    spec = importlib.util.spec_from_file_location('browse_tool', ROOT / 'tools' / 'browse_dataset.py')
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, 'argv', ['browse_dataset.py', *map(str, arguments)])
        try:
            return tool.main()
        except SystemExit as end:
            return end.code

    return call


def test_help_shows_examples(run, capsys):
    assert run('--help') == 0
    assert 'tools/browse_dataset.py configs/yolo/detect_n_bccd.py --sheet' in capsys.readouterr().out


def test_it_draws_into_its_own_folder_and_says_where(run, capsys, tmp_path):
    assert run(TINY, '--number', 2, '--steps', '--epoch', 2, '--side', 64) == 0
    assert capsys.readouterr().out.endswith('2 pictures in work_dirs/browse/tiny\n')
    assert len(list((tmp_path / 'work_dirs/browse/tiny').glob('train_epoch2_*.png'))) == 2
    assert run(TINY, '--split', 'val', '--sheet', '--out', 'look', '--compare') == 0
    assert [path.name for path in (tmp_path / 'look').iterdir()] == ['val_sheet00.png']


def test_options_of_the_config_can_be_changed(run, tmp_path):
    ShapesDataset(tmp_path / 'mine', split='train', num_images=20, image_size=64)
    assert run(TINY, '--indices', 3, '--seed', 7, '--out', 'look', '--cfg-options', 'data_root=mine') == 0
    assert [path.name for path in (tmp_path / 'look').iterdir()] == ['train_epoch1_000003_000003.png']
    assert not (tmp_path / 'data').exists()


def test_mistakes_are_named_without_a_traceback(run, capsys, tmp_path):
    assert run(TINY, '--indices', 99, '--out', 'look') == 2
    assert 'error: there is no image 99: train has 20' in capsys.readouterr().err
    assert run(TINY, '--out', 'data/tiny/look') == 2
    assert 'never written to' in capsys.readouterr().err
    assert run(tmp_path / 'none.py') == 2
    assert 'none.py does not exist' in capsys.readouterr().err
    assert run(TINY, '--in-order', '--indices', 1) == 2
    assert run(TINY, '--cfg-options', 'data_rot=x') == 2
    assert 'data_root' in capsys.readouterr().err
