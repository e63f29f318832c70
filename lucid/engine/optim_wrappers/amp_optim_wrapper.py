"""Training in bfloat16 or float16 on any device."""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from lucid.engine.optim_wrappers.optim_wrapper import OptimWrapper
from lucid.registry import OPTIM_WRAPPERS

DTYPES = {'bfloat16': torch.bfloat16, 'float16': torch.float16}


@OPTIM_WRAPPERS.register_module()
class AmpOptimWrapper(OptimWrapper):
    """``OptimWrapper`` under autocast, on CPU and CUDA; float16 with a loss scale that stays on the device.

    Autocast keeps no cache of cast weights: a recording could not see it change. In float16, torch's own
    ``GradScaler`` scales, unscales, finds gradients that are not finite and adapts the scale; the skip is in the
    optimizer's ``update``, so that no step reads the host. The scale has one address.

    While the scale finds its place, float16 skips steps; these are no faults. What follows a step runs after such a
    one too: an average of the weights takes the unchanged weights once more. A loss that is not finite is a fault, and
    so are gradients that are not finite although the scale has fallen below 1, which a NaN that only they have leads
    to after some skipped steps. The scale moves after a fault too.

    Args:
        optimizer: One of lucid's.
        dtype: 'bfloat16', which needs no loss scale, or 'float16'.
        init_scale: First loss scale of float16.
        growth_factor: What multiplies the scale after ``growth_interval`` finite steps.
        backoff_factor: What multiplies the scale after a skipped step.
        growth_interval: Finite steps in a row.
        accumulative_counts: Micro-batches of a full window.
        clip_grad: See ``OptimWrapper``.
        on_nonfinite: See ``OptimWrapper``.

    Raises:
        ValueError: An option means nothing.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        dtype: str = 'bfloat16',
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        accumulative_counts: int = 1,
        clip_grad: Mapping[str, Any] | None = None,
        on_nonfinite: str = 'raise',
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(
                f'AmpOptimWrapper: dtype={dtype!r}; choose one of {sorted(DTYPES)}, for float32 use OptimWrapper'
            )
        if not (init_scale > 0 and growth_factor > 1 and 0 < backoff_factor < 1 and growth_interval >= 1):
            raise ValueError(
                f'AmpOptimWrapper: init_scale={init_scale}, growth_factor={growth_factor}, backoff_factor='
                f'{backoff_factor}, growth_interval={growth_interval}; use positive numbers, growth_factor above and '
                'backoff_factor below 1'
            )
        super().__init__(
            optimizer, accumulative_counts=accumulative_counts, clip_grad=clip_grad, on_nonfinite=on_nonfinite
        )
        self.cast_dtype = DTYPES[dtype]
        self.loss_scaler: GradScaler | None = None
        if self.cast_dtype == torch.float16:
            self.loss_scaler = GradScaler(
                self.device.type,
                init_scale=float(init_scale),
                growth_factor=growth_factor,
                backoff_factor=backoff_factor,
                growth_interval=growth_interval,
            )
            # The scaler makes its scale tensor in the first call: make it now, outside any recording.
            self.loss_scaler.scale(torch.ones((), device=self.device))

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Autocast the forward; a distributed model synchronises at window ends only."""
        autocast = torch.autocast(self.device.type, dtype=self.cast_dtype, cache_enabled=False)
        with super().optim_context(model), autocast:
            yield

    def amplify(self, loss: Tensor) -> Tensor:
        """Return what ``run_backward`` differentiates: the loss times float16's loss scale, elsewhere the loss."""
        loss = super().amplify(loss)  # before the scale, which may make a finite loss infinite
        return loss if self.loss_scaler is None else self.loss_scaler.scale(loss)

    def abandon(self) -> None:
        """Forget what an ``apply`` that an exception broke off has begun: that gradients are unscaled."""
        if self.loss_scaler is not None:
            self.loss_scaler._per_optimizer_states.clear()

    def unscale(self) -> Tensor | None:
        """Undo the loss scale; return a 0-d tensor, non-zero if a gradient is not finite. None without a scale."""
        if self.loss_scaler is None:
            return None
        self.loss_scaler.unscale_(self.optimizer)
        # A private name, though a stable one that other trainers use: GradScaler.step would read this on the host.
        per_device: dict[Any, Tensor] = self.loss_scaler._found_inf_per_device(self.optimizer)
        return per_device[self.device]

    def fault(self, found_inf: Tensor | None, size: Tensor | None) -> Tensor | None:
        """Say whether the gradients make a window fail; in float16 only if they overflow with a scale below 1.

        Args:
            found_inf: What ``unscale`` returned.
            size: A norm of all gradients before clipping, 0-d; None if there are none, or ``found_inf`` is there.

        Returns:
            0-d bool, or None if there are no gradients.
        """
        if self.loss_scaler is None or found_inf is None:
            return super().fault(found_inf, size)
        scale = self.loss_scaler._get_scale_async()
        assert scale is not None, 'made in __init__'
        return (found_inf != 0).logical_and(scale < 1)

    def update_scale(self) -> None:
        """Adapt the loss scale to what ``unscale`` found."""
        if self.loss_scaler is not None:
            self.loss_scaler.update()

    def baked(self) -> tuple[Hashable, ...]:
        """Return the Python values that a recording keeps: the precision and how the loss scale moves are too."""
        scaler = self.loss_scaler
        moves = (
            None
            if scaler is None
            else (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
        )
        return (*super().baked(), self.cast_dtype, id(scaler), moves)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, ``num_steps`` and, in float16, ``loss_scaler`` as numbers; waits for them."""
        state = super().state_dict()
        if self.loss_scaler is not None:
            state['loss_scaler'] = self.loss_scaler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into the existing tensors; a state without ``loss_scaler`` leaves the scale alone.

        How the scale grows stays as it was constructed.

        Args:
            state_dict: What ``state_dict`` of any of lucid's or mmengine's wrappers returned; not changed.
        """
        super().load_state_dict(state_dict)
        if self.loss_scaler is not None and 'loss_scaler' in state_dict:
            state = {key: state_dict['loss_scaler'][key] for key in ('scale', '_growth_tracker')}
            self.loss_scaler.load_state_dict({**self.loss_scaler.state_dict(), **state})
