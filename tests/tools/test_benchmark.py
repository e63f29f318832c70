"""The command line of the benchmark."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SMALL = '--accumulate 1 --precision fp32 --rounds 1 --micro-batches 1'


def call(monkeypatch: pytest.MonkeyPatch, words: str) -> int:
    """In this process: a new one takes longer to import than to measure."""
    torch.set_num_threads(1)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, 'argv', ['tools/benchmark.py', *words.split()])
    return runpy.run_path('tools/benchmark.py')['main']()


def test_the_tool_prints_tables_and_writes_json_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = f'--json {tmp_path}/new/b.json --plot {tmp_path}/new/b.png --profile'
    data = f'--cfg-options data_root={tmp_path} train_dataloader.batch_size=2'
    assert call(monkeypatch, f'tests/configs/tiny.py --region step --device cpu {SMALL} {files} {data}') == 0
    out = ' '.join(capsys.readouterr().out.split())
    assert 'its times say nothing about a card' in out
    assert 'the CPU runs no kernels' in out
    assert 'data loader alone, 0 workers' in out
    found = json.loads((tmp_path / 'new/b.json').read_text())
    assert [timing['variant'] for timing in found['steps']] == ['eager', 'step']
    assert [timing['variant'] for timing in found['parts']] == ['eager', 'network']
    assert found['floor']['step_bytes'] > 0
    assert found['loading']['prepared_median'] > 0
    assert (tmp_path / 'new/b.png').read_bytes().startswith(b'\x89PNG')


def test_the_loader_is_measured_on_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = f'--cfg-options data_root={tmp_path}'
    assert call(monkeypatch, f'tests/configs/tiny.py --only loading {SMALL} {data}') == 0
    assert 'data loader alone' in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a card')
@pytest.mark.parametrize(('option', 'said'), [('', 'no CUDA card, and times'), ('--profile', 'no kernel to profile')])
def test_without_a_card_nothing_is_measured_unasked(
    option: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, f'tests/configs/tiny.py {option}') == 2
    error = capsys.readouterr().err
    assert said in error
    assert '--device cpu' in error


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        ('tests/configs/tiny.py --rounds 0', 'at least 1'),
        ('tests/configs/tiny.py --only loading --profile', 'add one to --only'),
        ('tests/configs/tiny.py --only loading --plot b.png', 'add one to --only'),
        ('tests/configs/tiny.py --only loader', 'invalid choice'),
    ],
)
def test_options_that_mean_nothing_are_refused(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        call(monkeypatch, words)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_mistakes_are_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, 'tests/configs/tinny.py --device cpu') == 2
    assert 'tinny.py does not exist' in capsys.readouterr().err
    (tmp_path / 'file').touch()
    assert call(monkeypatch, f'tests/configs/tiny.py --device cpu --json {tmp_path}/file/b.json') == 2
    assert str(tmp_path / 'file') in capsys.readouterr().err
