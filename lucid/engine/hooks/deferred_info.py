"""What a logging iteration shows, kept on the device until then."""

import math
import time
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
from mmengine.hooks import LoggerHook, RuntimeInfoHook
from mmengine.runner import Runner
from torch import Tensor

from lucid.registry import HOOKS


class _Row(NamedTuple):
    """The log variables of one iteration.

    names:    of the values, in their order
    values_K: float, on the device, owned by this row
    iter:     counted from 0 over the whole run
    files:    the images of the batch
    """

    names: tuple[str, ...]
    values_K: Tensor
    iter: int
    files: list[str]


@HOOKS.register_module()
class DeferredInfoHook(RuntimeInfoHook):
    """mmengine's RuntimeInfoHook without its host read per log variable and iteration.

    The log variables of an iteration become one tensor by one kernel (``torch.stack`` copies, so a step may reuse the
    memory of what it returned). A logging iteration moves all tensors since the last one to the host in one transfer
    and puts their means into the message hub, together with the gradient norm, learning rate, momentum, seconds per
    iteration (``time``, of which ``data_time`` waiting for data), images per second of this process (``img_s``) and
    ``eta``. Logging iterations are every ``interval``-th of an epoch and its last.

    Args:
        interval: Iterations of an epoch between two logging iterations; None takes that of the logger hook.
        on_nonfinite: What to do about a loss that is not finite, found at a logging iteration.

    Raises:
        ValueError: An unknown ``on_nonfinite``.
        FloatingPointError: At a logging iteration, if ``on_nonfinite`` is ``'raise'``.
    """

    priority = 'VERY_HIGH'  # the logger, which runs later in the same iteration, reads what this hook writes

    def __init__(self, *, interval: int | None = None, on_nonfinite: Literal['raise', 'warn'] = 'raise') -> None:
        super().__init__()
        if on_nonfinite not in ('raise', 'warn'):
            raise ValueError(f"DeferredInfoHook.on_nonfinite is {on_nonfinite!r}; use 'raise' or 'warn'")
        self.interval = interval
        self.on_nonfinite = on_nonfinite
        self._rows: list[_Row] = []
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
        """Forget what an earlier run left."""
        super().before_train(runner)
        self._rows.clear()
        self._spent, self._logged = 0.0, 0

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
        if outputs and self._rows and self._rows[-1].names != tuple(outputs):
            self.flush(runner)  # a term that switches on or off starts a new mean
        self._images += len(files)
        if outputs:
            self._rows.append(_Row(tuple(outputs), _stack(outputs.values()), runner.iter, files))
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
        extra = [] if norm is None else [norm.detach().reshape(1).to(rows[0].values_K)]
        values = torch.cat([*(row.values_K for row in rows), *extra]).cpu()  # the one wait for the device
        values_RK = values[: len(rows) * len(names)].view(len(rows), len(names)).double()
        hub = runner.message_hub
        for name, mean in zip(names, values_RK.mean(0).tolist(), strict=True):
            hub.update_scalar(f'train/{name}', mean)
        if extra:
            hub.update_scalar('train/grad_norm', values[-1].item())
        group = runner.optim_wrapper.param_groups[0]
        hub.update_scalar('train/lr', float(group['lr']))
        if 'momentum' in group:
            hub.update_scalar('train/momentum', float(group['momentum']))
        self._write_speed(runner, len(rows))
        self._check_finite(runner, rows, values_RK)

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

    def _check_finite(self, runner: Runner, rows: list[_Row], values_RK: Tensor) -> None:
        losses_RK = values_RK[:, [i for i, name in enumerate(rows[0].names) if 'loss' in name]]
        bad = (~losses_RK.isfinite().all(1)).nonzero().flatten().tolist()
        if not bad:
            return
        row = rows[bad[0]]
        names = [
            name for name, value in zip(row.names, values_RK[bad[0]].tolist(), strict=True) if not math.isfinite(value)
        ]
        message = (
            f'{", ".join(names)} not finite in iteration {row.iter + 1} of {runner.max_iters} '
            f'(epoch {runner.epoch + 1}), images {", ".join(row.files) or "unknown"}. Lower optim_wrapper.optimizer.lr '
            'or lengthen the warm-up, and check these images and their boxes; --resume goes on from the last checkpoint'
        )
        if self.on_nonfinite == 'raise':
            raise FloatingPointError(message)
        runner.logger.warning(message)


def _stack(values: Iterable[Any]) -> Tensor:
    """Return the values as one new float tensor on the device of the first tensor among them."""
    listed = list(values)
    like = next((value for value in listed if isinstance(value, Tensor)), torch.zeros(()))
    tensors = [value if isinstance(value, Tensor) else like.new_tensor(value) for value in listed]
    return torch.stack([tensor.detach().reshape(()) for tensor in tensors]).float()
