"""From a loss to an optimizer step: accumulation windows, clipping, and what follows a step."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

import torch
from mmengine.optim import OptimWrapper as BaseOptimWrapper
from torch import Tensor, nn
from torch.optim import Optimizer

from lucid.engine.optim_wrappers.faults import POLICIES, Faults, largest, not_finite
from lucid.engine.optim_wrappers.options import check_clip, other_optimizer
from lucid.engine.optimizers import DeviceOptimizer
from lucid.engine.optimizers.device_optimizer import gradients
from lucid.registry import OPTIM_WRAPPERS


class PostStep(Protocol):
    """Something that runs after each optimizer step, such as an average of the weights."""

    def refresh(self) -> None:
        """Fill device scalars on the host; called exactly once per optimizer step, before it."""

    def update(self, failed: Tensor | None = None) -> None:
        """Device arithmetic only, of which nothing lasts where ``failed``, a 0-d bool, holds."""


@OPTIM_WRAPPERS.register_module()
class OptimWrapper(BaseOptimWrapper):
    """mmengine's wrapper in full precision, split into what the host decides and what the device computes.

    The micro-batches of one optimizer step are a window. Windows have ``accumulative_counts`` micro-batches and end
    with the epoch; each loss is divided by the real number of its window, a 0-d device tensor, ``loss_factor``.
    ``start_epoch`` says how many micro-batches there are. Without it, under a plain mmengine loop, windows run
    over epoch ends and only the run's last one is short (``initialize_count_status``).

    ======================  ==================================  ==============================================
    host, in Python         device only, can be recorded        together
    ======================  ==================================  ==============================================
    ``advance``             ``run_backward(scale_loss(loss))``  ``update_params`` without the step
    ``refresh``             ``apply``                           ``step``
    ======================  ==================================  ==============================================

    After ``update_params``, ``window_ended`` says whether a step was made, and ``num_steps`` counts steps, those that
    fp16 skipped included. ``grad_norm`` is the norm before clipping, a 0-d device tensor with one address, None
    without ``clip_grad=dict(max_norm=...)``; reading it waits for the device.

    A window whose loss, gradients or gradient norm are not finite fails. Unless ``on_nonfinite`` is ``'ignore'``,
    nothing of it lasts: ``apply`` leaves parameters, optimizer state, the model's persistent buffers and what follows
    a step with the values that they had before the window. ``faults`` has the verdict, on the device, and
    ``DeferredInfoHook`` reports it. What the host counts goes on: ``num_steps``, the schedule, the number of averages.
    Finite windows are computed as without the check. ``'raise'`` and ``'skip'`` differ in the report alone: a run that
    is about to fail trains on until the next logging iteration, and what it holds by then must be sound. Buffers are
    those of the model that ``initialize_count_status``, which a runner calls, or ``faults.watch`` has named.

    Args:
        optimizer: One of lucid's.
        accumulative_counts: Micro-batches of a full window.
        clip_grad: ``dict(max_norm=10.0)``, with ``norm_type`` at will, or ``dict(type='value', clip_value=...)``.
        on_nonfinite: What a window that fails leads to: 'raise' an error, 'skip' with a warning, or 'ignore': no check,
            and the values are taken as they come.

    Raises:
        ValueError: The optimizer is not lucid's, or an option means nothing.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        accumulative_counts: int = 1,
        clip_grad: Mapping[str, Any] | None = None,
        on_nonfinite: str = 'raise',
    ) -> None:
        if not isinstance(optimizer, DeviceOptimizer):
            raise ValueError(other_optimizer(optimizer))
        if not isinstance(accumulative_counts, int) or accumulative_counts < 1:
            raise ValueError(f'accumulative_counts={accumulative_counts!r}; give a whole number from 1')
        if on_nonfinite not in POLICIES:
            raise ValueError(f'optim_wrapper.on_nonfinite={on_nonfinite!r}; choose one of {", ".join(POLICIES)}')
        check_clip(clip_grad)
        super().__init__(optimizer, accumulative_counts, None if clip_grad is None else dict(clip_grad))
        first = optimizer.param_groups[0]['params'][0]
        self.device: torch.device = first.device
        self.loss_factor = torch.full((), float(accumulative_counts), device=self.device)
        self.grad_norm: Tensor | None = None
        if clip_grad is not None and self.grad_name == 'grad_norm':
            dtype = torch.promote_types(first.dtype, torch.float32)
            self.grad_norm = torch.zeros((), dtype=dtype, device=self.device)
        self.on_nonfinite = on_nonfinite
        self.faults = None if on_nonfinite == 'ignore' else Faults(self.device)
        self.window_ended = False
        self.num_steps = 0
        self._post_steps: list[PostStep] = []

    def add_post_step(self, post_step: PostStep) -> None:
        """Run ``post_step`` after each optimizer step; adding it again changes nothing."""
        if all(known is not post_step for known in self._post_steps):
            self._post_steps.append(post_step)

    # The windows

    def start_epoch(self, num_batches: int, *, position: int = 0) -> None:
        """Begin an epoch: its last window ends with it. Gradients of an interrupted window are dropped.

        Args:
            num_batches: Micro-batches of the epoch.
            position: How many of them are done, when training resumes inside the epoch.

        Raises:
            ValueError: The position is outside the epoch or inside a window.
        """
        if num_batches < 1 or not 0 <= position <= num_batches:
            raise ValueError(f'start_epoch: {position} of {num_batches} micro-batches done; give 0 to the number')
        if position % self._accumulative_counts and position != num_batches:
            raise ValueError(
                f'start_epoch: {position} micro-batches end inside a window of {self._accumulative_counts}; '
                'resume from a checkpoint of a window end, with the accumulative_counts of the first run'
            )
        self.zero_grad()
        self._inner_count = position
        self._max_counts = num_batches
        self._remainder_counts = num_batches % self._accumulative_counts
        self._start_window()
        if self.faults is not None:
            self.faults.restart()

    def initialize_count_status(self, model: nn.Module, init_counts: int, max_counts: int) -> None:
        """Say, as mmengine does, where the run is; ``start_epoch`` overrides it.

        Args:
            model: The model, to warn about BatchNorm, and whose buffers a window that fails leaves as they were.
            init_counts: Micro-batches done.
            max_counts: Micro-batches of the run.
        """
        super().initialize_count_status(model, init_counts, max_counts)
        self._start_window()
        if self.faults is not None:
            self.faults.watch(model)

    @property
    def window_size(self) -> int:
        """Micro-batches of the current window."""
        if self._max_counts != -1 and self._inner_count >= self._max_counts - self._remainder_counts:
            return self._remainder_counts or self._accumulative_counts
        return self._accumulative_counts

    def _start_window(self) -> None:
        self.loss_factor.fill_(self.window_size)  # fill_, not rebind: a recording holds this address

    def advance(self) -> None:
        """Count a micro-batch on the host, after its backward, and prepare the next window at a window's end.

        Raises:
            RuntimeError: There are more micro-batches than were announced.
        """
        if self._inner_count == self._max_counts:
            raise RuntimeError(
                f'all {self._max_counts} micro-batches that were announced are done; call start_epoch before each epoch'
            )
        self._inner_count += 1
        self.window_ended = self.should_update()
        if self.window_ended:
            self.num_steps += 1
            self._start_window()

    # The arithmetic

    def update_params(
        self, loss: Tensor, step_kwargs: dict[str, Any] | None = None, zero_kwargs: dict[str, Any] | None = None
    ) -> None:
        """Add the gradients of one micro-batch, and make a step if its window ends.

        Args:
            loss: 0-d.
            step_kwargs: Must be empty: lucid's optimizers take no arguments.
            zero_kwargs: For ``zero_grad`` after the step.

        Raises:
            ValueError: ``step_kwargs`` is not empty.
        """
        if step_kwargs:
            raise ValueError(f'step_kwargs={step_kwargs}: the optimizers of lucid take none; remove it')
        self.backward(self.scale_loss(loss))
        if self.window_ended:
            self.step(**(zero_kwargs or {}))

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss over its window's number of micro-batches."""
        return loss / self.loss_factor

    def amplify(self, loss: Tensor) -> Tensor:
        """Return what ``run_backward`` differentiates: the loss times float16's loss scale, elsewhere the loss.

        Once per micro-batch, because it takes note of a loss that is not finite; device only.
        """
        if self.faults is not None:
            self.faults.note(loss)
        return loss

    def run_backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients, times the loss scale, of a loss that ``scale_loss`` returned; device only."""
        self.amplify(loss).backward(**kwargs)

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients of a loss that ``scale_loss`` returned, and count it."""
        self.run_backward(loss, **kwargs)
        self.advance()

    def step(self, *, apply: Callable[[], None] | None = None, **zero_kwargs: Any) -> None:
        """Make an optimizer step from the gradients that are there, and clear them.

        Args:
            apply: Does what ``apply`` does, such as a recording of it.
            **zero_kwargs: For ``zero_grad``, where ``apply`` is not given.
        """
        self.refresh()
        if apply is None:
            self.apply(**zero_kwargs)
        else:
            apply()

    def refresh(self) -> None:
        """Fill the device scalars of the optimizer and of what follows it; once per step, before ``apply``."""
        self.optimizer.refresh()
        for post_step in self._post_steps:
            post_step.refresh()

    def apply(self, **zero_kwargs: Any) -> None:
        """Clip, update, run what follows a step, and clear the gradients, on the device only."""
        found_inf = self.unscale()
        size = self._clip_grad(measure=self.faults is not None and found_inf is None)
        failed = None if self.faults is None else self.faults.judge(self.fault(found_inf, size))
        self.optimizer.update(failed if found_inf is None or failed is None else failed.logical_or(found_inf))
        self.update_scale()
        if self.faults is not None:
            self.faults.restore()
        for post_step in self._post_steps:
            post_step.update(failed)
        self.zero_grad(**zero_kwargs)

    def abandon(self) -> None:
        """Forget what an ``apply`` that an exception broke off has begun."""

    def unscale(self) -> Tensor | None:
        """Undo the loss scale; return a 0-d tensor, non-zero if a gradient is not finite. None without a scale."""
        return None

    def fault(self, found_inf: Tensor | None, size: Tensor | None) -> Tensor | None:
        """Say whether the gradients make a window fail.

        Args:
            found_inf: What ``unscale`` returned.
            size: A norm of all gradients before clipping, 0-d; None if there are none, or ``found_inf`` is there.

        Returns:
            0-d bool, or None if there are no gradients.
        """
        return None if size is None else not_finite(size)

    def update_scale(self) -> None:
        """Adapt the loss scale to what ``unscale`` found."""

    def _clip_grad(self, *, measure: bool) -> Tensor | None:
        """Clip, and return the size of the gradients before it: their norm if that is taken, else their largest."""
        params = [p for group in self.optimizer.param_groups for p in group['params'] if p.grad is not None]
        if not params:
            return None
        # Before clipping by value, which makes an infinite gradient finite.
        size = largest(gradients(params)) if measure and self.grad_norm is None else None
        if self.clip_grad_kwargs:
            norm = self.clip_func(params, **self.clip_grad_kwargs)
            if self.grad_norm is not None:
                size = self.grad_norm.copy_(norm)  # not float(norm), as in mmengine: that waits for the device
        return size

    def baked(self) -> tuple[Hashable, ...]:
        """Return the Python values that a recording of ``run_backward`` or ``apply`` keeps, for a guard to compare.

        They are the optimizer's (``DeviceOptimizer.baked``), how gradients are clipped, which objects follow a step,
        and what happens to a window that fails: the policy, and which buffers are watched. What ``refresh`` and
        ``advance`` fill is not among them, and neither are addresses, nor which parameters have a gradient. Cheap
        enough for every step: the host only, linear in the number of parameters.
        """
        clip = (self.clip_func, *sorted(self.clip_grad_kwargs.items())) if self.clip_grad_kwargs else ()
        watched = () if self.faults is None else self.faults.watched
        return (self.optimizer.baked(), clip, tuple(map(id, self._post_steps)), self.on_nonfinite, watched)

    # The state

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state and ``num_steps``."""
        return {**super().state_dict(), 'num_steps': self.num_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into the existing tensors.

        Args:
            state_dict: What ``state_dict`` of any of lucid's or mmengine's wrappers returned; not changed.
        """
        state = {key: value for key, value in state_dict.items() if key not in ('num_steps', 'loss_scaler')}
        super().load_state_dict(state)
        self.num_steps = state_dict.get('num_steps', 0)
