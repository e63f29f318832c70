import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def call(monkeypatch: pytest.MonkeyPatch, words: str) -> int:
    torch.set_num_threads(1)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, 'argv', ['tools/benchmark_validation.py', *words.split()])
    return runpy.run_path('tools/benchmark_validation.py')['main']()


def test_the_tool_prints_tables_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f'tests/configs/tiny.py --rounds 1 --json {tmp_path}/new/v.json --cfg-options data_root={tmp_path}'
    assert call(monkeypatch, words) == 0
    assert 'times as fast' in capsys.readouterr().out
    assert json.loads((tmp_path / 'new/v.json').read_text())['same'] is True


def test_what_cannot_be_measured_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = f'--cfg-options data_root={tmp_path} val_dataloader.batch_size=99'
    assert call(monkeypatch, f'tests/configs/tiny.py {data}') == 2
    assert 'no full batch of 99 images' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        call(monkeypatch, 'tests/configs/tiny.py --rounds 0')
