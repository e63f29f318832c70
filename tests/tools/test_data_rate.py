import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Run = Callable[..., int]


@pytest.fixture
def run(run_tool: Run) -> Run:
    return partial(run_tool, 'data_rate')


def test_it_prints_and_writes_what_was_measured(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / 'rates.json'
    options = ['--cfg-options', f'data_root={tmp_path / "data"}', 'image_size=32']
    short = ['--ways', 'pool', '--workers', '0', '--no-step', '--seconds', '0.01', '--rounds', '1', '--device', 'cpu']
    assert run(str(ROOT / 'tests/configs/tiny.py'), *short, '--json', str(written), *options) == 0
    found = json.loads(written.read_text())
    assert [(rate['way'], rate['workers'], len(rate['rounds'])) for rate in found['rates']] == [('pool', 0, 1)]
    assert capsys.readouterr().out.splitlines()[-1].startswith('pool  workers 0: ')


@pytest.mark.parametrize('wrong', [['--rounds', '0'], ['--workers', '-1'], ['--seconds', '0'], ['--ways', 'disk']])
def test_what_cannot_be_meant_is_refused(run: Run, wrong: list[str]) -> None:
    assert run(str(ROOT / 'tests/configs/tiny.py'), *wrong) == 2


def test_a_missing_config_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run('configs/none.py') == 2
    assert 'configs/none.py does not exist' in capsys.readouterr().err
