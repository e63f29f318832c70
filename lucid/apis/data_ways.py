"""The ways in which the images of one training can come to the device, for measurements."""

import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset

from lucid.apis.data import build_dataloader
from lucid.structures.image_pool import ImagePool

WAYS = ('host', 'pool', 'files')
"""Workers draw; drawn on the device, its pool as full as it gets; drawn there, every image decoded each time."""


def loader_of(way: str, given: Mapping[str, Any], *, dataset: Dataset, seed: int, workers: int) -> DataLoader:
    """The loader of a training whose images come in one way.

    Args:
        way: One of ``WAYS``.
        given: ``train_dataloader`` of its config; what ``way`` and ``workers`` decide is overridden.
        dataset: What is loaded.
        seed: Of sampler and workers.
        workers: Processes, of one thread each; 0 loads in this one.

    Returns:
        The loader.
    """
    options = {**given, 'num_workers': workers, 'persistent_workers': workers > 0, 'device_images': way != 'host'}
    if way == 'host':
        options.pop('device_pool_mb', None)
    if way == 'files':
        options['device_pool_mb'] = 0
    return build_dataloader(options, dataset=dataset, seed=seed)


def pool_of(loader: DataLoader) -> ImagePool | None:
    """The pool of a loader whose images are drawn on the device."""
    return getattr(loader, 'pool', None)


def endless(loader: DataLoader, *, max_epochs: int | None = None) -> Generator[Any, None, None]:
    """Batches of a loader, epoch after epoch.

    Args:
        loader: The loader.
        max_epochs: Of the run, near whose end mosaic closes; None: no epoch is near the end of a run.

    Yields:
        Any: Batches.
    """
    set_epoch = getattr(loader.sampler, 'set_epoch', None)
    takes = inspect.signature(set_epoch).parameters if set_epoch else {}
    for epoch in itertools.count():
        if set_epoch is not None:
            ends = {} if max_epochs is None else {'max_epochs': max(max_epochs, epoch + 1)}
            set_epoch(epoch, **(ends if 'max_epochs' in takes else {}))
        yield from loader


def fill_pool(loader: DataLoader, batches: Iterator[Any], prepare: Callable[[Any], Any]) -> None:
    """Prepare batches for an epoch, or until the pool is full."""
    pool = pool_of(loader)
    for _ in range(len(loader)):
        if pool is None or pool.counts['dropped']:
            break
        prepare(next(batches))
