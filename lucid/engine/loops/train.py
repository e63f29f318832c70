"""Training by epochs that can stop and resume inside one."""

import inspect
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from lucid.engine.batch_stream import BatchStream, streams
from lucid.engine.distributed import synchronise
from lucid.engine.loops.evaluation import ValLoop
from lucid.registry import LOOPS


class Stopped(KeyboardInterrupt):
    """Training ended because ``EpochTrainLoop.request_stop`` was called; the checkpoint is written."""


@LOOPS.register_module()
class EpochTrainLoop(EpochBasedTrainLoop):
    """mmengine's loop by epochs, which resumes inside an epoch, tells the windows, and always tidies up.

    The place in an epoch is ``iter - epoch * len(dataloader)``. A sampler whose ``set_epoch`` takes ``start`` begins
    there; another one is read up to there, which costs the reading but gives the same batches. Behind the first kind,
    workers that stay between epochs go on over an epoch's end, see ``BatchStream``; they end with ``run``, and so do
    those of a ``ValLoop`` that make the next validation's batches meanwhile.
    Hooks may define ``on_stop(runner)``, called when a stop was requested, at a window's end, the epoch's last one
    after ``after_train_epoch``; and ``close(runner)``, called when ``run`` is left in whatever way, because
    ``after_train`` is not called when training fails; that of each hook, though another one's raises.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict[str, Any],
        *,
        max_epochs: int,
        val_begin: int = 1,
        val_interval: int = 1,
        dynamic_intervals: list[tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(runner, dataloader, max_epochs, val_begin, val_interval, dynamic_intervals)
        self.validation_pending = False  # a resumed checkpoint was written before its epoch's validation
        self.training = False  # from the first batch to the end of the epoch's hooks: request_stop acts here only
        self._stop_requested = False
        self._stream: BatchStream | None = None

    @property
    def position(self) -> int:
        """Batches of the current epoch that are done."""
        return self._iter - self._epoch * len(self.dataloader)

    def request_stop(self) -> None:
        """End training with ``Stopped`` at the next window's end, after hooks wrote their state."""
        self._stop_requested = True

    def validation_due(self, epochs_done: int) -> bool:
        """Whether validation follows when so many epochs are done."""
        return (
            self.runner.val_loop is not None
            and epochs_done >= self.val_begin
            and (epochs_done % self.val_interval == 0 or epochs_done == self._max_epochs)
        )

    def run(self) -> nn.Module:
        """Train to ``max_epochs``.

        Returns:
            The trained model.

        Raises:
            Stopped: A stop was requested and the hooks wrote their state.
        """
        with ExitStack() as closing:  # each of them, though another one fails or an interrupt ends its waiting
            closing.callback(self._close_all_workers)
            for hook in reversed(self.runner.hooks):
                if hasattr(hook, 'close'):
                    closing.callback(hook.close, self.runner)
            closing.callback(setattr, self, 'training', False)
            self.runner.call_hook('before_train')
            if self.validation_pending and self.runner.val_loop is not None:
                self._validate()
            while self._epoch < self._max_epochs and not self.stop_training:
                self.run_epoch()
                self._decide_current_val_interval()
                if self.validation_due(self._epoch):
                    self._validate()
            self.runner.call_hook('after_train')
        return self.runner.model

    def _close_all_workers(self) -> None:
        self._close_stream()
        if isinstance(self.runner.val_loop, ValLoop):
            self.runner.val_loop.follows = None
            self.runner.val_loop.close()

    def _validate(self) -> None:
        synchronise(self.runner)
        loop = self.runner.val_loop
        if isinstance(loop, ValLoop):
            loop.follows = lambda: self._epoch < self._max_epochs
        loop.run()
        self.validation_pending = False

    def run_epoch(self) -> None:
        """Train the rest of the current epoch."""
        if not 0 <= self.position <= len(self.dataloader):
            raise ValueError(
                f'{self._iter} iterations do not lie in epoch {self._epoch} of {len(self.dataloader)} batches: '
                'resume with the data set, batch size and number of processes of the first run'
            )
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        self._start_window()
        self.training = True
        first = self.position
        for idx, data_batch in enumerate(self._batches(), start=first):
            self.run_iter(idx, data_batch)
            if self._window_ended() and idx + 1 < len(self.dataloader):
                self._stop_if_requested()
        self.runner.call_hook('after_train_epoch')  # what the epoch gave is not lost to a request to stop
        self._epoch += 1
        if self._epoch < self._max_epochs or self.validation_due(self._epoch):
            self._stop_if_requested()
        self.training = False

    def _stop_if_requested(self) -> None:
        if self._stop_requested:
            self.runner.call_hook('on_stop')
            raise Stopped

    def _start_window(self) -> None:
        start_epoch = getattr(self.runner.optim_wrapper, 'start_epoch', None)
        if start_epoch is not None:
            start_epoch(len(self.dataloader), position=self.position)

    def _window_ended(self) -> bool:
        return getattr(self.runner.optim_wrapper, 'window_ended', True)

    def _batches(self) -> Iterator[Sequence[dict]]:
        """Yield the batches from ``position`` to the epoch's end."""
        loader, position = self.dataloader, self.position
        sampler = getattr(loader.batch_sampler, 'sampler', loader.sampler)
        set_epoch = getattr(sampler, 'set_epoch', None)
        if set_epoch is None:
            return itertools.islice(loader, position, None)
        if 'start' not in inspect.signature(set_epoch).parameters:
            set_epoch(self._epoch)
            if position:
                self.runner.logger.warning(
                    f'{type(sampler).__name__} cannot start inside an epoch: reading {position} batches again'
                )
            return itertools.islice(loader, position, None)
        if position and loader.batch_size is None:
            raise ValueError(
                'resuming inside an epoch needs a data loader with batch_size, not with a batch_sampler: '
                'resume from a checkpoint of an epoch end'
            )
        set_epoch(self._epoch, max_epochs=self._max_epochs, start=position * (loader.batch_size or 0))
        if not streams(loader):
            return iter(loader)
        if self._stream is None or self._stream.loader is not loader:  # a hook may have put another one here
            self._close_stream()
            self._stream = BatchStream(loader)
        return self._stream.epoch(self._epoch, max_epochs=self._max_epochs, position=position)

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
