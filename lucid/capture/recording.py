"""One recording: the static buffers and the two graphs of one signature, and the autograd node of a replay."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten

from lucid.capture.backward import EagerBackward, differentiate
from lucid.capture.errors import BackwardError, RecordingError
from lucid.capture.gradients import FlatGradients
from lucid.capture.incoming import IncomingGradients
from lucid.capture.layout import is_plain, mirror
from lucid.capture.leaves import StandIns, kept_by, leaves_of
from lucid.capture.node import ReplayNode
from lucid.capture.operators import Inspector
from lucid.capture.pool import Pool
from lucid.capture.signature import CONSTANTS, Signature, StaticInputs, unflatten


class Recording:
    """The forward and backward of ``module`` for one signature.

    Must be built inside ``graph.quiet`` with the module's state saved: warm-up and recording run it for real.

    Inputs are copied into static buffers. Outputs are cloned before they leave, so that the caller may keep them.
    The gradient of an output that the backward did not read counts as zero, and parameters that no read output
    reaches get None, as in eager.
    """

    def __init__(self, module: nn.Module, leaves: Sequence[Any], signature: Signature, pool: Pool) -> None:
        self.signature = signature
        self.pool = pool
        self.released = False
        self.num_replays = 0
        self.parameters: list[nn.Parameter] = []
        self.num_uses: dict[int, int] = {}  # of each of them in the target, by id
        self.kept: list[Tensor] = []  # of the target, must not be written between forward and backward
        self.gradients: FlatGradients | None = None
        self.node = ReplayNode()
        self.incoming = IncomingGradients()
        self.on_eager_backward: Callable[[str], object] = str  # told the reason
        self.call: Callable[..., Any] = module._call_impl
        self._module = module
        self._stand_ins = StandIns(module)
        self._inputs = StaticInputs(leaves)
        self._input_positions = [i for i in self._inputs.positions if leaves[i].requires_grad]
        self._forward, self._backward = pool.memory.graphs()
        self._outputs: list[Tensor] = []
        self._copies: list[Callable[[Tensor], Tensor]] = []  # how each of them is copied, in its layout
        self._constants: dict[int, Any] = {}
        self._structure: TreeSpec | None = None
        self._differentiable: list[int] = []  # which outputs
        self._eager: EagerBackward | None = None
        self._reach: list[frozenset[int]] = []  # per differentiable output: positions among inputs and parameters
        self._by_read: dict[tuple[bool, ...], tuple[int, ...]] = {}
        self._outside: list[Tensor] = []

    def warm_up(self) -> None:
        """Run forward and backward on the static buffers as often as the memory asks; the first time inspected.

        Raises RecordingError if something in the target cannot be recorded; nothing has been captured yet.
        """
        inspector = Inspector(self.pool.memory.device)
        with self._stand_ins.in_place():
            self.pool.memory.warm_up(lambda: inspector.run(self._rehearse))
            for _ in range(self.pool.memory.num_warm_ups - 1):
                self.pool.memory.warm_up(self._rehearse)
        self._outside = list(inspector.outside.values())
        self._check_tied()
        with self._stand_ins.in_place():
            self.pool.memory.warm_up(self._find_kept)

    def record(self) -> None:
        """Record both graphs."""
        with self._stand_ins.in_place():
            self._record()

    def _record(self) -> None:
        incoming = self.incoming
        versions = self._inputs.versions()
        result = self._forward.record(self._run)
        if versions != self._inputs.versions():
            raise RecordingError(
                'the target writes into its input in place: the caller would see it in eager only',
                'work on a clone inside the target',
            )
        outputs = self._keep(result)
        wanted = self._trace(outputs)
        if wanted:
            read = [outputs[i] for i in self._differentiable]
            # The compiler brings gradients into a layout of its own, and frees what it keeps in the first backward.
            incoming.matter = self.call == self._module._call_impl
            incoming.make(read)
            gradients = FlatGradients(num_inputs=len(self._input_positions))
            gradients.adopt(self._backward.record(lambda: gradients.pack(self._grad(read, wanted, incoming.buffers))))
            self.gradients = gradients
            if incoming.may_differ:
                self._eager = EagerBackward(read, wanted, len(self._input_positions))
        self._outputs = [output.detach() for output in outputs]
        self._copies = [Tensor.clone if is_plain(output) else mirror for output in self._outputs]

    def replay(self, leaves: Sequence[Any], *, direct: bool = False) -> Any:
        """Replay the forward on the inputs ``leaves``; the caller owns what is returned.

        ``direct``: see ``ReplayNode.attach``.
        """
        self.pool.before_forward()
        with torch.no_grad():
            self._inputs.fill(leaves)
            self._forward.replay()
            outputs = self.copies()
        self.num_replays += 1
        if self.gradients is not None:
            inputs = [leaves[i] for i in self._input_positions]
            outputs = self.node.attach(self, outputs, inputs, direct=direct)
        assert self._structure is not None
        tensors = iter(outputs)
        num_leaves = len(outputs) + len(self._constants)
        return self._structure.unflatten(
            [self._constants[i] if i in self._constants else next(tensors) for i in range(num_leaves)]
        )

    def replay_backward(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Replay the backward; gradients of the inputs that require one, then of the parameters.

        Who owns them is the pool's ownership mode.
        """
        assert self.gradients is not None
        came = [grads[i] for i in self._differentiable]
        if not self.incoming.fit(came):
            return self._run_backward(came)
        self.pool.before_backward()
        read = tuple(grad is not None for grad in came)
        with torch.no_grad():
            self.take(came)
            self._backward.replay()
            views = self.pool.ownership.hand_out(self.gradients, self._reached(read))
        return list(map(views.get, range(len(self._input_positions) + len(self.parameters))))

    def take(self, grads: Sequence[Tensor | None]) -> None:
        """Copy the gradients of the differentiable outputs in; gradients must be off."""
        self.incoming.fill(grads)

    def _run_backward(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """As ``replay_backward``, but eager, on the activations of the last replay: for gradients of another layout."""
        self.incoming.learn(grads)
        if self._eager is None:
            raise BackwardError(
                'a gradient came into a replayed region with other strides than before, and the graph for an eager '
                'backward was given up for another recording',
                "make the loss's gradients alike in every step, or set on_new_signature='eager'",
            )
        self.on_eager_backward('a gradient came in with other strides than recorded')
        return self._eager.run(grads, memory=self.pool.memory)

    def give_up_graph(self) -> None:
        """Let the activations go that an eager backward would need: recordings made later may share their memory."""
        if self.incoming.fitted:
            self._eager = None

    def _reached(self, read: tuple[bool, ...]) -> tuple[int, ...]:
        """Positions that the outputs reach whose gradients were read."""
        if read not in self._by_read:
            reach = frozenset[int]().union(*(reach for reach, has in zip(self._reach, read, strict=True) if has))
            self._by_read[read] = tuple(sorted(reach))
        return self._by_read[read]

    def copies(self) -> list[Tensor]:
        """The outputs of the last replay in memory of their own: the next replay writes the static ones."""
        return [copy(output) for copy, output in zip(self._copies, self._outputs, strict=True)]

    def non_differentiable(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Those of ``outputs`` that have no gradient."""
        return [output for i, output in enumerate(outputs) if i not in self._differentiable]

    @property
    def outgrown(self) -> bool:
        """Whether the recording is to be made anew, for the layouts in which gradients come in."""
        return self.incoming.learned is not None

    def release(self) -> None:
        """Give the graphs back; a backward that still waits raises."""
        self.released = True
        self.node.release()
        self._eager = None
        self._forward.release()
        self._backward.release()

    def _run(self) -> Any:
        args, kwargs = unflatten(self._inputs.values, self.signature.structure)
        return self.call(*args, **kwargs)

    def _rehearse(self) -> None:
        outputs = self._keep(self._run())
        wanted = self._trace(outputs)
        if wanted:
            read = [outputs[i] for i in self._differentiable]
            grads = self._grad(read, wanted, [torch.zeros_like(output) for output in read])
            FlatGradients(num_inputs=len(self._input_positions)).pack(grads)

    def _find_kept(self) -> None:
        parameters = [parameter for _, parameter in self._stand_ins.pairs]
        watched = self.call == self._module._call_impl
        self.kept = kept_by(self._run, parameters, list(self._module.buffers()), watched=watched)

    def _grad(
        self, outputs: Sequence[Tensor], wanted: Sequence[Tensor], grad_outputs: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        return differentiate(outputs, wanted, grad_outputs, keep=self.incoming.may_differ)

    def _keep(self, result: Any) -> list[Tensor]:
        leaves, self._structure = tree_flatten(result)
        self._constants = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)}
        for leaf in self._constants.values():
            if not isinstance(leaf, CONSTANTS):
                raise RecordingError(
                    f'the target returns a {type(leaf).__name__}, which a recording cannot hand out',
                    'return tensors, and tuples, lists, dicts or NamedTuples of them',
                )
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def _trace(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Find what each output reaches; the static inputs that require a gradient, then the stand-ins reached."""
        self._differentiable = [i for i, output in enumerate(outputs) if output.requires_grad]
        inputs = [self._inputs.values[i] for i in self._input_positions]
        reached = leaves_of(outputs[i] for i in self._differentiable)
        for leaf, num_uses in reached.values():
            self._stand_ins.check(leaf, num_uses, inputs)
        pairs = [pair for pair in self._stand_ins.pairs if id(pair[0]) in reached]
        self.parameters = [parameter for _, parameter in pairs]
        self.num_uses = {id(parameter): reached[id(stand_in)][1] for stand_in, parameter in pairs}
        wanted = [*inputs, *(stand_in for stand_in, _ in pairs)]
        position = {id(tensor): i for i, tensor in enumerate(wanted)}
        self._reach = [frozenset(position[key] for key in leaves_of([outputs[i]])) for i in self._differentiable]
        return wanted if self._differentiable else []

    def _check_tied(self) -> None:
        """Refuse a sum that eager takes in another order: a replay adds the uses inside first, then those outside."""
        for name, parameter in self._module.named_parameters():
            uses = self.num_uses.get(id(parameter), 0)
            if uses > 1 and id(parameter) in self.node.outside:
                raise RecordingError(
                    f'the parameter {name} is used {uses} times in the target and by a module outside it, and its '
                    'gradient would be summed in another order',
                    'capture a target that holds all of its users, or none',
                )
