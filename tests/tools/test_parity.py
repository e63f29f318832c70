import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

TINY = Path(__file__).parents[1] / 'configs' / 'tiny.py'
Call = Callable[..., int]


@pytest.fixture
def call(run_tool: Call) -> Call:
    return partial(run_tool, 'parity')


def test_the_tool_compares_on_the_cpu_and_writes_json(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str], small_network: Mapping[str, Any]
) -> None:
    out = tmp_path / 'parity.json'
    options = ['--accumulate', '1', '--precision', 'fp32', '--steps', '1', '--device', 'cpu', '--json', str(out)]
    data = [f'data_root={tmp_path}', 'train_dataloader.batch_size=2']
    data += [f'{key}={value}' for key, value in small_network.items()]
    assert call(str(TINY), *options, '--cfg-options', *data) == 0
    assert 'No CUDA card in use' in capsys.readouterr().out
    assert json.loads(out.read_text())['rows'][0]['equal'] is True


def test_mistakes_are_named_in_one_line(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call('tests/configs/tinny.py') == 2
    shown = capsys.readouterr().err
    assert 'tinny.py does not exist' in shown
    assert 'Traceback' not in shown
    assert call(str(TINY), '--steps', '0') == 2
    assert '--steps' in capsys.readouterr().err
