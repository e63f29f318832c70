"""Writing checkpoints at the ends of windows, so that a resumed run computes what an uninterrupted one would."""

import math
import sys
import time
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine import checkpoint as files
from lucid.engine.checkpoint_writer import CheckpointWriter
from lucid.engine.distributed import synchronise, unwrapped
from lucid.engine.environment import environment
from lucid.engine.generators import random_state, restore_random_state
from lucid.engine.monitored import AUTO, check_metric, chief_metric
from lucid.registry import HOOKS

NAMES = ('last', 'previous', 'best')


@HOOKS.register_module()
class CheckpointHook(Hook):
    """Keeps ``last.pth``, ``previous.pth`` (the one before it), ``best.pth`` and optionally ``epoch_N.pth``.

    Each is written whole or not at all. ``last`` is written at epoch ends before validation, again after it with the
    best score, optionally every so many optimizer steps, and when a stop is requested; always at a window's end, so
    that an interrupt inside a window resumes at the last end. ``state_dict`` holds the trained weights; EMAHook adds
    its average. The other hooks take part through ``before_save_checkpoint``, where they may replace tensors but not
    change them, which are the live ones, and through ``after_load_checkpoint``. They prevent a checkpoint by raising in
    ``check_faults(runner)``, which is called first.

    Training waits for a copy of the state in host memory only; another thread writes it, and the links to it, in the
    order of the events. What goes wrong there is raised at the next write, or where ``finish`` is called: at the end of
    training, before a stop on request, and at ``close``, so that a run leaves no write unfinished. Two copies exist at
    most: a third write waits for the first one.

    Args:
        interval: Epochs between two; the last epoch is always written.
        every_n_steps: Optimizer steps between two inside an epoch; None writes at epoch ends only.
        save_best: Metric that ``best.pth`` follows, greater is better; ``'auto'`` is the chief figure of the first
            metric that names one, such as ``coco/mAP``; None keeps no best.
        max_keep_ckpts: Newest epoch files to keep; 0 writes none, -1 keeps all.

    Raises:
        ValueError: A number is out of range.
        KeyError: At a validation, whose metrics ``save_best`` is not among, if they did not tell before training.
    """

    priority = 'VERY_LOW'  # state that other hooks change in the same event must be final

    def __init__(
        self,
        *,
        interval: int = 1,
        every_n_steps: int | None = None,
        save_best: str | None = AUTO,
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
        self.writer = CheckpointWriter()

    def path(self, runner: Runner, name: str) -> Path:
        """Return the file called ``name`` ('last', 'previous', 'best', 'epoch_3')."""
        return Path(runner.work_dir) / f'{name}{files.SUFFIX}'

    @property
    def is_last_own(self) -> bool:
        """Whether the ``last`` that is there belongs to this run: an earlier one may have left a file of that name."""
        return self.writer.landed is not None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Raise ``CheckpointError`` unless the weights fit; take the best score and the generators' state."""
        if not runner._resume:
            return  # load_from takes over the weights that fit, and nothing else
        files.check_fits(unwrapped(runner.model), checkpoint['state_dict'])
        self.settle(runner)
        meta = checkpoint['meta']
        source = Path(runner._load_from)
        if self.path(runner, 'last').is_file() and self.path(runner, 'last').samefile(source):
            self.writer.start_from((meta['epoch'], meta['iter']))
        self._take_best(runner, source, meta)
        self._loaded_rng = checkpoint.get('rng')
        # The runner compares pickled bytes, which differ for equal values; lucid.apis compares the classes.
        meta['dataset_meta'] = getattr(runner.train_dataloader.dataset, 'metainfo', None)
        runner.train_loop.validation_pending = bool(meta.get('validation_pending'))

    def _take_best(self, runner: Runner, source: Path, meta: dict[str, Any]) -> None:
        """Go on from the best score of a resumed checkpoint, if it is of this metric and its file is there."""
        if self.save_best is None or meta.get('best_score') is None:
            return
        if meta.get('save_best') != self.save_best:
            runner.logger.warning(f'best starts anew: it was of {meta.get("save_best")} and is of {self.save_best}')
            return
        if meta['best_epoch'] == meta['epoch'] and not meta['validation_pending']:
            best = source  # the process may have ended before it was called so
        else:
            best = source.with_name(f'best{files.SUFFIX}')
        try:
            found = best.is_file() and files.load(best)['meta'].get('best_score') == meta['best_score']
        except files.CheckpointError:
            found = False
        if not found:
            runner.logger.warning(f'best starts anew: {best} is not the file of its score, {meta["best_score"]:.4f}')
            return
        self.best_score, self.best_epoch = meta['best_score'], meta['best_epoch']
        own = self.path(runner, 'best')
        if runner.rank == 0 and not (own.is_file() and own.samefile(best)):
            files.link(best, own)

    def check(self, runner: Runner) -> None:
        """Refuse a metric that validation cannot give, before training.

        Args:
            runner: The runner, complete.

        Raises:
            ValueError: ``save_best`` is not among the keys that the metrics tell.
        """
        self.settle(runner)
        if self.save_best is not None and runner.val_loop is not None:
            check_metric('CheckpointHook.save_best', self.save_best, runner.val_loop.evaluator)

    def settle(self, runner: Runner) -> None:
        """Put the name of the metric in place of ``'auto'``, None where there is no validation."""
        if self.save_best == AUTO:
            loop = runner.val_loop
            self.save_best = None if loop is None else chief_metric('CheckpointHook.save_best', loop.evaluator)

    def before_train(self, runner: Runner) -> None:
        """Check, and give the generators the resumed checkpoint's state: nothing draws from them after this hook."""
        self.check(runner)
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
        """Write ``last`` where training stops on request, unless the end of the epoch just did."""
        if self.writer.place != (runner.epoch, runner.iter):
            done = runner.train_loop.position == 0
            pending = done and runner.train_loop.validation_due(runner.epoch)
            self.write(runner, epoch=runner.epoch, iteration=runner.iter, pending=pending)
        self.finish(runner)

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
        ends = runner.epoch == runner.max_epochs or runner.train_loop.stop_training
        if better or ends or runner.epoch % self.interval == 0:
            self.write(runner, epoch=runner.epoch, iteration=runner.iter)
        if better and runner.rank == 0:
            self.writer.link(self.path(runner, 'last'), self.path(runner, 'best'))
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

    def after_train(self, runner: Runner) -> None:
        """Wait for what is being written."""
        self.finish(runner)

    def close(self, runner: Runner) -> None:
        """Wait for what is being written; an error of it must not hide the one that has ended the run."""
        ends_with = sys.exception()
        try:
            self.finish(runner)
        except Exception as error:
            if not isinstance(ends_with, Exception):  # none, or an interrupt
                raise
            runner.logger.error(f'a checkpoint was not written: {error}')

    def write(self, runner: Runner, *, epoch: int, iteration: int, pending: bool = False) -> None:
        """Have ``last`` written on the first process, keeping the one before it as ``previous``; all processes call it.

        A ``last`` that this run neither wrote nor resumed from, and one of the same place, are replaced only.

        Args:
            runner: The runner.
            epoch: Epochs done.
            iteration: Iterations done.
            pending: The epoch's validation is still to come.

        Raises:
            TypeError: A hook added what a checkpoint cannot hold.
            OSError: An earlier one was not written.
        """
        runner.call_hook('check_faults')
        synchronise(runner)
        place = (epoch, iteration)
        if runner.rank != 0:
            self.writer.start_from(place)
            return
        self.writer.save(
            lambda: self.collect(runner, epoch=epoch, iteration=iteration, pending=pending),
            place,
            last=self.path(runner, 'last'),
            previous=self.path(runner, 'previous'),
        )

    def finish(self, runner: Runner) -> None:
        """Wait until all files are there that were decided on; with ``last.pth`` at hand, call it before reading.

        Args:
            runner: The runner.

        Raises:
            OSError: One was not written.
        """
        self.writer.finish()

    def collect(self, runner: Runner, *, epoch: int, iteration: int, pending: bool = False) -> dict[str, Any]:
        """Gather the state of the run.

        Args:
            runner: The runner.
            epoch: Epochs done.
            iteration: Iterations done.
            pending: The epoch's validation is still to come.

        Returns:
            What ``checkpoint.save`` takes; its tensors are the live ones, on their devices.
        """
        dataset = runner.train_dataloader.dataset
        meta = {
            'epoch': epoch,
            'iter': iteration,
            'batches_per_epoch': len(runner.train_dataloader),
            'max_epochs': runner.max_epochs,
            'validation_pending': pending,
            'save_best': self.save_best,
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
            'keypoint_names': list(getattr(dataset, 'metainfo', {}).get('keypoint_names', ())),
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
        numbers = (
            range(epoch - self.max_keep_ckpts * self.interval, 0, -self.interval) if self.max_keep_ckpts > 0 else ()
        )
        old = [self.path(runner, f'epoch_{number}') for number in numbers]
        self.writer.link(self.path(runner, 'last'), self.path(runner, f'epoch_{epoch}'), instead_of=old)
