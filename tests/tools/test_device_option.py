"""Tools that measure refuse a device that is not there, and a file that cannot be written, before they measure."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TINY = 'tests/configs/tiny.py'
Call = Callable[..., int]


@pytest.fixture
def call(run_tool: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    torch.set_num_threads(1)
    monkeypatch.chdir(ROOT)
    return run_tool


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
    call: Call, tool: str, device: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [] if tool == 'pool_table' else [TINY]
    assert call(tool, *words, '--device', device) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize('tool', ['benchmark', 'benchmark_validation', 'data_rate', 'parity'])
def test_a_result_that_cannot_be_written_is_refused_before_measuring(
    call: Call, tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'file').write_text('')
    device = [] if tool == 'benchmark_validation' else ['--device', 'cpu']
    assert call(tool, TINY, *device, '--json', f'{tmp_path}/file/r.json') == 2
    assert f'{tmp_path}/file' in capsys.readouterr().err


def test_the_folder_of_a_result_is_made(call: Call, tmp_path: Path) -> None:
    short = ['--ways', 'host', '--workers', '0', '--no-step', '--seconds', '0.01', '--rounds', '1', '--device', 'cpu']
    data = ['--cfg-options', f'data_root={tmp_path}/data', 'image_size=32']
    assert call('data_rate', TINY, *short, '--json', f'{tmp_path}/new/r.json', *data) == 0
    assert (tmp_path / 'new/r.json').is_file()
