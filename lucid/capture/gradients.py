"""The gradients that a backward graph leaves behind, packed flat so that one copy hands out all of them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lucid.capture.layout import dense_strides, extent, is_plain, shift_of, span

# Bytes: fused optimizers take a slower path on less than 16, or 32 for float64. Vectors, which are most of a network's
# parameters, are split off in one call, where every padding is a piece too.
ALIGNMENT, VECTOR_ALIGNMENT = 512, 32


class Slot(NamedTuple):
    """Where one gradient lies: the flat buffer, the view of it; of a vector its number among the pieces, else -1."""

    flat: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    piece: int


class _Group(NamedTuple):
    """Gradients in one flat buffer, a list per argument of what makes their views."""

    flat: int
    positions: tuple[int, ...]
    sizes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    pieces: tuple[int, ...]

    @classmethod
    def of(cls, flat: int, found: Sequence[tuple[int, Slot]]) -> '_Group':
        positions, slots = zip(*found, strict=True)
        _, sizes, strides, offsets, pieces = zip(*slots, strict=True)
        return cls(flat, positions, sizes, strides, offsets, pieces)


class FlatGradients:
    """Gradients packed into one static flat buffer per group of (parameters or inputs, vectors or not, dtype).

    Those of inputs keep their layout, holes and overlap included: what is outside reads them as it would in eager. Of a
    parameter's gradient autograd itself makes the layout of the parameter.
    """

    def __init__(self, num_inputs: int) -> None:
        self.num_inputs = num_inputs
        self.flats: list[Tensor] = []
        self.slots: list[Slot | None] = []
        self._pieces: list[list[int]] = []  # per flat: lengths of its vectors and of what pads them
        self._by_reach: dict[tuple[int, ...], list[_Group]] = {}

    def pack(self, grads: Sequence[Tensor | None]) -> list[Tensor]:
        """Copy ``grads`` (inputs first) into new flat buffers; part of what the backward graph records."""
        groups: dict[tuple[bool, bool, torch.dtype], int] = {}
        lengths: list[int] = []
        likes: list[Tensor] = []
        pieces: list[list[int]] = []
        slots: list[Slot | None] = []
        for i, grad in enumerate(grads):
            if grad is None:
                slots.append(None)
                continue
            is_input = i < self.num_inputs
            exact = is_input and not is_plain(grad)
            is_vector = grad.ndim == 1 and not exact
            flat = groups.setdefault((is_input, is_vector, grad.dtype), len(groups))
            if flat == len(lengths):
                lengths.append(0)
                likes.append(grad)
                pieces.append([])
            piece = len(pieces[flat]) if is_vector else -1
            size, shift = tuple(grad.shape), shift_of(grad) if exact else 0
            stride = grad.stride() if exact else dense_strides(grad)
            slots.append(Slot(flat, size, stride, lengths[flat] + shift, piece))
            step = (VECTOR_ALIGNMENT if is_vector else ALIGNMENT) // grad.element_size()
            length = shift + extent(size, stride)
            padding = -length % step
            lengths[flat] += length + padding
            if is_vector:
                pieces[flat] += [grad.numel(), padding] if padding else [grad.numel()]
        flats = [like.new_empty(length) for like, length in zip(likes, lengths, strict=True)]
        present = [
            _pair(flats[slot.flat], slot, grad)
            for slot, grad in zip(slots, grads, strict=True)
            if slot is not None and grad is not None
        ]
        if present:
            torch._foreach_copy_([view for view, _ in present], [grad for _, grad in present])
        self.slots, self._pieces = slots, pieces
        return flats

    def adopt(self, flats: Sequence[Tensor]) -> None:
        """The buffers that ``pack`` made while it was recorded."""
        self.flats = [flat.detach() for flat in flats]

    def views(self, reached: Iterable[int], *, owned: Sequence[bool]) -> dict[int, Tensor]:
        """Gradients by position: views of the static buffers, or of fresh clones where ``owned`` says so."""
        views: dict[int, Tensor] = {}
        # Below autograd's tracking of views: a gradient has nothing to do with its neighbours in memory. Tracked, they
        # would share one version, and who changes one in place would seem to have changed them all. It is faster, too.
        with torch._C._AutoDispatchBelowADInplaceOrView():
            for group in self._groups(tuple(reached)):
                flat = self.flats[group.flat]
                source = flat.clone() if owned[group.positions[0] < self.num_inputs] else flat
                if pieces := self._pieces[group.flat]:
                    vectors = source.split_with_sizes(pieces)
                    tensors = map(vectors.__getitem__, group.pieces)
                else:
                    tensors = map(source.as_strided, group.sizes, group.strides, group.offsets)
                views.update(zip(group.positions, tensors, strict=True))
        return views

    def _groups(self, reached: tuple[int, ...]) -> list['_Group']:
        """The gradients of ``reached`` by flat buffer; kept, because a run asks for the same ones at each step."""
        if reached not in self._by_reach:
            by_flat: dict[int, list[tuple[int, Slot]]] = {}
            for i in reached:
                if (slot := self.slots[i]) is not None:
                    by_flat.setdefault(slot.flat, []).append((i, slot))
            self._by_reach[reached] = [_Group.of(flat, found) for flat, found in by_flat.items()]
        return self._by_reach[reached]

    def spans(self) -> list[tuple[int, int]]:
        """Address ranges of the static buffers."""
        return [(flat.data_ptr(), flat.data_ptr() + flat.nbytes) for flat in self.flats]


def _pair(flat: Tensor, slot: Slot, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Where a gradient is copied to and what is copied; of one that is not dense, all from its first element on."""
    view = flat.as_strided(slot.size, slot.stride, slot.offset)
    return (view, grad) if slot.stride == dense_strides(grad) else (span(view), span(grad))
