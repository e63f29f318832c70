"""Batches of a loader whose workers go on over the ends of epochs."""

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader


class BatchStream:
    """Batches of one epoch after the other, from one iteration of a loader: workers need not wait for an epoch to end.

    They begin the next one while the loop ends this one and validates, and read no more ahead than inside an epoch. The
    batches are those that the loader gives by itself, in the same order, if samples depend on nothing but the key that
    the sampler gives. What fails is raised in the epoch that it is of; nothing of an epoch after the last one is asked.

    Each epoch has its own copy of the sampler, taken when its first batch is asked of the workers. What is changed on
    the sampler later, by a hook that calls ``set_epoch`` say, does not reach that epoch. Nor does what is changed of
    the data set, as persistent workers have their own; an epoch has new ones while ``_DataLoader__initialized`` of the
    loader is False, by which hooks of mmdet and mmyolo ask for them.

    Args:
        loader: One that ``streams``, with a sampler whose ``set_epoch`` takes ``max_epochs`` and ``start``. It is not
            iterated; its workers are the stream's own.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self._begun: DataLoader | None = None
        self._plan: _Plan
        self._batches: Iterator[Any]
        self._next: tuple[int, int, int] | None = None  # what the iteration in hand goes on with

    def epoch(self, epoch: int, *, max_epochs: int, position: int = 0) -> Iterator[Any]:
        """Yield the batches of an epoch; where it does not follow on the one before, workers begin anew.

        Args:
            epoch: 0-based.
            max_epochs: Of the whole run.
            position: Batches of the epoch that are done.

        Yields:
            Any: Batches, as the loader does.

        Raises:
            Exception: What a worker, or the sampler, raised for this epoch.
        """
        is_outdated = not vars(self.loader)['_DataLoader__initialized']
        if is_outdated or self._next != (epoch, position, max_epochs):
            self._begin(epoch, position, max_epochs)
        self._next = None
        # torch asks for another batch before it hands one out: the plan knows here whether the epoch goes on.
        while self._plan.asked and self._plan.asked[0] == epoch:
            try:
                batch = next(self._batches)
            except StopIteration:
                assert self._plan.failure is not None, 'a batch that was asked for is not there'
                raise self._plan.failure from None
            self._plan.asked.popleft()
            yield batch
        self._next = (epoch + 1, 0, max_epochs)

    def close(self) -> None:
        """End the workers and drop what they have made; a later epoch starts new ones."""
        begun, self._begun, self._next = self._begun, None, None
        if begun is not None:
            close_workers(begun)

    def _begin(self, epoch: int, position: int, max_epochs: int) -> None:
        self.close()
        self._plan = _Plan(self.loader, epoch=epoch, position=position, max_epochs=max_epochs)
        self._begun = asking(self.loader, self._plan)
        self._batches = iter(self._begun)


class _Plan(BatchSampler):
    """What a loader asks of its workers: batches of one epoch after the other. Its length is an epoch's.

    Attributes: ``asked``, the epoch of each batch that was asked for and not yet taken; ``failure``, what the sampler
    raised instead of the last of these.
    """

    def __init__(self, loader: DataLoader, *, epoch: int, position: int, max_epochs: int) -> None:
        assert loader.batch_size is not None, 'such a loader does not stream'
        super().__init__(loader.sampler, loader.batch_size, loader.drop_last)
        self._epochs = range(epoch, max_epochs)
        self._start = position * loader.batch_size
        self.asked: deque[int] = deque()
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[list[Any]]:
        for epoch in self._epochs:
            try:
                sampler: Any = copy.copy(self.sampler)
                start = self._start if epoch == self._epochs[0] else 0
                sampler.set_epoch(epoch, max_epochs=self._epochs.stop, start=start)
                for keys in BatchSampler(sampler, self.batch_size, self.drop_last):
                    self.asked.append(epoch)
                    yield keys
            except Exception as error:  # noqa: BLE001 (raised in its epoch)
                self.asked.append(epoch)
                self.failure = error
                return


def streams(loader: DataLoader) -> bool:
    """Whether workers of a loader may go on over an epoch's end: they stay, their batches keep order and size.

    A class of its own may give others than it asks of its workers, fewer or merged ones: it must say that it does not,
    by ``gives_what_it_asks = True``, and so must one that is made of it.
    """
    known = type(loader) is DataLoader or vars(type(loader)).get('gives_what_it_asks', False)
    return bool(known and loader.persistent_workers and loader.in_order and loader.batch_size is not None)


def asking(loader: DataLoader, plan: BatchSampler) -> DataLoader:
    """A copy of a loader that asks its workers, which are its own, for what ``plan`` says."""
    copied = copy.copy(loader)
    # Not by assignment: torch refuses another batch sampler, as the iterator in hand would not know. Here is none.
    vars(copied).update(batch_sampler=plan, _iterator=None)
    return copied


def close_workers(loader: DataLoader) -> None:
    """End the workers that a loader keeps between epochs; a later iteration starts new ones.

    Left to the end of Python they are killed, which the loader takes for a crash and reports.
    """
    iterator = getattr(loader, '_iterator', None)
    if iterator is not None:
        iterator._shutdown_workers()
        loader._iterator = None
