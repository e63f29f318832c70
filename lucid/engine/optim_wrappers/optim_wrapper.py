"""From a loss to an optimizer step: accumulation windows, clipping, and what follows a step."""

from collections.abc import Hashable, Mapping
from typing import Any, Protocol

import torch
from mmengine.optim import OptimWrapper as BaseOptimWrapper
from torch import Tensor, nn
from torch.optim import Optimizer

from lucid.engine.optimizers import DeviceOptimizer
from lucid.registry import OPTIM_WRAPPERS

_CLIP_KEYS = {'norm': {'max_norm', 'norm_type'}, 'value': {'clip_value'}}


class PostStep(Protocol):
    """Something that runs after each optimizer step, such as an average of the weights."""

    def refresh(self) -> None:
        """Fill device scalars on the host; called exactly once per optimizer step, before it."""

    def update(self) -> None:
        """Device arithmetic only."""


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

    Args:
        optimizer: One of lucid's.
        accumulative_counts: Micro-batches of a full window.
        clip_grad: ``dict(max_norm=10.0)``, with ``norm_type`` at will, or ``dict(type='value', clip_value=...)``.

    Raises:
        ValueError: The optimizer is not lucid's, or an option means nothing.
    """

    def __init__(
        self, optimizer: Optimizer, *, accumulative_counts: int = 1, clip_grad: Mapping[str, Any] | None = None
    ) -> None:
        if not isinstance(optimizer, DeviceOptimizer):
            raise ValueError(_other_optimizer(optimizer))
        if not isinstance(accumulative_counts, int) or accumulative_counts < 1:
            raise ValueError(f'accumulative_counts={accumulative_counts!r}; give a whole number from 1')
        _check_clip(clip_grad)
        super().__init__(optimizer, accumulative_counts, None if clip_grad is None else dict(clip_grad))
        first = optimizer.param_groups[0]['params'][0]
        self.device: torch.device = first.device
        self.loss_factor = torch.full((), float(accumulative_counts), device=self.device)
        self.grad_norm: Tensor | None = None
        if clip_grad is not None and self.grad_name == 'grad_norm':
            dtype = torch.promote_types(first.dtype, torch.float32)
            self.grad_norm = torch.zeros((), dtype=dtype, device=self.device)
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

    def initialize_count_status(self, model: nn.Module, init_counts: int, max_counts: int) -> None:
        """Say, as mmengine does, where the run is; ``start_epoch`` overrides it.

        Args:
            model: The model, to warn about BatchNorm.
            init_counts: Micro-batches done.
            max_counts: Micro-batches of the run.
        """
        super().initialize_count_status(model, init_counts, max_counts)
        self._start_window()

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
        """Return what ``run_backward`` differentiates: the loss times float16's loss scale, elsewhere the loss."""
        return loss

    def run_backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients, times the loss scale, of a loss that ``scale_loss`` returned; device only."""
        self.amplify(loss).backward(**kwargs)

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients of a loss that ``scale_loss`` returned, and count it."""
        self.run_backward(loss, **kwargs)
        self.advance()

    def step(self, **zero_kwargs: Any) -> None:
        """Make an optimizer step from the gradients that are there, and clear them."""
        self.refresh()
        self.apply(**zero_kwargs)

    def refresh(self) -> None:
        """Fill the device scalars of the optimizer and of what follows it; once per step, before ``apply``."""
        self.optimizer.refresh()
        for post_step in self._post_steps:
            post_step.refresh()

    def apply(self, **zero_kwargs: Any) -> None:
        """Clip, update, run what follows a step, and clear the gradients, on the device only."""
        found_inf = self.unscale()
        if self.clip_grad_kwargs:
            self._clip_grad()
        self.optimizer.update(found_inf)
        self.update_scale()
        for post_step in self._post_steps:
            post_step.update()
        self.zero_grad(**zero_kwargs)

    def unscale(self) -> Tensor | None:
        """Undo the loss scale; return a 0-d tensor, non-zero if a gradient is not finite. None without a scale."""
        return None

    def update_scale(self) -> None:
        """Adapt the loss scale to what ``unscale`` found."""

    def _clip_grad(self) -> None:
        params = [p for group in self.optimizer.param_groups for p in group['params'] if p.grad is not None]
        if not params:
            return
        norm = self.clip_func(params, **self.clip_grad_kwargs)
        if self.grad_norm is not None:
            self.grad_norm.copy_(norm)  # not float(norm), as in mmengine: that waits for the device

    def baked(self) -> tuple[Hashable, ...]:
        """Return the Python values that a recording of ``run_backward`` or ``apply`` keeps, for a guard to compare.

        They are the optimizer's (``DeviceOptimizer.baked``), how gradients are clipped, and which objects follow a
        step. What ``refresh`` and ``advance`` fill is not among them, and neither are addresses, nor which parameters
        have a gradient. Cheap enough for every step: the host only, linear in the number of parameters.
        """
        clip = (self.clip_func, *sorted(self.clip_grad_kwargs.items())) if self.clip_grad_kwargs else ()
        return (self.optimizer.baked(), clip, tuple(id(step) for step in self._post_steps))

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


def _other_optimizer(optimizer: object) -> str:
    kind = type(optimizer)
    near = {'SGD': 'SGD', 'Adam': 'AdamW', 'AdamW': 'AdamW', 'NAdam': 'AdamW'}.get(kind.__name__, 'MuSGD')
    return (
        f"{kind.__module__}.{kind.__name__} reads its options on the host; use lucid's optimizer=dict(type='{near}') "
        "with default_scope='lucid', or keep it in mmengine.OptimWrapper"
    )


def _check_clip(clip_grad: Mapping[str, Any] | None) -> None:
    if clip_grad is None:
        return
    kind = clip_grad.get('type', 'norm')
    if kind not in _CLIP_KEYS:
        raise ValueError(f"clip_grad: type={kind!r}; choose 'norm' or 'value'")
    if unknown := sorted(set(clip_grad) - _CLIP_KEYS[kind] - {'type'}):
        why = ' (error_if_nonfinite would wait for the device in each step)' if 'error_if_nonfinite' in unknown else ''
        raise ValueError(f'clip_grad: unknown {unknown}{why}; {kind} takes {sorted(_CLIP_KEYS[kind])}')
    limit = 'max_norm' if kind == 'norm' else 'clip_value'
    if not clip_grad.get(limit, 0) > 0:
        raise ValueError(f'clip_grad: {limit}={clip_grad.get(limit)!r}; give a positive number, max_norm=10.0 is usual')
