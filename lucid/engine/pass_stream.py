"""Batches of a loader that gives the same ones each time, whose workers begin the next time ahead."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from mmengine.dataset import DefaultSampler
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from lucid.engine.batch_stream import asking, close_workers, streams


class PassStream:
    """Batches of one pass over a data set after the other, from one iteration of a loader.

    When workers have made what a pass asks of them, they make the first batches of the next one and keep them until it
    begins: as many as they read ahead inside a pass, and of one pass ahead at most. Batches are those that the loader
    gives by itself, in the same order, if a sample depends on nothing but its index. What fails is raised in the pass
    that it is of.

    Args:
        loader: One that ``repeats``. It is not iterated; its workers are the stream's own.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self._begun: DataLoader | None = None
        self._plan: _Plan
        self._batches: Iterator[Any]
        self._is_between = False  # the pass before was taken to its end, and the workers have this one

    def batches(self, *, follows: Callable[[], bool]) -> Iterator[Any]:
        """Yield the batches of a pass; where none was begun, or the one before was left early, workers begin anew.

        Args:
            follows: Whether another pass comes; asked each time that nothing is left to ask for this one.

        Yields:
            Any: Batches, as the loader does.

        Raises:
            Exception: What a worker raised for this pass.
        """
        if not self._is_between:
            self._begin(follows)
        self._is_between = False
        plan = self._plan
        plan.follows = follows
        if plan.asked:
            plan.current = plan.asked[0]
        # torch asks for another batch before it hands one out: the plan knows here whether there is one of this pass.
        while plan.asked and plan.asked[0] == plan.current:
            batch = next(self._batches)
            plan.asked.popleft()
            yield batch
        self._is_between = bool(plan.asked)

    def close(self) -> None:
        """End the workers and drop what they have made; a later pass starts new ones."""
        begun, self._begun, self._is_between = self._begun, None, False
        if begun is not None:
            close_workers(begun)

    def _begin(self, follows: Callable[[], bool]) -> None:
        self.close()
        self._plan = _Plan(self.loader, follows)
        self._begun = asking(self.loader, self._plan)
        self._batches = iter(self._begun)


class _Plan(BatchSampler):
    """What a loader asks of its workers: the batches of one pass after the other. Its length is a pass's.

    Attributes: ``current``, the number of the pass that is taken; ``asked``, that of each batch that was asked for and
    not yet taken; ``follows``, see ``PassStream.batches``.
    """

    def __init__(self, loader: DataLoader, follows: Callable[[], bool]) -> None:
        assert loader.batch_size is not None, 'such a loader does not repeat'
        super().__init__(loader.sampler, loader.batch_size, loader.drop_last)
        self.follows = follows
        self.current = self._number = 0
        self.asked: deque[int] = deque()
        self._keys = super().__iter__()

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        keys = next(self._keys, None)
        if keys is None:
            # It may go on after it has stopped, when the next pass is taken: torch asks again for each batch taken.
            if self._number > self.current or not self.follows():
                raise StopIteration
            self._number += 1
            self._keys = super().__iter__()
            keys = next(self._keys)
        self.asked.append(self._number)
        return keys


def repeats(loader: DataLoader) -> bool:
    """Whether a loader's workers stay and its keys are the same in each pass, so that one may begin ahead."""
    sampler: Any = loader.sampler
    fixed = type(sampler) is SequentialSampler or (type(sampler) is DefaultSampler and not sampler.shuffle)
    return fixed and streams(loader)
