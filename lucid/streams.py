"""Work that does not depend on each other, side by side on the streams of a card."""

import threading
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

T = TypeVar('T')


class _Lanes(threading.local):
    """The streams of one thread by (device, path of the fork, lane), and the path of the fork that it is in.

    A thread has its own: what one thread launched on a stream that another is capturing would be captured too.
    """

    def __init__(self) -> None:
        self.path: tuple[int, ...] = ()
        self.streams: dict[tuple[torch.device, tuple[int, ...], int], torch.cuda.Stream] = {}

    def stream(self, device: torch.device, lane: int) -> torch.cuda.Stream:
        """The stream of a lane other than 0 of the fork at the current path."""
        key = device, self.path, lane
        if key not in self.streams:
            self.streams[key] = torch.cuda.Stream(device)
        return self.streams[key]


_LANES = _Lanes()


def side_by_side(calls: Sequence['partial[T]'], *, lanes: int | None = None) -> list[T]:
    """The results of ``calls``, called in their order; on a card the work that they launch runs at the same time.

    The first lane is the current stream, each further one a stream of its own; the calls take them in turn. All lanes
    start after what the current stream has done, and it goes on after all of them. Forks nest. The host launches the
    same kernels in the same order as without lanes, and the order in which a backward adds gradients goes by the order
    of launching the forward: the results and all gradients have the same bits. Inside the capture of a graph the lanes
    become branches of the graph. Autograd runs each backward on the stream of its forward, orders streams by itself
    where a gradient crosses, and has the stream that called the backward wait for all of them.

    Plain calls, one after the other, where no argument is on a card, under ``torch.compile``, and with one lane.

    Args:
        calls: Their arguments, nested at will, must hold every tensor that they read, apart from what outlives the
            step, as parameters do: the allocator is told of these and of the results that they cross streams, or it
            would hand out their memory while the other stream still reads it.
        lanes: At most this many; None gives each call its own.

    Returns:
        One per call, to be used on the current stream.

    Source: PyTorch's notes on CUDA semantics and on autograd, "Stream semantics of backward passes".
    """
    device = _card(calls)
    num_lanes = min(len(calls), len(calls) if lanes is None else lanes)
    if num_lanes < 2 or device is None or torch.compiler.is_compiling():
        return [call() for call in calls]
    return _fork(calls, device, num_lanes)


def _fork(calls: Sequence['partial[T]'], device: torch.device, num_lanes: int) -> list[T]:
    current, path = torch.cuda.current_stream(device), _LANES.path
    streams = [current, *(_LANES.stream(device, lane) for lane in range(1, num_lanes))]
    for stream in streams[1:]:
        stream.wait_stream(current)
    results: list[T] = []
    try:
        for i, call in enumerate(calls):
            lane = i % num_lanes
            if lane:
                _crosses((call.args, call.keywords), streams[lane])
            _LANES.path = (*path, lane)
            with torch.cuda.stream(streams[lane]):
                results.append(call())
    finally:
        _LANES.path = path
        # Also after an error: a capture cannot end while a stream that it has taken in has not come back.
        for stream in streams[1:]:
            current.wait_stream(stream)
    _crosses([result for i, result in enumerate(results) if i % num_lanes], current)
    return results


def _card(calls: Sequence['partial[T]']) -> torch.device | None:
    """The card that the first tensor among the arguments is on."""
    for call in calls:
        for leaf in tree_leaves((call.args, call.keywords)):
            if isinstance(leaf, Tensor):
                return leaf.device if on_card(leaf) else None
    return None


def on_card(tensor: Tensor) -> bool:
    """Whether there are streams where ``tensor`` is."""
    return tensor.is_cuda


def _crosses(tree: object, stream: torch.cuda.Stream) -> None:
    """Keep the memory of the tensors in ``tree`` from being handed out before ``stream`` is done with it."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            leaf.record_stream(stream)
