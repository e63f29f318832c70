"""Training from a config, and going on where a run stopped."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from mmengine.config import Config

from lucid.apis.build import build_runner, complete
from lucid.apis.processes import joined
from lucid.apis.validate import ConfigError
from lucid.engine import checkpoint as files
from lucid.engine.batch_stream import close_workers
from lucid.engine.checkpoint import CheckpointError, plain
from lucid.engine.hooks import CheckpointHook
from lucid.engine.loops import EpochTrainLoop, Stopped
from lucid.engine.runner import Runner

# What decides which numbers a run computes: with another of these, a checkpoint is no part of it.
PLACES = (
    *('model', 'optim_wrapper.optimizer.type', 'optim_wrapper.accumulative_counts'),
    *('train_dataloader.batch_size', 'train_dataloader.sampler'),
)


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal; the message says where the last checkpoint is and how to go on.

    Attributes: ``signum``, the signal.
    """

    def __init__(self, message: str, *, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


def train(cfg: Config, *, resume: bool | str | Path = False, overwrite: bool = False) -> Runner:
    """Train the model of a config.

    SIGINT and SIGTERM let the current window end, write ``last.pth`` and raise ``Interrupted``; in an epoch's last
    window, when the epoch's own checkpoint is written. A second one, one in validation, and one in a run of several
    processes stop at once.

    Args:
        cfg: What ``load_config`` returned, not changed.
        resume: Checkpoint to go on from; True takes ``last.pth`` of the work directory.
        overwrite: Start anew in a work directory that holds a run; its files are replaced one by one.

    Returns:
        The runner, whose ``model`` is trained.

    Raises:
        ConfigError: The config cannot be meant, its data is missing or disagrees with it, or the work directory holds
            a run and neither ``resume`` nor ``overwrite`` says what becomes of it.
        CheckpointError: The checkpoint is damaged or belongs to another run.
        Interrupted: A signal stopped training.
        NonFiniteLossError: A loss or its gradients were not finite, see ``optim_wrapper.on_nonfinite``.
    """
    cfg = complete(cfg)
    if cfg.randomness.get('deterministic'):
        # cuBLAS reads it when CUDA starts, and without it refuses to be deterministic.
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    last = Path(cfg.work_dir, f'last{files.SUFFIX}')
    # Before the processes join: none can have written yet what another one would find.
    if not (resume or overwrite) and os.path.isfile(last):
        raise ConfigError(
            f'{cfg.work_dir} holds a run already, which {last.name} is the end of; go on with it with --resume, name '
            'another folder with --work-dir, or replace it with --overwrite'
        )
    path = last if resume is True else Path(resume) if resume else None
    content = None if path is None else files.load(path)
    with joined(cfg):
        runner = build_runner(cfg, mode='train', resume=path)
        if content is not None:
            check_resumable(content, runner, path=path)
        try:
            with _stoppable(runner):
                runner.train()
        finally:
            runner.visualizer.close()  # the logger hook does so only after a training that ended well
            for loop in (runner.train_loop, runner.val_loop):
                if loop is not None:
                    close_workers(loop.dataloader)
                if (workers := getattr(loop, 'workers', None)) is not None:
                    workers.close()
    return runner


def check_resumable(checkpoint: dict[str, Any], runner: Runner, *, path: Path | None = None) -> None:
    """Refuse to go on from a checkpoint of another run: its numbers would continue something else.

    Args:
        checkpoint: What ``checkpoint.load`` returned.
        runner: The runner built for this run.
        path: For the message.

    Raises:
        CheckpointError: Classes, model, seed, optimizer, sampler, or the batches differ, or training is finished.
    """
    meta, cfg = checkpoint['meta'], runner.cfg
    before = meta.get('cfg') or {}
    loader = runner._train_dataloader
    pairs = {
        'classes': (list(checkpoint.get('classes', ())), list(getattr(loader.dataset, 'classes', ()))),
        'keypoint_names': (
            list(checkpoint.get('keypoint_names', ())),
            list(getattr(loader.dataset, 'metainfo', {}).get('keypoint_names', ())),
        ),
        'randomness.seed': (meta.get('seed'), runner.seed),
        'batches per epoch': (meta.get('batches_per_epoch'), len(loader)),
    }
    for place in PLACES:
        pairs[place] = (_at(before, place), _at(plain(cfg.to_dict()), place))
    for name, (there, here) in pairs.items():
        for where, was, now in _differences(name, there, here):
            raise CheckpointError(
                f'{path} is of another run: {where} is {was!r} there and {now!r} here. Resume with the config of '
                'that run (config.py in its work directory), or start without --resume'
            )
    if meta['epoch'] >= cfg.train_cfg.max_epochs and not meta.get('validation_pending'):
        raise CheckpointError(
            f'{path} is the end of a finished run of {meta["epoch"]} epochs; raise train_cfg.max_epochs to train longer'
        )
    if meta.get('max_epochs') != cfg.train_cfg.max_epochs:
        runner.logger.warning(
            f'train_cfg.max_epochs was {meta.get("max_epochs")} and is {cfg.train_cfg.max_epochs}: learning rate, '
            'branch weight and closing of the mosaic follow the new length from here on'
        )
    changed = [
        f'{where} {there!r} -> {here!r}'
        for place in ('optim_wrapper', 'param_scheduler')
        for where, there, here in _differences(place, _at(before, place), _at(plain(cfg.to_dict()), place))
    ]
    if changed:
        runner.logger.warning(
            f'options differ from those of {path}, and those of this config hold from here on: {", ".join(changed)}'
        )


def _at(cfg: Any, place: str) -> Any:
    for key in place.split('.'):
        cfg = cfg.get(key) if isinstance(cfg, dict) else None
    return cfg


def _differences(where: str, there: Any, here: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the places where two nested dicts differ, with both values."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted(there.keys() | here.keys()):
            yield from _differences(f'{where}.{key}', there.get(key), here.get(key))
    elif there != here:
        yield where, there, here


@contextmanager
def _stoppable(runner: Runner) -> Iterator[None]:
    """Turn signals into a stop at a window's end, and an interrupt into ``Interrupted``."""
    received: list[int] = []

    def handle(signum: int, _frame: FrameType | None) -> None:
        received.append(signum)
        loop = runner._train_loop
        if len(received) == 1 and runner.world_size == 1 and isinstance(loop, EpochTrainLoop) and loop.training:
            loop.request_stop()
            runner.logger.warning('stopping: the optimizer step in hand is finished first; once more stops at once')
            return
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()  # only there can handlers be set
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main else ()
    kept = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    except KeyboardInterrupt as stop:
        message = _how_to_resume(runner, written=isinstance(stop, Stopped))
        runner.logger.warning(message)
        raise Interrupted(message, signum=received[0] if received else signal.SIGINT) from None
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _place(runner: Runner) -> str:
    """Where a run stands: batches are counted within the epoch, as in the log."""
    per_epoch = len(runner._train_dataloader)
    done = runner.iter - runner.epoch * per_epoch
    if done == 0 and runner.epoch > 0:
        return f'after epoch {runner.epoch} of {runner.max_epochs}'
    return f'in epoch {runner.epoch + 1} of {runner.max_epochs}, after iteration {done} of {per_epoch}'


def _how_to_resume(runner: Runner, *, written: bool) -> str:
    last = Path(runner.work_dir, f'last{files.SUFFIX}')
    place = _place(runner)
    saver = next((hook for hook in runner.hooks if isinstance(hook, CheckpointHook)), None)
    # With overwrite, a file of the run before may still be there.
    if not last.is_file() or (saver is not None and not saver.is_last_own):
        return f'Stopped {place}, before the first checkpoint was written: start again'
    what = 'was written just now' if written else 'is that of the last optimizer step that was saved'
    return f'Stopped {place}. The checkpoint {last} {what}: go on with the same command and --resume {last}'
