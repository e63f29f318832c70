"""One memory pool, the recordings that share it, and the hold that keeps them out of each other's way."""

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import torch

from lucid.capture.graph import Memory
from lucid.capture.ownership import Holder, Ownership

if TYPE_CHECKING:
    from lucid.capture.recording import Recording


class Releasable(Protocol):
    """What holds graph memory."""

    def release(self) -> None:
        """Give it back."""


class Pool:
    """Graph memory shared by the recordings of one region.

    Every replay goes through ``before_forward`` or ``before_backward``, because every replay may overwrite whatever
    the pool holds for the others. ``neighbours`` gives the pools whose recordings lie in the same memory and may leave
    something there: while one of them holds, this one is held too, and they are told of a replay beforehand.
    """

    def __init__(self, memory: Memory, ownership: Ownership) -> None:
        self.memory = memory
        self.ownership = ownership
        self.recordings: list[Recording] = []
        self.extras: list[Releasable] = []  # serve no call of their own, and go with the pool
        self.neighbours: Callable[[], Iterable[Pool]] = tuple
        self._pending: weakref.ref[object] | None = None

    @property
    def held(self) -> bool:
        """Whether a replayed forward still waits for its backward.

        Until then a replay would overwrite the activations that the backward reads. The autograd node is held weakly:
        a loss that is dropped without backward frees it, and the pool with it.
        """
        waits = self._pending is not None and self._pending() is not None
        return waits or any(pool.held for pool in self.neighbours())

    def hold(self, node: object) -> None:
        """``node`` is the autograd node of a forward that has just been replayed."""
        self._pending = weakref.ref(node)

    def settle(self, node: object) -> bool:
        """End the hold for the backward of ``node``; False if its activations are gone."""
        if self._pending is None or self._pending() is not node:
            return False
        self._pending = None
        return True

    def before_forward(self) -> None:
        """To call before each forward replay."""
        self.ownership.before_forward(self._holders())
        for pool in self.neighbours():
            pool.before_forward()

    def before_backward(self) -> None:
        """To call before each backward replay."""
        self.ownership.before_backward(self._holders())

    def add(self, recording: 'Recording') -> None:
        """A capture has succeeded."""
        self.recordings.append(recording)

    def remove(self, recording: 'Recording') -> None:
        """Release one recording; gradients that lie in its memory get their own first."""
        self.ownership.before_forward(self._holders())
        if recording in self.recordings:
            self.recordings.remove(recording)
        recording.release()

    def release(self) -> None:
        """Release every recording."""
        for recording in list(self.recordings):
            self.remove(recording)
        while self.extras:
            self.extras.pop().release()
        self._pending = None

    def _holders(self) -> list[Holder]:
        return [Holder(r.parameters, r.gradients) for r in self.recordings if r.gradients is not None]


class SharedMemory:
    """One memory per device for several regions: what makes memory, however often it is asked."""

    def __init__(self, make: Callable[[torch.device], Memory | None]) -> None:
        self._make = make
        self._memories: dict[torch.device, Memory | None] = {}

    def __call__(self, device: torch.device) -> Memory | None:
        """The memory of a device."""
        if device not in self._memories:
            self._memories[device] = self._make(device)
        return self._memories[device]
