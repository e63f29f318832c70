"""Undoing writes by a condition that only the device knows."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextmanager
def undone_if(condition: Tensor, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Undo bit for bit, where the 0-d bool ``condition`` holds, what the body writes into ``tensors``.

    Nothing is read on the host. Selection is integer arithmetic on bit patterns, one of two products being zero,
    because ``0 * nan`` is nan and ``0.0 + -0.0`` loses a sign. That takes a few fused kernels, not a ``torch.where``
    per tensor.
    """
    by_size: dict[int, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_size[tensor.element_size()].append(tensor.detach().view(_BITS[tensor.element_size()]))
    undo = {size: condition.to(_BITS[size]) for size in by_size}
    kept = {size: torch._foreach_mul(bits, undo[size]) for size, bits in by_size.items()}
    yield
    for size, bits in by_size.items():
        torch._foreach_mul_(bits, 1 - undo[size])
        torch._foreach_add_(bits, kept[size])
