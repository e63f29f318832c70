"""Where the elements of a tensor lie: strides, holes, overlap and alignment, which decide the order of a kernel's sums.

A convolution that gets a gradient in another memory format adds the gradient of its bias in another order; an expanded
gradient (of ``sum()``) or one with holes (of ``cat``) does the same. What crosses the border of a region therefore
keeps its layout, whatever that is.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """The strides of a tensor; how many elements past an aligned address it begins."""

    strides: tuple[int, ...]
    shift: int


def layout_of(tensor: Tensor) -> Layout:
    """Where the elements of ``tensor`` lie, but for the address."""
    return Layout(tensor.stride(), shift_of(tensor))


def alignment_of(tensor: Tensor) -> int:
    """Bytes that an address must be a multiple of for the sum of a kernel not to depend on it.

    A reduction that loads vectors adds what comes before the first aligned one by itself. A vector has 16 bytes, of
    float64 32. Integers add up to the same in any order.
    """
    if not tensor.is_floating_point():
        return 1
    return 32 if tensor.dtype == torch.float64 else 16


def shift_of(tensor: Tensor) -> int:
    """Elements past an aligned address."""
    return tensor.data_ptr() % alignment_of(tensor) // tensor.element_size()


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
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


def is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is dense and aligned, so that ``clone`` keeps its layout."""
    return tensor.stride() == dense_strides(tensor) and not shift_of(tensor)


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last one, holes included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def span(tensor: Tensor) -> Tensor:
    """The memory from the tensor's first to its last element, holes included, as a vector; gradients must be off.

    To copy the span copies any layout, overlap included. What it copies of the holes nobody reads.
    """
    return tensor.as_strided((extent(tuple(tensor.shape), tensor.stride()),), (1,), tensor.storage_offset())


def place(like: Tensor, layout: Layout) -> Tensor:
    """Zeros of the shape and dtype of ``like`` in this layout, in memory of their own."""
    length = extent(tuple(like.shape), layout.strides)
    memory = torch.zeros(layout.shift + length, dtype=like.dtype, device=like.device)
    return memory.as_strided(like.shape, layout.strides, layout.shift)


def mirror(tensor: Tensor) -> Tensor:
    """A copy of ``tensor`` in its layout, in memory of its own; gradients must be off."""
    shift, source = shift_of(tensor), span(tensor)
    # Below autograd's tracking of views: the copy is nobody's view, and may be written in place.
    with torch._C._AutoDispatchBelowADInplaceOrView():
        memory = source.new_empty(shift + source.numel())
        memory[shift:].copy_(source)
        return memory.as_strided(tensor.shape, tensor.stride(), shift)
