"""A copy on the host of all tensors of a nested value, made in few transfers into memory that is used again."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lucid.engine.checkpoint import plain

ALIGNMENT = 128
"""Bytes: a tensor begins at a multiple of it."""
CHUNK = 32 << 20
"""Bytes that are gathered on a device for one transfer, and freed again."""


class _Layout(NamedTuple):
    """How a tensor lies in memory."""

    device: torch.device
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        return self.size.numel()


class Snapshot:
    """Host memory that holds the tensors of one value at a time.

    Values, shapes and strides are those of ``tensor.cpu()``: a view with gaps or overlaps becomes a dense tensor.
    Tensors that are the same place in memory become one. Each copy has a storage of its own bytes, so that
    ``torch.save`` writes no others, though all lie in one piece of memory, pinned where a card takes part.

    The memory is laid out for the tensors of the last ``take`` and serves the next one as it is, if that has the same.

    Args:
        chunk: Bytes on a device for one transfer; a larger tensor goes alone.
    """

    def __init__(self, *, chunk: int = CHUNK) -> None:
        self._chunk = _aligned(chunk)
        self._layouts: list[_Layout] = []
        self._hosts: list[Tensor] = []
        self._offsets: list[int] = []
        self._memory = torch.empty(0, dtype=torch.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that it keeps."""
        return self._memory.nbytes

    def take(self, value: Any) -> Any:
        """Rebuild a value as ``checkpoint.plain`` does, with copies of its tensors, which are complete on return.

        Copies on a device follow the work of its current stream, and the host waits for them: what comes later may
        overwrite the tensors.

        Args:
            value: Nested containers; what they hold is not changed.

        Returns:
            The rebuilt value; its tensors are this object's until the next ``take``.

        Raises:
            TypeError: Something that a checkpoint cannot hold is inside.
        """
        copy, sources, layouts = self._walk(value)
        if layouts != self._layouts:
            self._lay_out(layouts)
            copy, sources, _ = self._walk(value)
        by_device: dict[torch.device, list[int]] = {}
        for i, layout in enumerate(layouts):
            if layout.numel:
                by_device.setdefault(layout.device, []).append(i)
        for device, indices in by_device.items():
            if self._is_host(device):
                self._copy_together([self._hosts[i] for i in indices], [sources[i] for i in indices])
            else:
                self._gather(sources, indices, device)
        for device in by_device:
            if device.type == 'cuda':
                torch.cuda.current_stream(device).synchronize()
        return copy

    @torch.no_grad()
    def _gather(self, sources: Sequence[Tensor], indices: Sequence[int], device: torch.device) -> None:
        """Copy tensors of one device by way of one piece of its memory; the transfers may be under way on return."""
        todo = sorted(indices, key=lambda i: self._offsets[i])
        staging: Tensor | None = None
        while todo:
            start, count = self._offsets[todo[0]], 1
            if self._end(todo[0]) - start > self._chunk:
                self._hosts[todo[0]].copy_(sources[todo[0]], non_blocking=True)
                del todo[0]
                continue
            while count < len(todo) and self._end(todo[count]) - start <= self._chunk:
                count += 1
            now, todo = todo[:count], todo[count:]
            length = self._end(now[-1]) - start
            if staging is None or staging.numel() < length:
                rest = self._end((todo or now)[-1]) - start
                # The stream orders its reuse: a chunk is copied in after the one before it has left.
                staging = torch.empty(min(self._chunk, _aligned(rest)), dtype=torch.uint8, device=device)
            typed = {dtype: staging.view(dtype) for dtype in {self._layouts[i].dtype for i in now}}
            views = []
            for i in now:
                _, dtype, size, stride = self._layouts[i]
                place = (self._offsets[i] - start) // dtype.itemsize
                views.append(typed[dtype].as_strided(size, _dense(size, stride), place))
            self._copy_together(views, [sources[i] for i in now])
            self._memory[start : start + length].copy_(staging[:length], non_blocking=True)

    @staticmethod
    def _is_host(device: torch.device) -> bool:
        return device.type == 'cpu'

    @staticmethod
    @torch.no_grad()
    def _copy_together(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for target, source in zip(targets, sources, strict=True):
            pair = by_dtype.setdefault(source.dtype, ([], []))
            pair[0].append(target)
            pair[1].append(source)
        for to, of in by_dtype.values():
            torch._foreach_copy_(to, of)

    def _walk(self, value: Any) -> tuple[Any, list[Tensor], list[_Layout]]:
        """The value with the host's tensors as far as there are any, its tensors, and how these lie."""
        sources: list[Tensor] = []
        layouts: list[_Layout] = []
        seen: dict[int, int] = {}
        hosts = self._hosts

        def host(tensor: Tensor) -> Tensor:
            if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
                return tensor.detach().to('cpu', copy=True)
            layout = _Layout(tensor.device, tensor.dtype, tensor.shape, tensor.stride())
            i = seen.setdefault(tensor.data_ptr(), len(sources))
            if i == len(sources) or layouts[i] != layout:  # a new place, or another look at one
                i = len(sources)
                sources.append(tensor)
                layouts.append(layout)
            return hosts[i] if i < len(hosts) else tensor

        return plain(value, tensor=host), sources, layouts

    def _lay_out(self, layouts: list[_Layout]) -> None:
        """Make memory with a place for each tensor, those of a device together."""
        order = sorted(range(len(layouts)), key=lambda i: str(layouts[i].device))
        self._layouts, self._hosts = [], []  # the old memory goes before the new one comes
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._offsets = [0] * len(layouts)
        end = 0
        for i in order:
            self._offsets[i] = end
            end += _aligned(layouts[i].numel * layouts[i].dtype.itemsize)
        pinned = any(layout.device.type == 'cuda' for layout in layouts)
        self._memory = torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
        buffer = self._memory.numpy()
        self._hosts = [_own(buffer, offset, layout) for offset, layout in zip(self._offsets, layouts, strict=True)]
        self._layouts = layouts  # last: with these and no memory, the next ``take`` would hand out the live tensors

    def _end(self, i: int) -> int:
        layout = self._layouts[i]
        return self._offsets[i] + layout.numel * layout.dtype.itemsize


def _own(buffer: Any, offset: int, layout: _Layout) -> Tensor:
    """A tensor over a part of the buffer, with a storage that ends with it, unlike that of a view."""
    stride = _dense(layout.size, layout.stride)
    if not layout.numel:
        return torch.empty_strided(layout.size, stride, dtype=layout.dtype)
    flat = torch.frombuffer(buffer, dtype=layout.dtype, count=layout.numel, offset=offset)
    return flat.as_strided(layout.size, stride)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@functools.cache
def _dense(size: torch.Size, stride: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that a transfer gives: the same ones, unless there are gaps or overlaps."""
    return torch.empty_strided(size, stride, device='meta').to('meta', copy=True).stride()
