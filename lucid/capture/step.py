"""The recordings of a training step: one for a micro-batch, one for what ends a window."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lucid.capture.accumulator import Accumulator
from lucid.capture.errors import RecordingError
from lucid.capture.leaves import StandIns, leaves_of
from lucid.capture.operators import Inspector
from lucid.capture.pool import Pool
from lucid.capture.signature import Signature, StaticInputs, unflatten
from lucid.capture.undo import Undo, preserved


class StepWrapper(Protocol):
    """What a step region needs of an optimizer wrapper: what the host decides apart from what the device computes."""

    window_ended: bool
    param_groups: list[dict[str, Any]]

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss over its window's number of micro-batches."""

    def amplify(self, loss: Tensor) -> Tensor:
        """What the backward starts from: the loss, times the loss scale if there is one."""

    def advance(self) -> None:
        """Count a micro-batch, on the host."""

    def step(self, *, apply: Callable[[], None]) -> None:
        """Fill the device scalars that ``apply`` reads, on the host, and call it."""

    def apply(self) -> None:
        """Make a step from the gradients and clear them, on the device."""

    def abandon(self) -> None:
        """Forget what an ``apply`` that was broken off has begun."""

    def baked(self) -> tuple[Any, ...]:
        """The Python values that a recording of ``apply`` holds."""


class MicroBatch:
    """Forward, loss, backward and the addition to the sums of one signature.

    ``model.compute(data, wrapper)`` gives the loss and the named values for the log; ``reached`` has the positions of
    the parameters, among those of ``sums``, that the loss reaches.
    """

    gradients = None  # none leaves graph memory
    outgrown = False  # none comes in, either

    def __init__(
        self,
        model: Any,
        wrapper: StepWrapper,
        leaves: Sequence[Any],
        signature: Signature,
        pool: Pool,
        sums: Accumulator,
    ) -> None:
        self.signature = signature
        self.num_replays = 0
        self.parameters: list[nn.Parameter] = []
        self.reached: list[int] = []
        self._model, self._wrapper, self._pool, self._sums = model, wrapper, pool, sums
        self._stand_ins = StandIns(model)
        self._position = {id(parameter): i for i, parameter in enumerate(sums.parameters)}
        self._inputs = StaticInputs(leaves)
        self._graph, _ = pool.memory.graphs()
        self._names: list[str] = []
        self._logs: list[Tensor] = []
        self._outside: list[Tensor] = []

    def warm_up(self) -> None:
        """Run the step on the static buffers as often as the memory asks, the first time inspected; all is undone.

        Raises RecordingError if something in it cannot be recorded.
        """
        self._outside = rehearse(self._pool, self._run, around=self._stand_ins.in_place)

    def record(self) -> None:
        """Record the step."""
        versions = self._inputs.versions()
        with self._stand_ins.in_place(), undone_on_tape(self._pool):
            self._logs = self._graph.record(self._run)
        if versions != self._inputs.versions():
            raise RecordingError(
                'the step writes into its batch in place: the caller would see it in eager only', 'work on a clone'
            )

    def replay(self, leaves: Sequence[Any]) -> dict[str, Tensor]:
        """Run the step on the inputs ``leaves``; the caller owns what is returned."""
        with torch.no_grad():
            self._inputs.fill(leaves)
            self._graph.replay()
            values = [value for stacked in self._logs for value in stacked.clone().unbind()]
        self.num_replays += 1
        return dict(zip(self._names, values, strict=True))

    def release(self) -> None:
        """Give the graph back."""
        self._graph.release()

    def _run(self) -> list[Tensor]:
        _, data = unflatten(self._inputs.values, self.signature.structure)
        loss, values = self._model.compute(data, self._wrapper)
        # As eager does, outside autocast.
        start = self._wrapper.amplify(self._wrapper.scale_loss(loss))
        found = leaves_of([start]) if start.requires_grad else {}
        for leaf, _ in found.values():
            if not self._stand_ins.is_stand_in(leaf):
                raise self._stand_ins.refuse(leaf)
        pairs = [pair for pair in self._stand_ins.pairs if id(pair[0]) in found]
        if not pairs:
            raise RecordingError('the loss reaches no parameter of the model', 'train something, or do not capture')
        grads = torch.autograd.grad(start, [stand_in for stand_in, _ in pairs])
        self.parameters = [parameter for _, parameter in pairs]
        self.reached = [self._position[id(parameter)] for parameter in self.parameters]
        with torch.no_grad():
            torch._foreach_add_([self._sums.views[i] for i in self.reached], list(grads))
        return self._stack(values)

    def _stack(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """One tensor for neighbours of one dtype: a replay clones few."""
        self._names = list(values)
        groups: list[list[Tensor]] = []
        for name, value in values.items():
            if not isinstance(value, Tensor):
                raise RecordingError(
                    f'the value {name!r} for the log is a {type(value).__name__}, which a replay would repeat',
                    'return tensors on the device',
                )
            if not groups or (groups[-1][0].dtype, groups[-1][0].shape) != (value.dtype, value.shape):
                groups.append([])
            groups[-1].append(value.detach())
        return [torch.stack(group) for group in groups]


class WindowEnd:
    """What ends a window: unscale, clip, update, and what follows a step, on gradients in the sums."""

    def __init__(self, wrapper: StepWrapper, pool: Pool, sums: Accumulator, pattern: tuple[bool, ...]) -> None:
        self.pattern = pattern
        self._wrapper, self._pool, self._sums = wrapper, pool, sums
        self._graph, _ = pool.memory.graphs()
        self._outside: list[Tensor] = []

    def warm_up(self) -> None:
        """Rehearse the step, inspected; all is undone."""
        self._outside = rehearse(self._pool, self._run, around=nullcontext)

    def record(self) -> None:
        """Record the step."""
        with undone_on_tape(self._pool):
            self._graph.record(self._run)
        self._sums.restore(self.pattern)

    def replay(self) -> None:
        """Make the step, and clear the gradients of the wrapper's parameters, as ``apply`` does."""
        self._graph.replay()
        owned = [parameter for group in self._wrapper.param_groups for parameter in group['params']]
        # Autograd must know that they were written: a graph that waits for its backward has saved them.
        torch.autograd.graph.increment_version([parameter for parameter in owned if parameter.grad is not None])
        for parameter in owned:
            parameter.grad = None

    def release(self) -> None:
        """Give the graph back."""
        self._graph.release()

    def _run(self) -> None:
        self._sums.restore(self.pattern)  # the end of `apply` takes them away
        self._wrapper.apply()


def rehearse(pool: Pool, run: Any, *, around: Any) -> list[Tensor]:
    """Run ``run`` as often as the memory asks, undone; the tensors from outside that it reads, to keep them alive."""
    inspector, undo = Inspector(pool.memory.device), Undo()
    with around(), undo:
        pool.memory.warm_up(lambda: inspector.run(run))
    for _ in range(pool.memory.num_warm_ups - 1):  # without modes, under which nothing is compiled
        with around(), preserved(undo.written):
            pool.memory.warm_up(run)
    return list(inspector.outside.values())


@contextmanager
def undone_on_tape(pool: Pool) -> Iterator[None]:
    """Undo what a recording computes where recording computes; on CUDA it does not."""
    with Undo() if pool.memory.runs_to_record else nullcontext():
        yield
