"""One memory pool, the recordings that share it, and the hold that keeps them out of each other's way."""

import weakref
from typing import TYPE_CHECKING, Protocol

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
    the pool holds for the others.
    """

    def __init__(self, memory: Memory, ownership: Ownership) -> None:
        self.memory = memory
        self.ownership = ownership
        self.recordings: list[Recording] = []
        self.extras: list[Releasable] = []  # serve no call of their own, and go with the pool
        self._pending: weakref.ref[object] | None = None

    @property
    def held(self) -> bool:
        """Whether a replayed forward still waits for its backward.

        Until then a replay would overwrite the activations that the backward reads. The autograd node is held weakly:
        a loss that is dropped without backward frees it, and the pool with it.
        """
        return self._pending is not None and self._pending() is not None

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
