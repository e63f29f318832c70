"""The CPU stand-in for CUDA graphs: records real operators and replays them on static memory.

It models what a shared graph pool does to memory that nobody may rely on: a replay fills it with NaN. A forward
replay destroys the gradient buffers of every recording in the pool, a backward replay the saved activations.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from lucid.capture.graph import Graph
from lucid.capture.operators import HostMethods, refuse, storage_id, tensors_in

T = TypeVar('T')


class Call(NamedTuple):
    """One recorded operator with its baked-in Python values."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fresh: tuple[tuple[int, Tensor], ...]  # (position among the result's tensors, where to keep it)
    grad_mode: bool


class TapeMemory:
    """Memory of tapes; ``shared=False`` models separate pools for forwards and backwards."""

    device = torch.device('cpu')
    num_warm_ups = 1
    runs_to_record = True

    def __init__(self, *, shared: bool = True) -> None:
        self.shared = shared
        self.tapes: list[Tape] = []

    def warm_up(self, body: Callable[[], object]) -> None:
        """Run ``body``; on the CPU there is nothing to warm."""
        body()

    def graphs(self) -> tuple[Graph, Graph]:
        """A forward and a backward tape."""
        forward = Tape(self, pair=None)
        return forward, Tape(self, pair=forward)

    def num_bytes(self) -> int:
        """Bytes of every tensor that the tapes made."""
        return sum(tensor.nbytes for tape in self.tapes for tensor in tape.made.values())

    def poison(self, replaying: 'Tape') -> None:
        """Destroy what the replay of ``replaying`` may write: all of its pool that its pair does not need."""
        for tape in self.tapes:
            same_pool = self.shared or tape.is_backward == replaying.is_backward
            if same_pool and tape is not replaying.pair:
                tape.poison()


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A graph that re-executes each operator and copies its result to the recorded address.

    Random operators draw again from the default generator. In-place operators work on the recorded tensors themselves,
    views need no replay.
    """

    def __init__(self, memory: TapeMemory, *, pair: 'Tape | None') -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = memory
        self.pair = pair
        self.calls: list[Call] = []
        self.made: dict[int, Tensor] = {}  # by storage
        self._kept: frozenset[int] = frozenset()  # storages of what `record` returned

    @property
    def is_backward(self) -> bool:
        """Whether this tape reads the activations of a forward."""
        return self.pair is not None

    def record(self, body: Callable[[], T]) -> T:
        """Run ``body`` and keep its operators."""
        with HostMethods(), self:
            result = body()
        self._kept = frozenset(storage_id(tensor) for tensor in tensors_in(result))
        self.memory.tapes.append(self)
        return result

    def replay(self) -> None:
        """Run the operators again, as the recorded ones ran: below autograd and autocast."""
        self.memory.poison(self)
        # The recorded grad mode and requires_grad are kept: convolution picks its CPU kernel by them.
        with torch.no_grad(), torch._C._DisableAutocast(), torch._C._AutoDispatchBelowAutograd():
            for call in self.calls:
                torch._C._set_grad_enabled(call.grad_mode)
                result = call.func(*call.args, **call.kwargs)
                if call.fresh:
                    tensors = tensors_in(result)
                    for position, kept in call.fresh:
                        kept.copy_(tensors[position])
        if self.pair is not None and self.memory.shared:
            self.pair.poison(keep_results=True)

    def poison(self, *, keep_results: bool = False) -> None:
        """Fill what this tape made with NaN, or with values that no index can have."""
        for key, tensor in self.made.items():
            if not (keep_results and key in self._kept):
                _poison(tensor)

    def release(self) -> None:
        """Drop the recorded operators and tensors."""
        self.calls.clear()
        self.made.clear()
        if self in self.memory.tapes:
            self.memory.tapes.remove(self)

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        refuse(func, args, kwargs)
        given = {storage_id(tensor) for tensor in tensors_in((args, kwargs))}
        held_args, held_kwargs = tree_map_only(Tensor, _alias, (tuple(args), kwargs))
        result = func(*args, **kwargs)
        results = tensors_in(result)
        fresh = tuple((i, tensor.detach()) for i, tensor in enumerate(results) if storage_id(tensor) not in given)
        for _, tensor in fresh:
            self.made.setdefault(storage_id(tensor), tensor)
        # A call that only makes views leaves nothing to do: the recorded view shows the recorded memory.
        if fresh or func._schema.is_mutable or not results:
            self.calls.append(Call(func, held_args, held_kwargs, fresh, torch.is_grad_enabled()))
        return result


def _alias(tensor: Tensor) -> Tensor:
    """The same memory without the autograd graph, which would otherwise live as long as the tape."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _poison(tensor: Tensor) -> None:
    flat = tensor.new_empty(0).set_(tensor.untyped_storage())
    if flat.dtype == torch.bool:
        flat.fill_(True)
    elif flat.is_floating_point() or flat.is_complex():
        flat.fill_(float('nan'))
    else:
        flat.fill_(torch.iinfo(flat.dtype).max - 2)
