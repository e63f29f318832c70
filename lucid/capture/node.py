"""The autograd node of replayed forwards."""

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lucid.capture.errors import BackwardError

if TYPE_CHECKING:
    from lucid.capture.recording import Recording

_version: Callable[[Tensor], int] = attrgetter('_version')


class ReplayNode:
    """Puts a recording into the autograd graph of the caller, once per replay.

    A node of hundreds of parameters takes the host longer to make than all else in a replay. So the parameters hang on
    one lasting node behind an anchor, and each replay makes a node of its inputs and the anchor only. Not so those of
    ``outside``, the ids of parameters that the model uses outside the target as well: the lasting node is older than
    the outside uses, autograd would come to it after them, and sum in another order than in eager. The same holds for
    all of them where an eager call of the target comes before the replay and may wait for the same backward.
    """

    def __init__(self) -> None:
        self.outside: Collection[int] = ()
        self._direct: list[int] = []  # positions among the parameters
        self._behind: list[int] = []
        self._anchor: Tensor | None = None
        self._passed = _Passed()

    def attach(
        self, recording: 'Recording', outputs: list[Tensor], inputs: Sequence[Tensor], *, direct: bool
    ) -> list[Tensor]:
        """Return ``outputs`` as results of ``inputs`` and the parameters; grad mode must be on.

        ``direct`` leaves the lasting node out: an eager call of the target has just used the parameters too.
        """
        parameters = recording.parameters
        self._passed.grads = []  # of a backward that did not want the parameters
        if direct:
            return list(_Replay.apply(self, recording, outputs, True, *inputs, *parameters))
        if self._anchor is None:
            self._direct = [i for i, parameter in enumerate(parameters) if id(parameter) in self.outside]
            self._behind = [i for i, parameter in enumerate(parameters) if id(parameter) not in self.outside]
            self._anchor = _Parameters.apply(self._passed, outputs[0], *(parameters[i] for i in self._behind))
        alone = (parameters[i] for i in self._direct)
        return list(_Replay.apply(self, recording, outputs, False, *inputs, *alone, self._anchor))

    def backward(self, ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """Replay the backward for the node ``ctx``; gradients of all that the node was made of.

        Raises BackwardError where a replay would not compute what eager does.
        """
        recording: Recording | None = ctx.recording
        if torch.is_grad_enabled():
            raise BackwardError('create_graph through a replayed region', 'leave the region out of the capture')
        if recording is not None and recording.released:
            raise BackwardError(
                'the region was released, or its recording retired, before this backward', 'call backward before'
            )
        if recording is None or not recording.pool.settle(ctx):
            raise BackwardError(
                'a second backward through a replayed region: the first one may have overwritten its activations',
                'sum the losses and call backward once, or leave the region out of the capture',
            )
        ctx.recording = None  # a loss that is kept for later must not keep the graphs
        if ctx.versions != _versions(recording.kept):
            raise BackwardError(
                'a parameter or buffer was written in place between the forward and the backward of a replayed region',
                'call backward before the optimizer steps, or whatever else writes it',
            )
        found = recording.replay_backward(grads)
        return (None, None, None, None, *(found if ctx.direct else self._pass_on(found)))

    def _pass_on(self, grads: list[Tensor | None]) -> list[Tensor | None]:
        """Keep gradients for the lasting node; returns those of the inputs and of direct parameters, and a token."""
        num_inputs = len(grads) - len(self._direct) - len(self._behind)
        inputs, parameters = grads[:num_inputs], grads[num_inputs:]
        self._passed.grads = [parameters[i] for i in self._behind] if self._direct else parameters
        return [*inputs, *(parameters[i] for i in self._direct), self._passed.token]

    def release(self) -> None:
        """Let the parameters go."""
        self._anchor = None
        self._passed = _Passed()


class _Passed:
    """Gradients on their way from a replay's node to the lasting one; ``token`` is what autograd sees of them."""

    def __init__(self) -> None:
        self.grads: list[Tensor | None] = []
        self.token: Tensor | None = None


class _Parameters(torch.autograd.Function):
    """The lasting node; ``like`` is on the device of the region."""

    @staticmethod
    def forward(ctx: Any, passed: _Passed, like: Tensor, *_: Tensor) -> Tensor:
        ctx.passed = passed
        passed.token = like.new_zeros((), dtype=torch.float32)
        return like.new_zeros((), dtype=torch.float32)  # floating, or autograd would take it for a constant

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Any, ...]:
        grads, ctx.passed.grads = ctx.passed.grads, []
        return (None, None, *grads)


class _Replay(torch.autograd.Function):
    """The node of one replayed forward; ``outputs`` are its results, computed before."""

    @staticmethod
    def forward(
        ctx: Any, node: ReplayNode, recording: 'Recording', outputs: list[Tensor], direct: bool, *_: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.node, ctx.recording, ctx.direct = node, recording, direct
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*recording.non_differentiable(outputs))
        ctx.versions = _versions(recording.kept)
        recording.pool.hold(ctx)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        node: ReplayNode = ctx.node
        return node.backward(ctx, grads)


def _versions(tensors: Iterable[Tensor]) -> int:
    """Rises whenever one of the tensors is written in place."""
    return sum(map(_version, tensors))
