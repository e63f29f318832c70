"""Undoing what a rehearsal wrote."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lucid.capture.operators import storage_id, tensors_in


class Undo(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, keeps the values of tensors from outside before an operator writes them; puts them back at the end.

    An optimizer step is rehearsed this way: parameters, states, averages, gradients and the loss scale are bitwise as
    before. Enter it before other modes. Operators that write without saying so in their schema, as those of BatchNorm
    do, are not seen: ``State`` has the buffers of the model.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: list[Tensor] = []  # the memory that was written, when it has been put back
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: set[int] = set()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for memory, value in self._kept.values():
                memory.copy_(value)
        self.written = [memory for memory, _ in self._kept.values()]
        self._kept.clear()
        self._made.clear()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = {storage_id(tensor) for tensor in tensors_in((args, kwargs))}
        if func._schema.is_mutable:
            for tensor in _written(func, args, kwargs):
                key = storage_id(tensor)
                if key not in self._made and key not in self._kept:
                    memory = tensor.detach().new_empty(0).set_(tensor.untyped_storage())
                    self._kept[key] = (memory, memory.clone())
        result = func(*args, **kwargs)
        self._made |= {key for tensor in tensors_in(result) if (key := storage_id(tensor)) not in given}
        return result


@contextmanager
def preserved(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put the values of ``tensors`` back at the end."""
    values = [tensor.clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that a call writes, by its schema."""
    written: list[Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += tensors_in(args[i] if i < len(args) else kwargs.get(argument.name))
    return written
