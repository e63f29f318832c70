"""Tools that measure refuse a device that is not there, and a file that cannot be written, before they measure."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TINY = 'tests/configs/tiny.py'


def call(monkeypatch: pytest.MonkeyPatch, tool: str, *words: str) -> int:
    torch.set_num_threads(1)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, 'argv', [tool, *words])
    try:
        return int(runpy.run_path(f'tools/{tool}.py')['main']())
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize('tool', ['benchmark', 'data_rate', 'parity', 'pool_table'])
@pytest.mark.parametrize(
    ('device', 'message'),
    [
        ('gpu', "'gpu' does not exist; use cpu, cuda or cuda:N"),
        ('cuda:99', "'cuda:99' is not there: this machine has"),
        ('meta', "'meta' is none that lucid runs on"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    tool: str, device: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [] if tool == 'pool_table' else [TINY]
    assert call(monkeypatch, tool, *words, '--device', device) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize('tool', ['benchmark', 'benchmark_validation', 'data_rate', 'parity'])
def test_a_result_that_cannot_be_written_is_refused_before_measuring(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'file').write_text('')
    device = [] if tool == 'benchmark_validation' else ['--device', 'cpu']
    assert call(monkeypatch, tool, TINY, *device, '--json', f'{tmp_path}/file/r.json') == 2
    assert f'{tmp_path}/file' in capsys.readouterr().err


def test_the_folder_of_a_result_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = ['--ways', 'host', '--workers', '0', '--no-step', '--seconds', '0.01', '--rounds', '1', '--device', 'cpu']
    data = ['--cfg-options', f'data_root={tmp_path}/data', 'image_size=32']
    assert call(monkeypatch, 'data_rate', TINY, *short, '--json', f'{tmp_path}/new/r.json', *data) == 0
    assert (tmp_path / 'new/r.json').is_file()
