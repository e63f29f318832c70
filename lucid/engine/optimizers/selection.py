"""Undoing writes by a condition that only the device knows."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Bits = dict[int, list[Tensor]]  # views as integers, by their size in bytes


def as_bits(tensors: Sequence[Tensor]) -> Bits:
    """Return views of ``tensors`` as integers; worth keeping where their addresses stay, a view costs a microsecond."""
    by_size: Bits = defaultdict(list)
    with torch.no_grad():
        for tensor in tensors:
            by_size[tensor.element_size()].append(tensor.view(BITS[tensor.element_size()]))
    return by_size


def clear_if(condition: Tensor, tensors: Bits) -> None:
    """Set ``tensors`` to +0 where the 0-d bool ``condition`` holds, whatever they hold: ``0 * nan`` would be nan."""
    for size, bits in tensors.items():
        torch._foreach_mul_(bits, 1 - condition.to(BITS[size]))


@contextmanager
def undone_if(condition: Tensor, tensors: Bits) -> Iterator[None]:
    """Undo bit for bit, where the 0-d bool ``condition`` holds, what the body writes into ``tensors``.

    Nothing is read on the host. Selection is integer arithmetic on bit patterns, one of two products being zero,
    because ``0 * nan`` is nan and ``0.0 + -0.0`` loses a sign. That takes a few fused kernels, not a ``torch.where``
    per tensor.
    """
    undo = {size: condition.to(BITS[size]) for size in tensors}
    kept = {size: torch._foreach_mul(bits, undo[size]) for size, bits in tensors.items()}
    yield
    for size, bits in tensors.items():
        torch._foreach_mul_(bits, 1 - undo[size])
        torch._foreach_add_(bits, kept[size])


def restored_if(condition: Tensor, tensors: Bits, *, kept: Bits) -> None:
    """Where the 0-d bool ``condition`` holds, give ``tensors`` the bits of ``kept``; then let ``kept`` equal them.

    Nothing is read on the host; how it selects, see ``undone_if``.
    """
    for size, bits in tensors.items():
        restore = condition.to(BITS[size])
        torch._foreach_mul_(bits, 1 - restore)
        torch._foreach_mul_(kept[size], restore)
        torch._foreach_add_(bits, kept[size])
        torch._foreach_copy_(kept[size], bits)
