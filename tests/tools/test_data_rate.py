import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, 'argv', ['data_rate.py', *arguments])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / 'tools' / 'data_rate.py'), run_name='__main__')
    return int(stop.value.code or 0)


def test_it_prints_and_writes_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / 'rates.json'
    options = ['--cfg-options', f'data_root={tmp_path / "data"}', 'image_size=32']
    short = ['--ways', 'pool', '--workers', '0', '--no-step', '--seconds', '0.01', '--rounds', '1', '--device', 'cpu']
    assert run(monkeypatch, str(ROOT / 'tests/configs/tiny.py'), *short, '--json', str(written), *options) == 0
    found = json.loads(written.read_text())
    assert [(rate['way'], rate['workers'], len(rate['rounds'])) for rate in found['rates']] == [('pool', 0, 1)]
    assert capsys.readouterr().out.splitlines()[-1].startswith('pool  workers 0: ')


@pytest.mark.parametrize('wrong', [['--rounds', '0'], ['--workers', '-1'], ['--seconds', '0'], ['--ways', 'disk']])
def test_what_cannot_be_meant_is_refused(wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, str(ROOT / 'tests/configs/tiny.py'), *wrong) == 2


def test_a_missing_config_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, 'configs/none.py') == 2
    assert 'configs/none.py does not exist' in capsys.readouterr().err
