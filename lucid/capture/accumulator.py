"""Sums of gradients that live as long as a step region."""

from collections.abc import Collection, Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from lucid.capture.gradients import ALIGNMENT
from lucid.capture.layout import dense_strides

_grad: Any = attrgetter('grad')


class Accumulator:
    """One static buffer per parameter, outside of all graph memory: graphs add to it, a window's end reads it.

    ``views`` are the buffers, in the order of ``parameters``; nobody else may hold them. ``place`` makes aliases of
    them the parameters' ``.grad`` for the length of a window, so that an eager micro-batch between replayed ones adds
    to the same sums. Who rebinds an alias, as ``module.to()`` does by ``.data``, is noticed.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.ids = frozenset(map(id, self.parameters))
        lengths: dict[tuple[torch.dtype, torch.device], int] = {}
        offsets: list[int] = []
        for parameter in self.parameters:
            kind = parameter.dtype, parameter.device
            offsets.append(lengths.get(kind, 0))
            step = ALIGNMENT // parameter.element_size()
            lengths[kind] = offsets[-1] + -(-parameter.numel() // step) * step
        self._flats = {kind: torch.zeros(length, dtype=kind[0], device=kind[1]) for kind, length in lengths.items()}
        self.views = [
            self._flats[p.dtype, p.device].as_strided(p.shape, dense_strides(p), offset)
            for p, offset in zip(self.parameters, offsets, strict=True)
        ]
        self._addresses = list(map(Tensor.data_ptr, self.views))
        self._aliases = [view.detach() for view in self.views]

    def fits(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether these are its parameters, in the memory layout that it was made for."""
        return len(parameters) == len(self.parameters) and all(
            p is own
            and (view.shape, view.dtype, view.device, view.stride()) == (p.shape, p.dtype, p.device, dense_strides(p))
            for p, own, view in zip(parameters, self.parameters, self.views, strict=True)
        )

    @torch.no_grad()
    def place(self, reached: Collection[int]) -> None:
        """Make the buffers the ``.grad`` of the parameters at ``reached``, and of those that have one already.

        A parameter without ``.grad`` starts its sum with zeros, one with another ``.grad`` with that.
        """
        grads = list(map(_grad, self.parameters))
        if all(map(is_, grads, self._aliases)) and list(map(Tensor.data_ptr, self._aliases)) == self._addresses:
            return
        if all(grad is None for grad in grads):
            self.clear()
            self._refresh()
            for i in reached:
                self.parameters[i].grad = self._aliases[i]
            return
        wanted = set(reached)
        for i, (parameter, view, grad) in enumerate(zip(self.parameters, self.views, grads, strict=True)):
            if grad is None:
                if i not in wanted:
                    continue
                view.zero_()
            elif grad.data_ptr() != self._addresses[i]:
                view.copy_(grad)  # of an eager micro-batch, or moved
            elif grad is self._aliases[i]:
                continue
            self._aliases[i] = view.detach()
            parameter.grad = self._aliases[i]

    def pattern(self) -> tuple[bool, ...]:
        """Which parameters have a ``.grad``."""
        return tuple(parameter.grad is not None for parameter in self.parameters)

    def restore(self, pattern: Sequence[bool]) -> None:
        """Make the buffers the ``.grad`` of the parameters that ``pattern`` names, and None that of the others."""
        for parameter, alias, has in zip(self.parameters, self._aliases, pattern, strict=True):
            parameter.grad = alias if has else None

    def clear(self) -> None:
        """Start the sums with zeros."""
        for flat in self._flats.values():
            flat.zero_()

    def _refresh(self) -> None:
        """Make aliases anew that somebody has moved."""
        if list(map(Tensor.data_ptr, self._aliases)) != self._addresses:
            self._aliases = [view.detach() for view in self.views]
