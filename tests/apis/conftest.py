import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook

from lucid.apis import load_config
from lucid.registry import HOOKS

TINY = Path(__file__).parents[1] / 'configs' / 'tiny.py'


@HOOKS.register_module(force=True)
class RecordLosses(Hook):
    """Appends the loss of each iteration to ``losses.jsonl``; stops before iteration ``stop_at``, counted from 0."""

    priority = 'HIGHEST'

    def __init__(self, *, stop_at: int | None = None, how: str = 'interrupt') -> None:
        self.stop_at = stop_at
        self.how = how

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        if runner.iter == self.stop_at:
            raise {'interrupt': KeyboardInterrupt, 'error': ArithmeticError}[self.how]

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        row = {
            'iter': runner.iter,
            'batch': batch_idx,
            'loss': outputs['loss'].item(),
            'lr': runner.optim_wrapper.param_groups[0]['lr'],
            'files': [Path(meta['file']).name for meta in data_batch['metas']],
        }
        with Path(runner.work_dir, 'losses.jsonl').open('a') as file:
            file.write(json.dumps(row) + '\n')


@HOOKS.register_module(force=True)
class RaiseSignal(Hook):
    """Sends this process a signal before iteration ``at``, counted from 0."""

    def __init__(self, *, at: int, number: int) -> None:
        self.at = at
        self.number = number

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        if runner.iter == self.at:
            signal.raise_signal(self.number)


@pytest.fixture(scope='session')
def shapes_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('shapes')


@pytest.fixture(scope='session')
def tiny(
    tmp_path_factory: pytest.TempPathFactory, shapes_root: Path, small_network: Mapping[str, Any]
) -> Callable[..., Config]:
    """The tiny config with a fresh work directory, and options by dotted key with '__' for the dot.

    Its network is the small one, unless a test asks for scale n or a card is there, whose results are evidence.
    """

    def make(*, stop_at: int | None = None, how: str = 'interrupt', scale_n: bool = False, **options: Any) -> Config:
        given = {key.replace('__', '.'): value for key, value in options.items()}
        network = {} if scale_n or torch.cuda.is_available() else small_network
        cfg = load_config(TINY, {'data_root': str(shapes_root), **network, **given})
        cfg.work_dir = str(tmp_path_factory.mktemp('run'))
        cfg.custom_hooks = [{'type': 'RecordLosses', 'stop_at': stop_at, 'how': how}]
        return cfg

    return make


@pytest.fixture(scope='session')
def losses() -> Callable[[Config], dict[int, dict[str, Any]]]:
    """What was recorded in a work directory, by iteration; a later row replaces an earlier one."""

    def read(cfg: Config) -> dict[int, dict[str, Any]]:
        lines = Path(cfg.work_dir, 'losses.jsonl').read_text().splitlines()
        return {row['iter']: row for row in map(json.loads, lines)}

    return read
