import runpy
import sys
from pathlib import Path

import pytest

from lucid import apis

ROOT = Path(__file__).parents[2]
TOOL = ROOT / 'tools' / 'test.py'
TINY = ROOT / 'tests' / 'configs' / 'tiny.py'


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, 'argv', [str(TOOL), *arguments])
    return runpy.run_path(str(TOOL))['main']()


def test_it_evaluates_and_writes_and_returns_zero(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    data = f'data_root={tmp_path / "shapes"}'
    options = {'data_root': str(tmp_path / 'shapes'), 'train_cfg.max_epochs': 1}
    apis.train(apis.override(apis.load_config(TINY, options), work_dir=tmp_path))
    flags = ['--work-dir', str(tmp_path / 'test'), '--out', str(tmp_path / 'o.json'), '--show-dir', str(tmp_path / 's')]
    assert call(monkeypatch, str(TINY), str(tmp_path / 'best.pth'), *flags, '--cfg-options', data) == 0
    assert (tmp_path / 'o.json').is_file()
    assert len(list((tmp_path / 's').iterdir())) == 8
    assert 'coco/mAP50' in capsys.readouterr().out


def test_a_missing_checkpoint_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert call(monkeypatch, str(TINY), 'nowhere.pth') == 2
    assert capsys.readouterr().err.startswith('error: no checkpoint at nowhere.pth')
