"""Undoing writes by a condition that only the device knows."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextmanager
def undone_if(condition: Tensor, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Undo bit for bit, where the 0-d bool ``condition`` holds, what the body writes into ``tensors``.

    Nothing is read on the host. Selection is integer arithmetic on bit patterns, one of two products being zero,
    because ``0 * nan`` is nan and ``0.0 + -0.0`` loses a sign. That takes a few fused kernels, not a ``torch.where``
    per tensor.
    """
    by_size = _bits(tensors)
    undo = {size: condition.to(BITS[size]) for size in by_size}
    kept = {size: torch._foreach_mul(bits, undo[size]) for size, bits in by_size.items()}
    yield
    for size, bits in by_size.items():
        torch._foreach_mul_(bits, 1 - undo[size])
        torch._foreach_add_(bits, kept[size])


def restored_if(condition: Tensor, tensors: Sequence[Tensor], *, kept: Sequence[Tensor]) -> None:
    """Where the 0-d bool ``condition`` holds, give ``tensors`` the bits of ``kept``; then let ``kept`` equal them.

    Nothing is read on the host; how it selects, see ``undone_if``.
    """
    copies = _bits(kept)
    for size, bits in _bits(tensors).items():
        restore = condition.to(BITS[size])
        torch._foreach_mul_(bits, 1 - restore)
        torch._foreach_mul_(copies[size], restore)
        torch._foreach_add_(bits, copies[size])
        torch._foreach_copy_(copies[size], bits)


def _bits(tensors: Sequence[Tensor]) -> dict[int, list[Tensor]]:
    """Views as integers, by size in bytes."""
    by_size: dict[int, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_size[tensor.element_size()].append(tensor.detach().view(BITS[tensor.element_size()]))
    return by_size
