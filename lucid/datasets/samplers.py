"""Which sample comes next, and where its randomness comes from."""

import math
import sys
from collections.abc import Iterator, Sized
from typing import NamedTuple

import numpy as np
from mmengine.dist import get_dist_info, sync_random_seed
from numpy.typing import NDArray
from torch.utils.data import Sampler

from lucid.registry import DATA_SAMPLERS


class SampleKey(NamedTuple):
    """What a data set is asked for.

    epoch:     0-based
    index:     0..len(dataset) - 1
    remaining: epochs left, this one included: max_epochs - epoch. It tells a worker when mosaic closes.
    repeat:    how often the epoch has asked for this index before
    """

    epoch: int
    index: int  # type: ignore[assignment]
    remaining: int
    repeat: int = 0

    @classmethod
    def of(cls, key: 'int | SampleKey') -> 'SampleKey':
        """A plain index, as validation asks, is epoch 0 with nothing remaining."""
        return key if isinstance(key, SampleKey) else cls(0, int(key), 0)

    def generator(self, seed: int) -> np.random.Generator:
        """All random draws of this sample; nothing else goes into them, so that the number of workers cannot."""
        repeat = [self.repeat] if self.repeat else []  # a first sample draws the same under every sampler
        return np.random.Generator(np.random.PCG64([seed, self.epoch, self.index, *repeat]))


class KeySampler(Sampler[SampleKey]):
    """Where a sampler of ``SampleKey`` is: of which rank, in which epoch, and where in it.

    Args:
        seed: Seed of the order; None asks mmengine for one that all ranks share.
    """

    def __init__(self, *, seed: int | None) -> None:
        self.seed = sync_random_seed() if seed is None else seed
        self.rank, self.world_size = get_dist_info()
        self.epoch = 0
        self.remaining = sys.maxsize
        self.start = 0

    def set_epoch(self, epoch: int, *, max_epochs: int | None = None, start: int = 0) -> None:
        """Choose the epoch that the next iterations yield.

        Args:
            epoch: 0-based.
            max_epochs: Epochs of the whole run; None, as mmengine's own loop calls, never closes mosaic.
            start: Samples of this rank that the epoch has already consumed, in a run resumed in mid-epoch.
        """
        self.epoch = epoch
        self.remaining = sys.maxsize if max_epochs is None else max_epochs - epoch
        self.start = start

    def keys(self, order: NDArray[np.int64], repeats: NDArray[np.int64] | None = None) -> Iterator[SampleKey]:
        """Yield this rank's keys from ``start`` on; ranks take turns in ``order``; ``repeats`` counts earlier draws."""
        mine = slice(self.rank, None, self.world_size)
        counts = np.zeros_like(order) if repeats is None else repeats
        for index, repeat in zip(order[mine][self.start :].tolist(), counts[mine][self.start :].tolist(), strict=True):
            yield SampleKey(self.epoch, index, self.remaining, repeat)


@DATA_SAMPLERS.register_module()
class EpochSampler(KeySampler):
    """Yields ``SampleKey`` of this rank, in an order that depends on (seed, epoch) alone.

    Ranks take turns in one common order, which wraps around where ``round_up`` is set, so that all have equally many.

    Args:
        dataset: What is sampled; only its length is used.
        seed: Seed of the order; None asks mmengine for one that all ranks share.
        shuffle: False keeps the order of the data set.
        round_up: Repeat the first samples until the ranks have equally many.
    """

    def __init__(self, dataset: Sized, *, seed: int | None = None, shuffle: bool = True, round_up: bool = True) -> None:
        super().__init__(seed=seed)
        self.dataset = dataset
        self.shuffle = shuffle
        self.round_up = round_up

    def __iter__(self) -> Iterator[SampleKey]:
        total = len(self.dataset)
        order = np.arange(total)
        if self.shuffle:
            order = np.random.Generator(np.random.PCG64([self.seed, self.epoch])).permutation(total)
        if self.round_up:
            order = np.resize(order, len(self) * self.world_size)
        yield from self.keys(order)

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch, those before ``start`` included."""
        total = len(self.dataset)
        return math.ceil((total if self.round_up else total - self.rank) / self.world_size)
