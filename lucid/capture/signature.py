"""What a recording is valid for: the call's structure and inputs, and the ambient state of torch."""

from collections.abc import Mapping, Sequence
from operator import call
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten

from lucid.capture.errors import SignatureError
from lucid.capture.layout import dense_strides, mirror, shift_of, span

CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device)

# What the properties in torch.backends read: going through those took the host as long as a kernel launch.
_fp32_precision = torch._C._get_fp32_precision_getter
_AMBIENT = (
    torch.is_grad_enabled,
    torch.are_deterministic_algorithms_enabled,
    torch.get_float32_matmul_precision,
    torch.get_default_dtype,
    torch._C._get_cudnn_deterministic,
    torch._C._get_cudnn_benchmark,
)


class Signature(NamedTuple):
    """Two calls with equal signatures can be served by one recording."""

    inputs: tuple[Any, ...]
    structure: TreeSpec | int
    ambient: tuple[Any, ...]

    def describe(self) -> str:
        """The input shapes, for a log line."""
        shapes = ['x'.join(map(str, i[0])) + f' {str(i[1]).removeprefix("torch.")}' for i in self.inputs if len(i) > 1]
        return ', '.join(shapes) or 'no tensors'


def flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], TreeSpec | int]:
    """The leaves of a call and its structure; the count alone where every argument is a plain tensor."""
    if not kwargs and all(type(arg) is Tensor for arg in args):
        return list(args), len(args)
    leaves, structure = tree_flatten((tuple(args), dict(kwargs)))
    return leaves, structure


def unflatten(leaves: Sequence[Any], structure: TreeSpec | int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call that ``flatten`` took apart."""
    if isinstance(structure, int):
        return tuple(leaves), {}
    args, kwargs = structure.unflatten(leaves)
    return args, kwargs


def signature_of(leaves: Sequence[Any], structure: TreeSpec | int, device: torch.device) -> Signature:
    """The signature of a call of a region on ``device``; SignatureError for an input that has no static buffer."""
    return Signature(tuple(_describe(leaf, device) for leaf in leaves), structure, ambient(device.type))


def _describe(leaf: Any, device: torch.device) -> tuple[Any, ...]:
    if type(leaf) is Tensor or type(leaf) is nn.Parameter:
        if leaf.device != device or leaf.layout != torch.strided:
            raise SignatureError(
                f'an input of the target is a {leaf.layout} tensor on {leaf.device}, its parameters are on {device}',
                'move inputs in `prepare`, before the region',
            )
        return leaf.shape, leaf.dtype, leaf.stride(), shift_of(leaf), leaf.requires_grad
    if isinstance(leaf, CONSTANTS):
        return ((type(leaf), leaf),)
    raise SignatureError(
        f'an input of the target is a {type(leaf).__name__}, which has no static buffer',
        'pass tensors, constants, and tuples, lists, dicts or NamedTuples of them',
    )


def ambient(device_type: str) -> tuple[Any, ...]:
    """The state of torch that decides which kernels a call runs."""
    return (
        torch.is_autocast_enabled(device_type),
        torch.get_autocast_dtype(device_type),
        *map(call, _AMBIENT),
        _fp32_precision('cuda', 'conv'),
        _fp32_precision('cuda', 'matmul'),
    )


class StaticInputs:
    """The inputs of a recording: buffers for the tensors of a call, and its constants."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self.values = [static_like(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]  # of the buffers
        # Past the version counter: to an autograd graph of the recording, new inputs are not a change.
        self._memory = {i: self.values[i].data for i in self.positions}
        self._spans = {i: span(memory) for i, memory in self._memory.items() if not _is_dense(memory)}

    def fill(self, leaves: Sequence[Any]) -> None:
        """Copy the tensors of another call of the same signature in; gradients must be off."""
        for i in self.positions:
            if i in self._spans:
                self._spans[i].copy_(span(leaves[i]))
            else:
                self._memory[i].copy_(leaves[i])

    def versions(self) -> list[int]:
        """They rise when something writes a buffer in place."""
        return [self.values[i]._version for i in self.positions]


def static_like(tensor: Tensor) -> Tensor:
    """A buffer for inputs like ``tensor``: same layout, same requires_grad, its own memory."""
    with torch.no_grad():
        buffer = mirror(tensor.detach())
    return buffer.requires_grad_(tensor.requires_grad)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.stride() == dense_strides(tensor)
