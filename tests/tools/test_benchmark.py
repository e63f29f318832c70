import json
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

TOOL = Path(__file__).parents[2] / 'tools' / 'benchmark.py'
TINY = Path(__file__).parents[1] / 'configs' / 'tiny.py'
Call = Callable[..., int]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """The tool in this process: starting one takes longer than the rest of a test. Documents start it."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, 'argv', [str(TOOL), *arguments])
        try:
            return runpy.run_path(str(TOOL))['main']()
        except SystemExit as end:
            return end.code

    return run


def test_the_tool_prints_tables_and_writes_json(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str], small_network: Mapping[str, Any]
) -> None:
    out = tmp_path / 'benchmark.json'
    sizes = ['--accumulate', '1', '--rounds', '1', '--micro-batches', '1', '--precision', 'fp32', '--device', 'cpu']
    data = [f'data_root={tmp_path}', 'train_dataloader.batch_size=2']
    data += [f'{key}={value}' for key, value in small_network.items()]
    given = ['--region', 'network', 'step', *sizes, '--json', str(out), '--cfg-options', *data]
    assert call(str(TINY), *given) == 0
    assert 'its times say nothing about a card' in ' '.join(capsys.readouterr().out.split())
    variants = [timing['variant'] for timing in json.loads(out.read_text())['steps']]
    assert variants == ['eager', 'network', 'step']


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a card')
def test_without_a_card_nothing_is_measured_unasked(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(TINY)) == 2
    assert 'there is no CUDA card' in capsys.readouterr().err


def test_mistakes_are_named_in_one_line(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call('tests/configs/tinny.py', '--device', 'cpu') == 2
    shown = capsys.readouterr().err
    assert 'tinny.py does not exist' in shown
    assert 'Traceback' not in shown
    assert call(str(TINY), '--rounds', '0') == 2
    assert 'numbers of at least 1' in capsys.readouterr().err
