"""Graphs: what records a callable onto static memory and replays it, and the CUDA implementation.

A ``Memory`` is what the graphs of one pool share. ``lucid.capture.tape`` is the implementation for the CPU.
"""

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch

from lucid.capture.errors import CaptureError, RecordingError

T = TypeVar('T')


class Graph(Protocol):
    """One recorded callable."""

    def record(self, body: Callable[[], T]) -> T:
        """Record ``body`` and return what it returned: tensors at the addresses that every replay writes."""

    def replay(self) -> None:
        """Run the recorded work again, on what the static buffers hold now."""

    def release(self) -> None:
        """Give the graph back; a second call does nothing."""


class Memory(Protocol):
    """The private memory that the graphs of one pool share.

    A replay of any graph may write any of this memory, except the tensors that its own pair still needs.
    """

    device: torch.device
    num_warm_ups: int
    runs_to_record: bool  # whether a recording computes what it records

    def warm_up(self, body: Callable[[], object]) -> None:
        """Run ``body`` once where it will be recorded."""

    def graphs(self) -> tuple[Graph, Graph]:
        """A pair for one recording: its forward and its backward."""

    def num_bytes(self) -> int:
        """Bytes that the recordings have taken."""


_LOCK = threading.Lock()
_RECORDING = threading.local()


def is_recording() -> bool:
    """Whether this thread is inside ``quiet``: a region that is called there must run as plain code."""
    return getattr(_RECORDING, 'active', False)


def was_caching() -> bool:
    """Inside ``quiet``: whether autocast's weight cache was on outside."""
    return getattr(_RECORDING, 'cached', False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """One capture at a time, with garbage collection and autocast's weight cache off; both restored.

    Collection may free CUDA memory in the middle of a capture. A cached cast would be read from memory that autocast
    frees at the end of its context, and every later replay would use the weights of the first step.
    """
    if is_recording():
        raise CaptureError('a capture was started inside another one', 'capture the outer region only')
    with _LOCK:
        # Read inside the lock: another thread's capture has collection off, and that must not be what is restored.
        collecting, cached = gc.isenabled(), torch.is_autocast_cache_enabled()
        _RECORDING.active, _RECORDING.cached = True, cached
        gc.disable()
        torch.set_autocast_cache_enabled(False)
        try:
            yield
        finally:
            torch.set_autocast_cache_enabled(cached)
            if collecting:
                gc.enable()
            _RECORDING.active = False


# Graphs whose capture was broken off. The allocators keep a filter that points into the graph: it must not be freed.
_BROKEN: list[torch.cuda.CUDAGraph] = []


class CudaMemory:
    """A CUDA graph pool with the side stream on which everything in it is warmed up and captured.

    ``shared=False`` keeps forwards and backwards in separate pools: more memory, and gradient buffers that a
    forward replay does not touch. It exists to show what sharing does.
    """

    num_warm_ups = 3
    runs_to_record = False

    def __init__(self, device: torch.device, *, shared: bool = True) -> None:
        self.device = device
        self.shared = shared
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._handles: dict[str, Any] = {}
        self._num_live: dict[str, int] = {}
        self._num_bytes: dict[str, int] = {}

    def warm_up(self, body: Callable[[], object]) -> None:
        """Run ``body`` on the side stream, ordered after the current stream's work and before what follows."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        try:
            with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
                body()
        finally:
            # Also after an error: what puts the state back must not overtake what the body has launched.
            current.wait_stream(self.stream)

    def graphs(self) -> tuple[Graph, Graph]:
        """A forward and a backward graph in this pool."""
        gc.collect()  # dead cycles may hold memory, and graphs of a recording that is gone
        return CudaGraph(self, 'forward'), CudaGraph(self, 'forward' if self.shared else 'backward')

    def num_bytes(self) -> int:
        """Bytes that the captures added to the memory reserved from the device, of pools that still have a graph."""
        return sum(self._num_bytes.values())

    def enter(self, kind: str) -> Any:
        """The pool handle for a new capture."""
        # A pool whose last graph is gone is being freed: the allocator refuses to capture into it again.
        if not self._num_live.get(kind):
            self._handles[kind] = torch.cuda.graph_pool_handle()
        self._num_live[kind] = self._num_live.get(kind, 0) + 1
        return self._handles[kind]

    def leave(self, kind: str) -> None:
        """A graph of this kind is gone."""
        self._num_live[kind] -= 1
        if not self._num_live[kind]:
            self._num_bytes.pop(kind, None)  # the pool goes with its last graph

    def took(self, kind: str, num_bytes: int) -> None:
        """A capture reserved ``num_bytes`` more."""
        self._num_bytes[kind] = self._num_bytes.get(kind, 0) + max(num_bytes, 0)


class CudaGraph:
    """A CUDA graph in a ``CudaMemory``."""

    def __init__(self, memory: CudaMemory, kind: str) -> None:
        self._memory = memory
        self._kind = kind
        self._graph: torch.cuda.CUDAGraph | None = None

    def record(self, body: Callable[[], T]) -> T:
        """Capture ``body``; raises RecordingError if the capture is invalidated.

        The mode is ``thread_local``: under ``global`` an event query of a pin-memory thread would break the capture.
        The autograd engine runs a captured backward in its device thread, on the stream of the recorded forward;
        launches and private-pool allocations go by the *stream's* capture state, so that they are captured too, and a
        synchronization there fails in every mode because the stream itself is capturing.
        """
        memory = self._memory
        torch.cuda.synchronize(memory.device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(memory.device)
        graph = torch.cuda.CUDAGraph()
        handle = memory.enter(self._kind)
        # torch.cuda.graph does not leave its stream when ending the capture fails: enter and leave it here.
        with torch.cuda.device(memory.device), torch.cuda.stream(memory.stream):
            try:
                graph.capture_begin(pool=handle, capture_error_mode='thread_local')
                result = body()
                graph.capture_end()
            except BaseException as error:
                memory.leave(self._kind)
                _abandon(graph, handle, memory)
                named = isinstance(error, (CaptureError, torch.OutOfMemoryError))
                if isinstance(error, RuntimeError) and not named:
                    raise RecordingError(
                        f'the CUDA capture failed: {error}',
                        'remove what synchronizes from the target, or leave it out of the region',
                    ) from error
                raise
        self._graph = graph
        memory.took(self._kind, torch.cuda.memory_reserved(memory.device) - before)
        return result

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        assert self._graph is not None
        self._graph.replay()

    def release(self) -> None:
        """Free the graph; its tensors free their memory when they die."""
        if self._graph is not None:
            self._graph.reset()
            self._graph = None
            self._memory.leave(self._kind)


def _abandon(graph: torch.cuda.CUDAGraph, handle: Any, memory: CudaMemory) -> None:
    """End a capture that failed, and undo what it leaves behind in the allocators and the generators."""
    try:
        graph.capture_end()
        graph.reset()  # the target raised by itself: the capture was whole
    except RuntimeError:
        _heal(graph, handle, memory)


def _heal(graph: torch.cuda.CUDAGraph, handle: Any, memory: CudaMemory) -> None:
    """Repair the process after an invalidated capture, whose end torch leaves half done."""
    _BROKEN.append(graph)
    index = memory.device.index if memory.device.index is not None else torch.cuda.current_device()
    with contextlib.suppress(RuntimeError):  # allocations of the side stream would go on into the pool
        torch._C._cuda_endAllocateToPool(index, handle)
    with contextlib.suppress(RuntimeError):  # also clears the error that the broken capture left pending
        torch.cuda.synchronize(memory.device)
    # The default generator still believes to be inside the capture, and the next dropout would fail. A capture that
    # succeeds ends that belief, and keeps the state object that older recordings draw from.
    with contextlib.suppress(RuntimeError):
        healing, scratch = torch.cuda.CUDAGraph(), torch.zeros(1, device=memory.device)
        healing.capture_begin(capture_error_mode='thread_local')
        scratch.add_(1)
        healing.capture_end()
        healing.reset()


def cuda_memory(device: torch.device) -> Memory | None:
    """The memory for regions on ``device``: None where there is no CUDA, and the region runs eager."""
    return CudaMemory(device) if device.type == 'cuda' else None
