"""Who owns the gradients that leave a region.

Two modes. ``clone``: the backward hands out views of one fresh flat clone, and nobody ever sees graph memory.
``adopt``: autograd may adopt views of the graph's own memory as ``.grad``, and every ``.grad`` that lies there is
copied out before *any* replay of any recording of the pool. A forward replay already destroys gradients: the forward
freed temporaries during its capture, and the gradient buffers of the backward took their place.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from lucid.capture.gradients import FlatGradients


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
