import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, 'tools/benchmark.py', *arguments]
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_tool_prints_tables_and_writes_json(tmp_path: Path) -> None:
    out = tmp_path / 'benchmark.json'
    options = [
        '--region',
        'network',
        'step',
        '--accumulate',
        '1',
        '--precision',
        'fp32',
        '--rounds',
        '1',
        '--micro-batches',
        '1',
        '--device',
        'cpu',
    ]
    data = ['--json', str(out), '--cfg-options', f'data_root={tmp_path}', 'train_dataloader.batch_size=2']
    done = run('tests/configs/tiny.py', *options, *data)
    assert done.returncode == 0, done.stderr
    assert 'its times say nothing about a card' in ' '.join(done.stdout.split())
    variants = [timing['variant'] for timing in json.loads(out.read_text())['steps']]
    assert variants == ['eager', 'network', 'step']


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a card')
def test_without_a_card_nothing_is_measured_unasked() -> None:
    done = run('tests/configs/tiny.py')
    assert done.returncode == 2
    assert 'there is no CUDA card' in done.stderr


def test_mistakes_are_named_in_one_line() -> None:
    done = run('tests/configs/tinny.py', '--device', 'cpu')
    assert done.returncode == 2
    assert 'tinny.py does not exist' in done.stderr
    assert run('tests/configs/tiny.py', '--rounds', '0').returncode == 2
