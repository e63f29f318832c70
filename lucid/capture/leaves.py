"""The autograd leaves of a recording: stand-ins for the parameters, and what a backward from an output reaches."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from lucid.capture.errors import RecordingError
from lucid.capture.graph import was_caching
from lucid.capture.operators import storage_id


class StandIns:
    """Stand-ins for the parameters of ``module`` while it is recorded: the same memory, autograd leaves of their own.

    The autograd node of a parameter lives as long as any graph that reaches it, and keeps the stream on which it was
    made. If a loss of the default stream still waits for its backward, a captured backward to the parameter itself
    would have that stream wait for the capturing one, which CUDA refuses. The node of a stand-in is made where the
    recording runs. It has no hooks either, and its version counter is its own: what waits outside is left alone.
    """

    def __init__(self, module: nn.Module) -> None:
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        # A tied parameter is listed once, and has one stand-in.
        self.pairs = [(_stand_in(parameter), parameter) for parameter in module.parameters()]
        by_original = {id(original): stand_in for stand_in, original in self.pairs}
        self._by_id = {id(stand_in): original for stand_in, original in self.pairs}
        self._tables = [
            (
                path,
                m._parameters,
                dict(m._parameters),
                {k: by_original[id(p)] for k, p in m._parameters.items() if p is not None},
            )
            for path, m in module.named_modules()
        ]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the modules hold the stand-ins; the parameters are back afterwards, whatever happens.

        Raises RecordingError if the target did to a parameter what reached its stand-in alone.
        """
        for _, table, _, stand_ins in self._tables:
            table.update(stand_ins)
        try:
            yield
            self._check()
        finally:
            for _, table, originals, _ in self._tables:
                for key in table.keys() - originals.keys():
                    del table[key]
                table.update(originals)

    def is_stand_in(self, leaf: Tensor) -> bool:
        """Whether ``leaf`` stands in for a parameter."""
        return id(leaf) in self._by_id

    def check(self, leaf: Tensor, num_uses: int, inputs: Sequence[Tensor]) -> None:
        """Raise RecordingError for a leaf that is neither a stand-in nor one of ``inputs``, or that autocast caches."""
        is_parameter = self.is_stand_in(leaf)
        if not is_parameter and not any(leaf is tensor for tensor in inputs):
            raise self.refuse(leaf)
        cached = torch.is_autocast_enabled(leaf.device.type) and was_caching()
        if cached and num_uses > 1 and is_parameter:
            raise RecordingError(
                f'a parameter of shape {tuple(leaf.shape)} is used {num_uses} times under the weight cache of '
                'autocast, which adds its gradients in low precision',
                'build autocast with cache_enabled=False',
            )

    def refuse(self, leaf: Tensor) -> RecordingError:
        """The error for a leaf that is neither a stand-in nor an input."""
        self._check()  # it may be what a parameter was rebound to
        if name := self._names.get(id(leaf)):
            return RecordingError(
                f'the target reads its parameter {name} through a reference of its own (a list, a closure, a view '
                'made before): a recording would not see its gradient',
                'read it as an attribute of the module that registers it',
            )
        return RecordingError(
            f'the target reads a tensor of shape {tuple(leaf.shape)} that requires gradients and is neither an '
            'input nor a parameter of it',
            'register it as a parameter of the target, or pass it as an input',
        )

    def _check(self) -> None:
        for path, table, originals, stand_ins in self._tables:
            for key in originals.keys() | table.keys():
                if table.get(key) is not stand_ins.get(key):
                    raise RecordingError(
                        f'the target rebinds its parameter {f"{path}.{key}".strip(".")} in forward: replays would not',
                        'write it in place, with copy_ or an in-place operator',
                    )
        for stand_in, original in self.pairs:
            if stand_in.data_ptr() != original.data_ptr() or stand_in.requires_grad != original.requires_grad:
                raise RecordingError(
                    f'the target moves its parameter {self._names[id(original)]}, or changes its requires_grad, in '
                    'forward: replays would not',
                    'do it before training',
                )


def _stand_in(parameter: nn.Parameter) -> nn.Parameter:
    stand_in = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
    vars(stand_in).update(vars(parameter))
    return stand_in


def leaves_of(outputs: Iterable[Tensor]) -> dict[int, tuple[Tensor, int]]:
    """The leaf tensors that a backward from ``outputs`` reaches, by id, each with the number of its uses."""
    uses: dict[int, tuple[Tensor, int]] = {}

    def count(leaf: Tensor) -> None:
        uses[id(leaf)] = (leaf, uses.get(id(leaf), (leaf, 0))[1] + 1)

    stack: list[Any] = []
    for output in outputs:
        if output.grad_fn is None:
            count(output)
        else:
            stack.append(output.grad_fn)
    seen: set[Any] = set(stack)
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is None:
                continue
            if type(node).__name__ == 'AccumulateGrad':
                count(node.variable)
            elif node not in seen:
                seen.add(node)
                stack.append(node)
    return uses


def kept_by(
    run: Callable[[], object], parameters: Sequence[Tensor], buffers: Sequence[Tensor], *, watched: bool
) -> list[Tensor]:
    """The parameters and buffers that autograd keeps in ``run`` for the backward: those whose change eager refuses.

    A backward that reads another one reads what it holds by then, eager and replayed. What is compiled may keep others
    when it is not ``watched``: then it is all of them, but for buffers that ``run`` writes itself. Left out are the
    statistics of a normalisation in training, two fifths of all that autograd keeps: its backward does not read them,
    and their operator writes them past the version by which autograd would see it.
    """
    before = [(buffer._version, buffer.detach().clone()) for buffer in buffers]
    kept = _saved_by(run, [*parameters, *buffers]) if watched else None
    if kept is None:
        run()
        kept = [*parameters, *(b for b, (version, _) in zip(buffers, before, strict=True) if b._version == version)]
    unseen = {
        id(buffer)
        for buffer, (version, value) in zip(buffers, before, strict=True)
        if buffer._version == version and not torch.isclose(buffer, value, rtol=0, atol=0, equal_nan=True).all()
    }
    return [tensor for tensor in kept if id(tensor) not in unseen]


def _saved_by(run: Callable[[], object], tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """Those of ``tensors`` whose memory autograd saves in ``run``; None where ``torch.func`` lets nobody watch."""
    memory = set[int]()
    with contextlib.suppress(RuntimeError), saved_tensors_hooks(lambda t: memory.add(storage_id(t)), _unasked):
        run()
        return [tensor for tensor in tensors if storage_id(tensor) in memory]
    return None


def _unasked(_: Any) -> Any:
    raise AssertionError('what was saved is never asked for')
