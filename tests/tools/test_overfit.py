import json
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lucid.apis import overfit as module
from lucid.apis.overfit import GATES, child

QUICK = (
    *('image_size=64', 'train_cfg.max_epochs=1', 'train_cfg.val_interval=1', 'train_dataloader.num_workers=0'),
    *('train_dataloader.persistent_workers=False', 'val_dataloader.num_workers=0'),
    *('val_dataloader.persistent_workers=False', 'default_hooks.figures=None', 'default_hooks.pictures=None'),
    *('train_dataloader.dataset.num_images=4', 'val_dataloader.dataset.num_images=4', 'default_hooks.curves=None'),
    'optim_wrapper.optimizer.ns_steps=1',
)
Call = Callable[..., int]


@pytest.fixture
def call(run_tool: Call) -> Call:
    return partial(run_tool, 'overfit')


def here(command: list[str], **kwargs: Any) -> None:
    """What the process of a run does, in this one: its import takes longer than its epoch."""
    *_, arguments = command
    child(**json.loads(arguments))


@pytest.mark.parametrize('task', GATES)
def test_one_epoch_of_each_task_runs_and_misses_its_gate(
    call: Call,
    tmp_path: Path,
    task: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    small_network: Mapping[str, Any],
) -> None:
    options = [f'data_root={tmp_path / "data"}', *QUICK]
    if task != 'detect':  # one starts its process
        monkeypatch.setattr(module, 'subprocess', type('Here', (), {**vars(subprocess), 'run': staticmethod(here)}))
        options += [f'{key}={value}' for key, value in small_network.items()]
    given = ['--task', task, '--seeds', '3', '--json', str(tmp_path / 'record.json')]
    assert call(*given, '--work-dir', str(tmp_path / 'runs'), '--cfg-options', *options) == 1
    (row,) = json.loads((tmp_path / 'record.json').read_text())['gates']
    log = (tmp_path / 'runs' / f'{task}_3' / 'overfit.log').read_text()
    assert row['values']['3'] is not None, log[-3000:]
    assert 0 <= row['values']['3'] < row['least']
    assert 'FAILED' in capsys.readouterr().out


def test_a_task_that_does_not_exist_is_refused(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call('--task', 'detekt') == 2
    assert 'detekt' in capsys.readouterr().err
