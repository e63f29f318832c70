"""Which operators a recording cannot hold, and the dispatch mode that refuses them by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lucid.capture.errors import DynamicShapeError, HostReadError, RecordingError

HOST_READS = frozenset({'aten::_local_scalar_dense', 'aten::item', 'aten::is_nonzero', 'aten::equal', 'aten::allclose'})
DYNAMIC_SHAPES = frozenset(
    {
        'aten::nonzero',
        'aten::masked_select',
        'aten::_unique',
        'aten::_unique2',
        'aten::unique_dim',
        'aten::unique_consecutive',
        'aten::unique_dim_consecutive',
        'aten::bincount',
        'aten::repeat_interleave',
        'torchvision::nms',
    }
)
INDEXED = frozenset(
    {'aten::index', 'aten::_unsafe_index', 'aten::index_put', 'aten::index_put_', 'aten::_index_put_impl_'}
)
REALLOCATED = frozenset({'aten::resize_', 'aten::resize_as_', 'aten::set_'})

# These do not reach the dispatcher: the function mode sees them, where they are called on a tensor from Python.
HOST_METHODS = frozenset(
    {'tolist', 'numpy', '__array__', '__dlpack__', 'item', '__bool__', '__float__', '__int__', '__index__'}
)


def refuse(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise the error that names ``func`` if no recording can hold this call of it."""
    name = func._schema.name
    if name in HOST_READS:
        raise _host_read(name)
    if name == 'aten::repeat_interleave' and kwargs.get('output_size') is not None:
        return
    if name in DYNAMIC_SHAPES:
        raise _dynamic(name)
    if name in INDEXED and any(_is_mask(index) for index in args[1]):
        raise _dynamic(f'{name} with a boolean index')
    if name in REALLOCATED:
        raise RecordingError(
            f'the target calls {name}, which moves a tensor that the graph holds by address',
            'write into a tensor of fixed size with copy_',
        )
    if name in ('aten::_to_copy', 'aten::copy_') and _crosses_devices(name, args, kwargs):
        raise HostReadError(
            f'the target copies between the host and the device ({name})',
            'make constants once, as buffers, and keep the step on one device',
        )


def _host_read(name: str) -> HostReadError:
    return HostReadError(
        f'the target reads a tensor on the host ({name}): a recording would keep the value of its first call',
        'keep the value in a 0-d tensor, and use torch.where in place of `if`',
    )


def _dynamic(name: str) -> DynamicShapeError:
    return DynamicShapeError(
        f'the target makes a tensor whose shape depends on values ({name})',
        'keep the shape and mask with torch.where',
    )


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _crosses_devices(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if name == 'aten::copy_':
        return bool(args[0].device.type != args[1].device.type)
    device = kwargs.get('device')
    return device is not None and bool(torch.device(device).type != args[0].device.type)


def storage_id(tensor: Tensor) -> int:
    """Identity of the tensor's memory; unique as long as something holds the memory."""
    return int(tensor.untyped_storage()._cdata)


def tensors_in(tree: object) -> list[Tensor]:
    """The tensors of a nested structure, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class HostMethods(TorchFunctionMode):
    """Refuses the tensor methods that read on the host without a dispatched operator."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, '__name__', '')
        if name in HOST_METHODS:
            raise _host_read(f'Tensor.{name}')
        if name in ('tensor', 'as_tensor') and torch.device((kwargs or {}).get('device') or 'cpu').type != 'cpu':
            raise HostReadError(
                f'the target makes a tensor on the device from host data (torch.{name})',
                'make constants once, as buffers',
            )
        return func(*args, **(kwargs or {}))


class Inspector(TorchDispatchMode):
    """Watches a warm-up: refuses what cannot be recorded, and keeps the outside tensors that the target reads.

    A graph reads an outside tensor (a cached grid, a plain attribute) by address. ``outside`` holds them, so that
    the memory outlives the module's own reference.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.outside: dict[int, Tensor] = {}
        self._made: set[int] = set()  # keys only: holding the tensors would hold every activation at once

    def run(self, body: Callable[[], object]) -> None:
        """Run ``body`` under inspection and forget what it made."""
        with HostMethods(), self:
            body()
        self._made.clear()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        refuse(func, args, kwargs)
        given = tensors_in((args, kwargs))
        self._check_devices(func, given)
        for tensor in given:
            key = storage_id(tensor)
            if key not in self._made and key not in self.outside:
                self.outside[key] = tensor.detach()
        result = func(*args, **kwargs)
        made = tensors_in(result)
        self._check_devices(func, made)
        for tensor in made:
            key = storage_id(tensor)
            if key not in self.outside:
                self._made.add(key)
        return result

    def _check_devices(self, func: Any, tensors: Iterable[Tensor]) -> None:
        """Refuse host tensors beside a card: a kernel takes the value of a 0-d one when it is launched."""
        if self._device.type != 'cpu' and any(tensor.device.type == 'cpu' for tensor in tensors):
            raise HostReadError(
                f'the target uses a tensor on the CPU ({func._schema.name}): replays would keep its first value',
                'keep it in a buffer on the device, or write a Python number',
            )
