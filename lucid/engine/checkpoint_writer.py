"""The files of a run's checkpoints, written beside training in the order in which they were decided on."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from lucid.engine import checkpoint as files
from lucid.engine.background import Background
from lucid.engine.snapshot import Snapshot

Place = tuple[int, int]
"""Epochs and iterations done."""
MOST_SNAPSHOTS = 2


class CheckpointWriter:
    """Copies a state to the host, and has another thread write it and what links to it.

    The caller waits for the copy only, unless two of them wait to be written. What fails is the last that is tried, and
    is raised by the next ``save`` or ``finish``, the very exception.

    Attributes: ``place``, of the ``last`` that is there when all is written; ``landed``, of the one that is there now.
    Both are None for a file of another run.
    """

    def __init__(self) -> None:
        self.place: Place | None = None
        self.landed: Place | None = None
        self._background = Background('checkpoint')
        self._snapshots: list[tuple[Snapshot, Future[None]]] = []  # with the writes that need them, the oldest first

    def start_from(self, place: Place) -> None:
        """Take the ``last`` that is there for this run's.

        Args:
            place: Where it was written.
        """
        self.place = self.landed = place

    def save(self, collect: Callable[[], Any], place: Place, *, last: Path, previous: Path) -> None:
        """Have ``last`` written, with the one before it kept as ``previous`` if it is this run's and of another place.

        Args:
            collect: Returns the state, whose tensors may change as soon as this returns; called after errors are told.
            place: Of the state.
            last: File.
            previous: File.

        Raises:
            TypeError: The state holds what a checkpoint cannot hold.
            OSError: An earlier file was not written.
        """
        self._raising(self._background.check)
        snapshot = self._free_snapshot()
        content = snapshot.take(collect())
        before = self.place

        def land() -> None:
            if before not in (None, place) and last.is_file():  # a foreign one may be damaged
                files.link(last, previous)
            files.save_plain(content, last)
            self.landed = place

        self._snapshots.append((snapshot, self._background.submit(land)))
        self.place = place

    def link(self, source: Path, target: Path, *, instead_of: Iterable[Path] = ()) -> None:
        """Have ``target`` made the file that ``source`` is by then.

        Args:
            source: File.
            target: File.
            instead_of: Files that go, if they are there.
        """
        old = list(instead_of)

        def link() -> None:
            files.link(source, target)
            for path in old:
                path.unlink(missing_ok=True)

        self._background.submit(link)

    def finish(self) -> None:
        """Wait until all is written, and free the copies.

        Raises:
            OSError: A file was not written.
        """
        self._raising(self._background.finish)
        self._snapshots.clear()

    def _raising(self, wait: Callable[[], None]) -> None:
        try:
            wait()
        except Exception:
            self.place = self.landed  # what was to follow a failed write is left out
            raise

    def _free_snapshot(self) -> Snapshot:
        """One that no write needs, after waiting for the oldest where there are as many as may be."""
        if not self._snapshots or (len(self._snapshots) < MOST_SNAPSHOTS and not self._snapshots[0][1].done()):
            return Snapshot()
        snapshot, written = self._snapshots.pop(0)
        written.result()
        self._raising(self._background.check)
        return snapshot
