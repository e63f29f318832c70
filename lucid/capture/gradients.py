"""The gradients that a backward graph leaves behind, and who owns what leaves the region.

Two modes. ``clone``: the backward hands out views of one fresh flat clone, and nobody ever sees graph memory.
``adopt``: autograd may adopt views of the graph's own memory as ``.grad``, and every ``.grad`` that lies there is
copied out before *any* replay of any recording of the pool. A forward replay already destroys gradients: the forward
freed temporaries during its capture, and the gradient buffers of the backward took their place.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

ALIGNMENT = 512  # bytes, as the allocator aligns: fused optimizers take a slower path on less


class Slot(NamedTuple):
    """Where one gradient lies: the flat buffer, and the view of it."""

    flat: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class FlatGradients:
    """Gradients packed into one static flat buffer per group of (parameters or inputs, dtype)."""

    def __init__(self, num_inputs: int) -> None:
        self.num_inputs = num_inputs
        self.flats: list[Tensor] = []
        self.slots: list[Slot | None] = []

    def pack(self, grads: Sequence[Tensor | None]) -> list[Tensor]:
        """Copy ``grads`` (inputs first) into new flat buffers; part of what the backward graph records."""
        groups: dict[tuple[bool, torch.dtype], int] = {}
        lengths: list[int] = []
        likes: list[Tensor] = []
        slots: list[Slot | None] = []
        for i, grad in enumerate(grads):
            if grad is None:
                slots.append(None)
                continue
            flat = groups.setdefault((i < self.num_inputs, grad.dtype), len(groups))
            if flat == len(lengths):
                lengths.append(0)
                likes.append(grad)
            slots.append(Slot(flat, tuple(grad.shape), _dense_strides(grad), lengths[flat]))
            step = ALIGNMENT // grad.element_size()
            lengths[flat] += -(-grad.numel() // step) * step
        flats = [like.new_empty(length) for like, length in zip(likes, lengths, strict=True)]
        present = [
            (slot, grad) for slot, grad in zip(slots, grads, strict=True) if slot is not None and grad is not None
        ]
        if present:
            torch._foreach_copy_([_view(flats[s.flat], s) for s, _ in present], [g for _, g in present])
        self.slots = slots
        return flats

    def adopt(self, flats: Sequence[Tensor]) -> None:
        """The buffers that ``pack`` made while it was recorded."""
        self.flats = [flat.detach() for flat in flats]

    def views(self, reached: Iterable[int], *, owned: Sequence[bool]) -> dict[int, Tensor]:
        """Gradients by position: views of the static buffers, or of fresh clones where ``owned`` says so."""
        sources: dict[int, Tensor] = {}
        views: dict[int, Tensor] = {}
        for i in reached:
            slot = self.slots[i]
            if slot is None:
                continue
            source = sources.get(slot.flat)
            if source is None:
                flat = self.flats[slot.flat]
                source = sources[slot.flat] = flat.clone() if owned[i < self.num_inputs] else flat
            views[i] = _view(source, slot)
        return views

    def spans(self) -> list[tuple[int, int]]:
        """Address ranges of the static buffers."""
        return [(flat.data_ptr(), flat.data_ptr() + flat.nbytes) for flat in self.flats]


def _view(flat: Tensor, slot: Slot) -> Tensor:
    return flat.as_strided(slot.size, slot.stride, slot.offset)


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's strides if it fills its memory without holes or overlap, else contiguous ones."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        if size != 1:
            if stride != expected:
                break
            expected *= size
    else:
        return tensor.stride()
    strides = [1]
    for size in reversed(tensor.shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))


class Ownership(Protocol):
    """Who owns the gradients that leave a region."""

    def hand_out(self, gradients: FlatGradients, reached: Iterable[int]) -> dict[int, Tensor]:
        """The gradients at the positions ``reached``, after the backward has been replayed."""

    def before_forward(self, holders: Sequence['Holder']) -> None:
        """Called before every forward replay in the pool."""

    def before_backward(self, holders: Sequence['Holder']) -> None:
        """Called before every backward replay in the pool."""


class Holder(NamedTuple):
    """The parameters whose ``.grad`` may lie in the gradient buffers of one recording."""

    parameters: Sequence[nn.Parameter]
    gradients: FlatGradients


class Clone:
    """Every gradient that leaves owns its memory."""

    def hand_out(self, gradients: FlatGradients, reached: Iterable[int]) -> dict[int, Tensor]:
        """Views of one fresh clone per flat buffer; the caller owns them."""
        return gradients.views(reached, owned=(True, True))

    def before_forward(self, holders: Sequence[Holder]) -> None:
        """Nothing outside lies in graph memory."""

    def before_backward(self, holders: Sequence[Holder]) -> None:
        """Nothing outside lies in graph memory."""


class Adopt:
    """Autograd may adopt static memory as a parameter's ``.grad``; input gradients are cloned.

    Only what is some parameter's ``.grad`` when a replay starts is copied out. A gradient kept by a tensor hook, or
    returned by ``torch.autograd.grad``, is overwritten.
    """

    def hand_out(self, gradients: FlatGradients, reached: Iterable[int]) -> dict[int, Tensor]:
        """Views of the static buffers for parameters; the graph owns them until the next replay in the pool."""
        return gradients.views(reached, owned=(False, True))

    def before_forward(self, holders: Sequence[Holder]) -> None:
        """Copy live gradients out: the forward's scratch memory overlaps the gradient buffers."""
        copy_out(holders)

    def before_backward(self, holders: Sequence[Holder]) -> None:
        """Copy live gradients out: another backward may have run since the forward."""
        copy_out(holders)


def copy_out(holders: Sequence[Holder]) -> int:
    """Give each parameter's ``.grad`` that lies in a static buffer its own memory; the number of them.

    The ``.grad`` object stays the same: who holds it sees the right values too.
    """
    spans = [span for holder in holders for span in holder.gradients.spans()]
    if not spans:
        return 0
    live: dict[int, Tensor] = {}
    for holder in holders:
        for parameter in holder.parameters:
            grad = parameter.grad
            if grad is not None and id(grad) not in live and _lies_in(grad, spans):
                live[id(grad)] = grad
    grads = list(live.values())
    if grads:
        copies = [torch.empty_like(grad) for grad in grads]
        torch._foreach_copy_(copies, grads)
        for grad, copy in zip(grads, copies, strict=True):
            grad.data = copy
    return len(grads)


def _lies_in(tensor: Tensor, spans: Iterable[tuple[int, int]]) -> bool:
    address = tensor.data_ptr()
    return any(start <= address < end for start, end in spans)


OWNERSHIPS: dict[str, type[Clone] | type[Adopt]] = {'clone': Clone, 'adopt': Adopt}
