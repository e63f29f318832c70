"""The backward of a recorded forward: what a graph records, and the same run eager."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lucid.capture.gradients import FlatGradients
from lucid.capture.graph import Memory


def differentiate(
    outputs: Sequence[Tensor], wanted: Sequence[Tensor], grads: Sequence[Tensor], *, keep: bool = False
) -> Sequence[Tensor | None]:
    """Gradients of ``wanted``, None where no output reaches it; ``keep``: the autograd graph may be used again."""
    # Eager calls backward outside autocast; under it, the matmuls of an fp32 island would be cast.
    with torch.autocast(outputs[0].device.type, enabled=False):
        return torch.autograd.grad(outputs, wanted, grads, allow_unused=True, retain_graph=keep)


class EagerBackward(NamedTuple):
    """The autograd graph of a recorded forward: a replay of that writes what it has saved.

    It serves gradients that come in another layout than the recorded one, with the kernels and the bits of eager. It
    holds the activations: none of their memory is free for later.
    """

    outputs: Sequence[Tensor]
    wanted: Sequence[Tensor]  # inputs first
    num_inputs: int

    def run(self, grads: Sequence[Tensor | None], *, memory: Memory) -> list[Tensor | None]:
        """Gradients of ``wanted`` on the activations of the last replay, in memory of their own."""
        read = [(output, grad) for output, grad in zip(self.outputs, grads, strict=True) if grad is not None]
        found = FlatGradients(num_inputs=self.num_inputs)

        def body() -> None:
            of, came = [output for output, _ in read], [grad for _, grad in read]
            # Packed: what autograd returns may be a saved tensor, which the next replay writes.
            found.adopt(found.pack(differentiate(of, self.wanted, came, keep=True)))

        with torch.no_grad():
            memory.warm_up(body)  # on the stream where the graph was made
            views = found.views(range(len(self.wanted)), owned=(False, False))
        return list(map(views.get, range(len(self.wanted))))
