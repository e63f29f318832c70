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
        size = tensor.element_size()
        by_size[size].append(tensor.detach().view(_BITS[size]))
    before = {size: torch._foreach_clone(after) for size, after in by_size.items()}
    yield
    for size, after in by_size.items():
        undo = condition.to(_BITS[size])
        torch._foreach_mul_(before[size], undo)
        torch._foreach_mul_(after, 1 - undo)
        torch._foreach_add_(after, before[size])
