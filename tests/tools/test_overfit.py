import json
import subprocess
import sys
from pathlib import Path

import pytest

from lucid.apis.overfit import GATES

TOOL = Path(__file__).parents[2] / 'tools' / 'overfit.py'
QUICK = (
    *('image_size=64', 'train_cfg.max_epochs=1', 'train_cfg.val_interval=1', 'train_dataloader.num_workers=0'),
    *('train_dataloader.persistent_workers=False', 'val_dataloader.num_workers=0'),
    *('val_dataloader.persistent_workers=False', 'default_hooks.figures=None', 'default_hooks.pictures=None'),
    *('train_dataloader.dataset.num_images=4', 'val_dataloader.dataset.num_images=4', 'default_hooks.curves=None'),
)


@pytest.mark.parametrize('task', GATES)
def test_one_epoch_of_each_task_runs_and_misses_its_gate(tmp_path: Path, task: str) -> None:
    command = [sys.executable, str(TOOL), '--task', task, '--seeds', '3', '--json', str(tmp_path / 'record.json')]
    command += ['--work-dir', str(tmp_path / 'runs'), '--cfg-options', f'data_root={tmp_path / "data"}', *QUICK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / 'record.json').read_text())['gates']
    log = (tmp_path / 'runs' / f'{task}_3' / 'overfit.log').read_text()
    assert row['values']['3'] is not None, log[-3000:]
    assert 0 <= row['values']['3'] < row['least']
    assert 'FAILED' in done.stdout


def test_a_task_that_does_not_exist_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), '--task', 'detekt'], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert 'detekt' in done.stderr
