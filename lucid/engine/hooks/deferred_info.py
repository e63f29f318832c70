"""What a logging iteration shows, kept on the device until then."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.hooks import LoggerHook, RuntimeInfoHook
from mmengine.runner import Runner
from torch import Tensor

from lucid.engine.fault_report import REMEDY, Iteration, describe, joined, split_windows
from lucid.engine.optim_wrappers.faults import Faults
from lucid.registry import HOOKS

SHOWN = 5  # windows that a warning describes
ENTRY = 'unread'  # of a checkpoint


class NonFiniteLossError(FloatingPointError):
    """A loss or its gradients are not finite; the message names iterations, images and the remedy."""


class _Row(NamedTuple):
    """The log variables of one iteration.

    names:    of the values, in their order
    values_K: float, on the device, owned by this row; after them, if the wrapper judges windows, its last verdict
    ended:    a window ended here, so that the verdict is on this one
    iter:     counted from 0 over the whole run
    files:    the images of the batch
    resumed:  the iteration is of the run that was resumed, and the values are on the host
    """

    names: tuple[str, ...]
    values_K: Tensor
    ended: bool
    iter: int
    files: list[str]
    resumed: bool = False


@HOOKS.register_module()
class DeferredInfoHook(RuntimeInfoHook):
    """mmengine's RuntimeInfoHook without its host read per log variable and iteration.

    The log variables of an iteration become one tensor by one kernel (``torch.stack`` copies, so a step may reuse the
    memory of what it returned). A logging iteration moves all tensors since the last one to the host in one transfer
    and puts their means into the message hub, together with the gradient norm, learning rate, momentum, seconds per
    iteration (``time``, of which ``data_time`` waiting for data), images per second of this process (``img_s``) and
    ``eta``. Logging iterations are every ``interval``-th of an epoch and its last.

    ``optim_wrapper.on_nonfinite`` says what a window that fails leads to, on the logging iteration at or after its end:
    with ``'raise'`` an error, with ``'skip'`` a warning, after which the means are of the other windows. Both name the
    images: those of the micro-batches whose loss is not finite, or of all in the window if only gradients are not. With
    ``'ignore'`` a loss that is not finite is warned of; with a wrapper of mmengine's it is an error. With ``'raise'``
    no checkpoint is written after a fault: ``check_faults`` is called before each. A checkpoint inside an epoch holds
    the variables of the iterations since the last logging one, so that a resumed run logs the means of a whole one;
    the speed it logs is its own.

    Args:
        interval: Iterations of an epoch between two logging iterations; None takes that of the logger hook.

    Raises:
        NonFiniteLossError: As above.
    """

    priority = 'VERY_HIGH'  # the logger, which runs later in the same iteration, reads what this hook writes

    def __init__(self, *, interval: int | None = None) -> None:
        super().__init__()
        self.interval = interval
        self._open: list[Iteration] = []  # of the window that had not ended at the last logging iteration
        self._rows: list[_Row] = []
        self._loaded: dict[str, Any] = {}
        self._images = 0
        self._waited = 0.0
        self._since = self._idle_since = 0.0
        self._spent = 0.0  # seconds in the iterations of this run that were logged
        self._logged = 0

    def before_run(self, runner: Runner) -> None:
        """Find the logging interval."""
        super().before_run(runner)
        if self.interval is None:
            loggers = [hook for hook in runner.hooks if isinstance(hook, LoggerHook)]
            self.interval = loggers[0].interval if loggers else 10

    def before_train(self, runner: Runner) -> None:
        """Begin with what a resumed checkpoint holds, and nothing else that an earlier run left."""
        super().before_train(runner)
        self._rows = [_Row(*row)._replace(resumed=True) for row in self._loaded.get('rows', ())]
        self._open = [Iteration(*iteration) for iteration in self._loaded.get('open', ())]
        self._loaded = {}
        self._spent, self._logged = 0.0, 0

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Add what no logging iteration has read yet; who saves reads it, with everything else."""
        checkpoint[ENTRY] = {
            'rows': [list(row[:-1]) for row in self._rows],
            'open': [list(each) for each in self._open],
        }

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Take it from the checkpoint of a run that goes on."""
        self._loaded = (checkpoint.get(ENTRY) or {}) if runner._resume else {}

    def before_train_epoch(self, runner: Runner) -> None:
        """Start the clocks."""
        super().before_train_epoch(runner)
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._since = self._idle_since = time.perf_counter()
        self._waited, self._images = 0.0, 0

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Count the time spent waiting for data."""
        self._waited += time.perf_counter() - self._idle_since
        runner.message_hub.update_info('iter', runner.iter)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict[str, Any] | None = None
    ) -> None:
        """Keep the log variables; read them on a logging iteration."""
        files = [meta['file'] for meta in data_batch.get('metas', ())] if isinstance(data_batch, dict) else []
        if outputs:
            faults = _faults(runner)
            values_K = _stack([*outputs.values(), *([] if faults is None else [faults.failed])])
            ended = getattr(runner.optim_wrapper, 'window_ended', True)
            row = _Row(tuple(outputs), values_K, ended, runner.iter, files)
            if self._rows and _form(self._rows[-1]) != _form(row):
                self.flush(runner)  # a term that switches on or off starts a new mean
            self._rows.append(row)
        self._images += len(files)
        assert self.interval is not None
        if self.every_n_inner_iters(batch_idx, self.interval) or self.end_of_epoch(runner.train_dataloader, batch_idx):
            self.flush(runner)
        self._idle_since = time.perf_counter()

    def flush(self, runner: Runner) -> None:
        """Read everything that is kept, in one transfer, and write the message hub."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        names = rows[0].names
        norm = getattr(runner.optim_wrapper, 'grad_norm', None)
        extra = [] if norm is None else [norm.detach().reshape(1).to(rows[-1].values_K)]
        values = _joined(rows, extra)  # the one wait for the device
        values_RK, iterations = _read(values[: values.numel() - len(extra)], rows)
        windows, self._open = split_windows([*self._open, *iterations])
        if _faults(runner) is not None:
            out = {iteration.iter for window in windows for iteration in window}
            kept = [i for i, each in enumerate(iterations) if not each.bad and each.iter not in out]
            values_RK = values_RK[kept] if kept else values_RK
        hub = runner.message_hub
        for name, mean in zip(names, values_RK.mean(0).tolist(), strict=True):
            hub.update_scalar(f'train/{name}', mean)
        if extra:
            hub.update_scalar('train/grad_norm', values[-1].item())
        group = runner.optim_wrapper.param_groups[0]
        hub.update_scalar('train/lr', float(group['lr']))
        if 'momentum' in group:
            hub.update_scalar('train/momentum', float(group['momentum']))
        self._write_speed(runner, max(1, sum(not row.resumed for row in rows)))
        self._report(runner, windows if _faults(runner) is not None else [[each] for each in iterations if each.bad])

    def _write_speed(self, runner: Runner, iterations: int) -> None:
        seconds = time.perf_counter() - self._since
        self._spent += seconds
        self._logged += iterations
        hub = runner.message_hub
        hub.update_scalar('train/time', seconds / iterations)
        hub.update_scalar('train/data_time', self._waited / iterations)
        hub.update_scalar('train/img_s', self._images / seconds)
        hub.update_info('eta', self._spent / self._logged * (runner.max_iters - runner.iter - 1))
        self._restart_clock()

    def check_faults(self, runner: Runner) -> None:
        """Raise ``NonFiniteLossError`` for a fault that no logging iteration has told yet; every process calls it.

        Waits for the device, and changes nothing: neither means nor their number.

        Args:
            runner: The runner, at a window's end.
        """
        if _faults(runner) is None or runner.optim_wrapper.on_nonfinite != 'raise' or not self._rows:
            return
        _, iterations = _read(_joined(self._rows), self._rows)
        self._report(runner, split_windows([*self._open, *iterations])[0])

    def _report(self, runner: Runner, windows: list[list[Iteration]]) -> None:
        if not windows:
            return
        faults, policy = _faults(runner), getattr(runner.optim_wrapper, 'on_nonfinite', 'raise')
        windows = windows if faults is None else joined(windows)
        texts = [describe(window, max_iters=runner.max_iters, epoch=runner.epoch + 1) for window in windows]
        if policy == 'raise':
            raise NonFiniteLossError(f'{texts[0]}. {REMEDY}')
        more = f'; and {len(texts) - SHOWN} more' if len(texts) > SHOWN else ''
        done = '' if faults is None else f'steps left out: {len(texts)}, in this run {int(faults.count)}: '
        runner.logger.warning(f'{done}{"; ".join(texts[:SHOWN])}{more}')


def _faults(runner: Runner) -> Faults | None:
    """Who judges windows; None with on_nonfinite='ignore', and with wrappers that are not lucid's."""
    faults: Faults | None = getattr(runner.optim_wrapper, 'faults', None)
    return faults


def _form(row: _Row) -> tuple[tuple[str, ...], int]:
    return tuple(row.names), row.values_K.numel()


def _joined(rows: Sequence[_Row], extra: Sequence[Tensor] = ()) -> Tensor:
    """The values of all rows, and what comes after, on the host; resumed rows come first, and are there already."""
    old, new = [[row.values_K for row in rows if row.resumed is kind] for kind in (True, False)]
    return torch.cat([*old, torch.cat([*new, *extra]).cpu()]) if new or extra else torch.cat(old)


def _read(values: Tensor, rows: Sequence[_Row]) -> tuple[Tensor, list[Iteration]]:
    """Take apart what rows with the same log variables hold.

    Args:
        values: Of all rows, one after the other, on the host.
        rows: The rows.

    Returns:
        The log variables (R, K) as float64, and what they tell of each iteration.
    """
    names = rows[0].names
    values_RK = values.view(len(rows), -1).double()
    failed = values_RK[:, len(names) :].any(1).tolist()  # at most one column
    finite_RK = values_RK[:, : len(names)].isfinite().tolist()
    iterations = []
    for row, verdict, finite_K in zip(rows, failed, finite_RK, strict=True):
        bad = tuple(name for name, is_finite in zip(names, finite_K, strict=True) if not is_finite)
        bad = bad if any('loss' in name for name in bad) else ()
        iterations.append(Iteration(row.iter, row.files, bad, row.ended, row.ended and verdict))
    return values_RK[:, : len(names)], iterations


def _stack(values: Iterable[Any]) -> Tensor:
    """Return the values as one new float tensor on the device of the first tensor among them."""
    listed = list(values)
    like = next((value for value in listed if isinstance(value, Tensor)), torch.zeros(()))
    tensors = [value if isinstance(value, Tensor) else like.new_tensor(value) for value in listed]
    return torch.stack([tensor.detach().reshape(()) for tensor in tensors]).float()
