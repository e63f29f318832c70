"""Sums of gradients that live as long as a step region."""

from collections.abc import Collection, Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn

from lucid.capture.gradients import ALIGNMENT, dense_strides

_grad: Any = attrgetter('grad')


class Accumulator:
    """One static buffer per parameter, outside of all graph memory: graphs add to it, a window's end reads it.

    ``place`` makes the buffers the parameters' ``.grad`` for the length of a window, so that an eager micro-batch
    between replayed ones adds to the same sums. ``views`` are in the order of ``parameters``.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        lengths: dict[torch.dtype, int] = {}
        offsets: list[int] = []
        for parameter in self.parameters:
            start = lengths.get(parameter.dtype, 0)
            offsets.append(start)
            step = ALIGNMENT // parameter.element_size()
            lengths[parameter.dtype] = start + -(-parameter.numel() // step) * step
        device = self.parameters[0].device
        self._flats = {dtype: torch.zeros(length, dtype=dtype, device=device) for dtype, length in lengths.items()}
        self.views = [
            self._flats[p.dtype].as_strided(p.shape, dense_strides(p), offset)
            for p, offset in zip(self.parameters, offsets, strict=True)
        ]

    def place(self, reached: Collection[int]) -> None:
        """Make the buffers the ``.grad`` of the parameters at ``reached``, and of those that have one already.

        Between windows, when no parameter has a ``.grad``, the sums start with zeros.
        """
        grads = list(map(_grad, self.parameters))
        if all(map(is_, grads, self.views)):
            return
        if all(grad is None for grad in grads):
            self.clear()
            for i in reached:
                self.parameters[i].grad = self.views[i]
            return
        wanted = set(reached)
        for i, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            grad = parameter.grad
            if grad is view or (grad is None and i not in wanted):
                continue
            if grad is None:
                view.zero_()
            else:
                view.copy_(grad)  # of an eager micro-batch, which began the window
            parameter.grad = view

    def pattern(self) -> tuple[bool, ...]:
        """Which parameters have a ``.grad``."""
        return tuple(parameter.grad is not None for parameter in self.parameters)

    def restore(self, pattern: Sequence[bool]) -> None:
        """Make the buffers the ``.grad`` of the parameters that ``pattern`` names, and None that of the others."""
        for parameter, view, has in zip(self.parameters, self.views, pattern, strict=True):
            parameter.grad = view if has else None

    def clear(self) -> None:
        """Start the sums with zeros."""
        for flat in self._flats.values():
            flat.zero_()
