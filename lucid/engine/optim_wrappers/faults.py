"""Windows whose loss or gradients are not finite: found, undone and counted on the device."""

from collections.abc import Sequence

import torch
from mmengine.dist import all_reduce, get_world_size
from torch import Tensor, nn

from lucid.engine.distributed import unwrapped
from lucid.engine.optimizers.selection import BITS, Bits, as_bits, restored_if

POLICIES = ('raise', 'skip', 'ignore')


class Faults:
    """The verdict on each window, and the buffers as they were when it began.

    A window fails if the loss of one of its micro-batches or the sum of its gradients is not finite. Then nothing of
    it may last. Parameters, optimizer state and averages are written after the verdict, by others, who undo it with
    ``failed``. Buffers are not: the forward has long put a NaN into BatchNorm's running statistics, which validation
    and averages use. So a copy of the model's persistent buffers, counters included, lies beside them; at a window's
    end either the buffers take the copy's bits, or the copy takes theirs. That is four fused operators over small
    tensors.

    Nothing here reads the device: ``note``, ``judge`` and ``restore`` are device arithmetic at constant addresses;
    ``watch`` and ``restart`` are the host's. Between processes the verdict is shared, because they must stay equal.

    Attributes:
        pending: 0-d bool, a loss of the current window was not finite.
        failed: 0-d bool, the verdict on the last window that ended.
        count: 0-d int64, windows that failed since this object was made.

    Args:
        device: Where the model is.
    """

    def __init__(self, device: torch.device) -> None:
        self.pending = torch.zeros((), dtype=torch.bool, device=device)
        self.failed = torch.zeros((), dtype=torch.bool, device=device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self._model: nn.Module | None = None
        self._buffers: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._bits: tuple[Bits, Bits] = {}, {}  # of both

    def watch(self, model: nn.Module) -> None:
        """Have ``restore`` care for the buffers of ``model``, which is on its device."""
        self._model = unwrapped(model)
        self.restart()

    @torch.no_grad()
    def restart(self) -> None:
        """Forget the current window, and take the buffers, looked up anew, as they are now."""
        self.pending.fill_(False)
        buffers = [] if self._model is None else _buffers(self._model)
        if [id(tensor) for tensor in buffers] != [id(tensor) for tensor in self._buffers]:
            self._buffers, self._kept = buffers, [tensor.clone() for tensor in buffers]
        self._bits = as_bits(self._buffers), as_bits(self._kept)  # anew: ``buffer.data = x`` moves one
        if buffers:
            torch._foreach_copy_(self._kept, buffers)  # copy_, not rebind: a recording holds these addresses

    @property
    def watched(self) -> tuple[int, ...]:
        """The ids of the buffers, which a recording of ``restore`` keeps."""
        return tuple(map(id, self._buffers))

    @torch.no_grad()
    def note(self, loss: Tensor) -> None:
        """Take the loss of a micro-batch into account."""
        self.pending.logical_or_(not_finite(loss.detach().reshape(())))

    @torch.no_grad()
    def judge(self, gradients: Tensor | None) -> Tensor:
        """End the window.

        Args:
            gradients: 0-d bool, the gradients are not finite; None if there are none.

        Returns:
            ``failed``.
        """
        self.failed.copy_(self.pending if gradients is None else self.pending.logical_or(gradients))
        if get_world_size() > 1:
            shared = self.failed.to(torch.int32)
            all_reduce(shared, 'max')
            self.failed.copy_(shared)
        self.count.add_(self.failed)
        self.pending.fill_(False)
        return self.failed

    @torch.no_grad()
    def restore(self) -> None:
        """Give the buffers of a failed window the values of its beginning; else remember the new ones."""
        buffers, kept = self._bits
        restored_if(self.failed, buffers, kept=kept)


def largest(gradients: Sequence[Tensor]) -> Tensor | None:
    """Return the largest absolute value of all gradients, 0-d and NaN where one is; None if there are none."""
    return torch.nn.utils.get_total_norm(list(gradients), norm_type=float('inf')) if gradients else None


def not_finite(value: Tensor) -> Tensor:
    """Return whether the 0-d ``value`` is nan or infinite, as a 0-d bool."""
    return (value - value) != 0  # two kernels where isfinite has four: nan - nan and inf - inf are nan


def _buffers(model: nn.Module) -> list[Tensor]:
    """The persistent buffers that training may change; others are filled by hooks, which say when."""
    state = model.state_dict(keep_vars=True)
    frozen: frozenset[str] = getattr(model, 'frozen_state', frozenset())
    return [
        value
        for name, value in state.items()
        if isinstance(value, Tensor)
        and not isinstance(value, nn.Parameter)
        and name not in frozen
        and value.element_size() in BITS
    ]
