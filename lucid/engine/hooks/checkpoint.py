"""Writing checkpoints at the ends of windows, so that a resumed run computes what an uninterrupted one would."""

import math
import time
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import nn

from lucid.engine import checkpoint as files
from lucid.engine.environment import environment
from lucid.engine.generators import random_state, restore_random_state
from lucid.registry import HOOKS

NAMES = ('last', 'previous', 'best')


@HOOKS.register_module()
class CheckpointHook(Hook):
    """Keeps ``last.pth``, ``previous.pth`` (the one before it), ``best.pth`` and optionally ``epoch_N.pth``.

    Each is written whole or not at all. ``last`` is written at epoch ends before validation, again after it with the
    best score, optionally every so many optimizer steps, and when a stop is requested; always at a window's end, so
    that an interrupt inside a window resumes at the last end. ``state_dict`` holds the trained weights; EMAHook adds
    its average. The other hooks take part through ``before_save_checkpoint`` and ``after_load_checkpoint``.

    Args:
        interval: Epochs between two; the last epoch is always written.
        every_n_steps: Optimizer steps between two inside an epoch; None writes at epoch ends only.
        save_best: Metric that ``best.pth`` follows, greater is better; None keeps no best.
        max_keep_ckpts: Newest epoch files to keep; 0 writes none, -1 keeps all.

    Raises:
        ValueError: A number is out of range.
        KeyError: At a validation, whose metrics ``save_best`` is not among.
    """

    priority = 'VERY_LOW'  # state that other hooks change in the same event must be final

    def __init__(
        self,
        *,
        interval: int = 1,
        every_n_steps: int | None = None,
        save_best: str | None = 'coco/mAP',
        max_keep_ckpts: int = 0,
    ) -> None:
        if interval < 1 or (every_n_steps is not None and every_n_steps < 1) or max_keep_ckpts < -1:
            raise ValueError(
                f'CheckpointHook: interval={interval}, every_n_steps={every_n_steps}, max_keep_ckpts={max_keep_ckpts}; '
                'use interval >= 1, every_n_steps >= 1 or None, max_keep_ckpts >= -1'
            )
        self.interval = interval
        self.every_n_steps = every_n_steps
        self.save_best = save_best
        self.max_keep_ckpts = max_keep_ckpts
        self.best_score: float | None = None
        self.best_epoch: int | None = None
        self._loaded_rng: dict[str, Any] | None = None

    def path(self, runner: Runner, name: str) -> Path:
        """Return the file called ``name`` ('last', 'previous', 'best', 'epoch_3')."""
        return Path(runner.work_dir) / f'{name}{files.SUFFIX}'

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Raise ``CheckpointError`` unless the weights fit; take the best score and the generators' state."""
        if not runner._resume:
            return  # load_from takes over the weights that fit, and nothing else
        files.check_fits(unwrapped(runner.model), checkpoint['state_dict'])
        meta = checkpoint['meta']
        self.best_score, self.best_epoch = meta.get('best_score'), meta.get('best_epoch')
        self._loaded_rng = checkpoint.get('rng')
        # The runner compares pickled bytes, which differ for equal values; lucid.apis compares the classes.
        meta['dataset_meta'] = getattr(runner.train_dataloader.dataset, 'metainfo', None)
        runner.train_loop.validation_pending = bool(meta.get('validation_pending'))

    def before_train(self, runner: Runner) -> None:
        """Give the generators the state of the resumed checkpoint: nothing draws from them after this hook."""
        if self._loaded_rng is not None:
            restore_random_state(self._loaded_rng)
        self._loaded_rng = None

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict[str, Any] | None = None
    ) -> None:
        """Write ``last`` inside an epoch every so many optimizer steps."""
        wrapper = runner.optim_wrapper
        if self.every_n_steps is None or not wrapper.window_ended or wrapper.num_steps % self.every_n_steps:
            return
        if not self.end_of_epoch(runner.train_dataloader, batch_idx):  # after_train_epoch writes that one
            self.write(runner, epoch=runner.epoch, iteration=runner.iter + 1)

    def on_stop(self, runner: Runner) -> None:
        """Write ``last`` where training stops on request."""
        self.write(runner, epoch=runner.epoch, iteration=runner.iter)

    def after_train_epoch(self, runner: Runner) -> None:
        """Write ``last``, and the epoch's own file, before validation can fail."""
        done = runner.epoch + 1
        if done % self.interval == 0 or done == runner.max_epochs:
            self.write(runner, epoch=done, iteration=runner.iter, pending=runner.train_loop.validation_due(done))
            self._keep_epoch(runner, done)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Follow the best score, and write ``last`` again so that it knows the score and is not validated again."""
        if runner._train_loop is None or isinstance(runner._train_loop, dict):
            return  # validation alone, outside training
        better = self._update_best(runner, metrics or {})
        if better or runner.epoch % self.interval == 0 or runner.epoch == runner.max_epochs:
            self.write(runner, epoch=runner.epoch, iteration=runner.iter)
        if better and runner.rank == 0:
            files.link(self.path(runner, 'last'), self.path(runner, 'best'))
            runner.logger.info(f'best {self.save_best} so far: {self.best_score:.4f}')

    def _update_best(self, runner: Runner, metrics: dict[str, float]) -> bool:
        if self.save_best is None:
            return False
        if self.save_best not in metrics:
            raise KeyError(
                f'CheckpointHook.save_best names {self.save_best!r}, but validation gives {", ".join(metrics)}: '
                'name one of these, or None'
            )
        score = float(metrics[self.save_best])
        if math.isnan(score) or (self.best_score is not None and score <= self.best_score):
            return False
        self.best_score, self.best_epoch = score, runner.epoch
        return True

    def write(self, runner: Runner, *, epoch: int, iteration: int, pending: bool = False) -> None:
        """Write ``last`` on the first process, keeping the one before it as ``previous``.

        Args:
            runner: The runner.
            epoch: Epochs done.
            iteration: Iterations done.
            pending: The epoch's validation is still to come.
        """
        if runner.rank != 0:
            return
        content = self.collect(runner, epoch=epoch, iteration=iteration, pending=pending)
        last = self.path(runner, 'last')
        if last.is_file():
            files.link(last, self.path(runner, 'previous'))
        files.save(content, last)

    def collect(self, runner: Runner, *, epoch: int, iteration: int, pending: bool = False) -> dict[str, Any]:
        """Gather the state of the run.

        Args:
            runner: The runner.
            epoch: Epochs done.
            iteration: Iterations done.
            pending: The epoch's validation is still to come.

        Returns:
            What ``checkpoint.save`` takes; its tensors are the live ones.
        """
        dataset = runner.train_dataloader.dataset
        meta = {
            'epoch': epoch,
            'iter': iteration,
            'batches_per_epoch': len(runner.train_dataloader),
            'max_epochs': runner.max_epochs,
            'validation_pending': pending,
            'best_score': self.best_score,
            'best_epoch': self.best_epoch,
            'seed': runner.seed,
            'time': time.strftime('%Y-%m-%d %H:%M:%S'),
            'cfg': files.plain(runner.cfg.to_dict(), 'config'),
            'environment': environment(),
        }
        content: dict[str, Any] = {
            'meta': meta,
            'classes': list(getattr(dataset, 'classes', ())),
            'state_dict': unwrapped(runner.model).state_dict(),
            'optimizer': runner.optim_wrapper.state_dict(),
            'param_schedulers': [scheduler.state_dict() for scheduler in runner.param_schedulers or ()],
            'message_hub': files.plain_hub(runner.message_hub.state_dict()),
            'rng': random_state(),
        }
        runner.call_hook('before_save_checkpoint', checkpoint=content)
        return content

    def _keep_epoch(self, runner: Runner, epoch: int) -> None:
        if self.max_keep_ckpts == 0 or runner.rank != 0:
            return
        files.link(self.path(runner, 'last'), self.path(runner, f'epoch_{epoch}'))
        if self.max_keep_ckpts > 0:
            for old in range(epoch - self.max_keep_ckpts * self.interval, 0, -self.interval):
                self.path(runner, f'epoch_{old}').unlink(missing_ok=True)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside a distributed wrapper, or the model itself."""
    inner = model.module if is_model_wrapper(model) else model
    assert isinstance(inner, nn.Module)
    return inner
