"""Casting the weights of many convolutions at once."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def weights_cast(*modules: nn.Module, together: bool) -> AbstractContextManager[None]:
    """Inside, the convolutions of ``modules`` read weights and biases that one fused operator has cast for autocast.

    Autocast would cast each weight when it is used, and each of their gradients. The numbers are the same, with some
    250 kernels less in a step of scale n, if each convolution is called once: gradients of two calls are added before
    they are cast, as with autocast's cache. Nothing inside may switch autocast off, or differentiate twice. What is
    cast here must reach the same outputs as a whole, since the backward casts all gradients when the last of them is
    there. Streams that are forked inside must not read what was cast outside. Does nothing without autocast, under
    ``torch.compile``, which fuses casts by itself, and if not together.

    Args:
        *modules: They and their submodules; their parameters stay what they are.
        together: False leaves the casts to autocast.

    Returns:
        The context, to be left before the backward.
    """
    if not together or torch.compiler.is_compiling():
        return nullcontext()
    convs = [child for module in modules for child in module.modules() if isinstance(child, nn.Conv2d)]
    kind = convs[0].weight.device.type if convs else 'meta'
    # Asked about a device that has no autocast, as meta, torch raises.
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return _shadowed(convs, torch.get_autocast_dtype(kind))


class Stage(nn.Sequential):
    """A sequence of layers whose weights are cast together if ``cast_together`` is set."""

    cast_together = False

    def forward(self, x: Tensor) -> Tensor:
        """The layers in turn."""
        with weights_cast(self, together=self.cast_together):
            result: Tensor = super().forward(x)
            return result


def set_cast_together(network: nn.Module, *, together: bool = True) -> None:
    """Let the parts of ``network`` that know ``weights_cast`` use it, or no longer."""
    for module in network.modules():
        if hasattr(type(module), 'cast_together'):
            vars(module)['cast_together'] = together


@contextlib.contextmanager
def _shadowed(convs: Sequence[nn.Conv2d], dtype: torch.dtype) -> Iterator[None]:
    found = [
        (vars(conv), name, parameter)
        for conv in convs
        for name, parameter in conv.named_parameters(recurse=False)
        if parameter.dtype == torch.float32 and name not in vars(conv)  # cast by a stage around this one
    ]
    casts = _Cast.apply(dtype, *(parameter for _, _, parameter in found))
    # An attribute of the instance hides the parameter; the tables of parameters are left alone.
    for (attributes, name, _), cast in zip(found, casts, strict=True):
        attributes[name] = cast
    try:
        yield
    finally:
        for attributes, name, _ in found:
            del attributes[name]


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        casts = _cast(weights, dtype)
        # A weight that is frozen needs no gradient beside one that is not.
        ctx.mark_non_differentiable(*(c for c, need in zip(casts, ctx.needs_input_grad[1:], strict=True) if not need))
        return tuple(casts)

    @staticmethod
    @once_differentiable
    def backward(_: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        wide = iter(_cast([grad for grad in grads if grad is not None], torch.float32))
        return None, *(None if grad is None else next(wide) for grad in grads)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    casts = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if casts:
        torch._foreach_copy_(casts, list(tensors))
    return casts
