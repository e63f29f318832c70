import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, 'tools/parity.py', *arguments]
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_tool_compares_on_the_cpu_and_writes_json(tmp_path: Path) -> None:
    out = tmp_path / 'parity.json'
    options = ['--accumulate', '1', '--precision', 'fp32', '--steps', '1', '--device', 'cpu', '--json', str(out)]
    data = ['--cfg-options', f'data_root={tmp_path}', 'train_dataloader.batch_size=2']
    done = run('tests/configs/tiny.py', *options, *data)
    assert done.returncode == 0, done.stderr
    assert 'No CUDA card in use' in done.stdout
    assert json.loads(out.read_text())['rows'][0]['equal'] is True


def test_mistakes_are_named_in_one_line(tmp_path: Path) -> None:
    done = run('tests/configs/tinny.py')
    assert done.returncode == 2
    assert 'tinny.py does not exist' in done.stderr
    assert run('tests/configs/tiny.py', '--steps', '0').returncode == 2
