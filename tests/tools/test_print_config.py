import runpy
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

ROOT = Path(__file__).parents[2]
TOOL = ROOT / 'tools' / 'print_config.py'
CONFIG = ROOT / 'configs' / 'yolo_capture.py'


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, 'argv', [str(TOOL), *arguments])
    return runpy.run_path(str(TOOL))['main']()


def test_what_is_printed_is_a_config_that_says_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    assert call(monkeypatch, str(CONFIG), '--cfg-options', 'train_cfg.max_epochs=4') == 0
    (tmp_path / 'printed.py').write_text(capsys.readouterr().out)
    printed = Config.fromfile(str(tmp_path / 'printed.py'))
    assert printed.train_cfg.max_epochs == 4
    assert printed.train_dataloader.dataset.data_root == 'data/shapes'
    assert '_base_' not in printed


def test_on_a_terminal_it_is_coloured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
    monkeypatch.setenv('FORCE_COLOR', '1')
    assert call(monkeypatch, str(CONFIG)) == 0
    assert '\x1b[' in capsys.readouterr().out


def test_a_mistake_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert call(monkeypatch, str(CONFIG), '--cfg-options', 'image_siez=320') == 2
    assert "did you mean 'image_size'?" in capsys.readouterr().err


def test_a_path_with_a_space_and_a_comma_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert call(monkeypatch, str(CONFIG), '--cfg-options', 'data_root=/data/odd name, with=sign') == 0
    assert "data_root = '/data/odd name, with=sign'" in capsys.readouterr().out
