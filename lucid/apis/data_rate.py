"""How many images per second the data path of a config gives by itself, and what it adds to a step."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.utils.dl_utils import set_multi_processing
from torch.utils.data import DataLoader

from lucid.apis.benchmark_clock import wait
from lucid.apis.data_ways import WAYS, endless, fill_pool, loader_of, pool_of
from lucid.apis.prepare_time import StepTime, prepare_times
from lucid.apis.training_pair import TrainingPair
from lucid.capture import Parts, TapeMemory
from lucid.engine.batch_stream import close_workers
from lucid.engine.environment import environment
from lucid.registry import MODELS


class Rate(NamedTuple):
    """One way of loading with some workers, up to what the network reads.

    way:     of ``WAYS``
    workers: processes, of one thread each; fewer than asked for where there are fewer processors
    rounds:  images per second
    counts:  how images came to the device in all rounds, as ``ImagePool.counts``
    """

    way: str
    workers: int
    rounds: list[float]
    counts: dict[str, int]


class DataRates(NamedTuple):
    """What a config's data path gives on one machine."""

    config: str
    device: str
    batch_size: int
    image_size: tuple[int, int]
    rates: list[Rate]
    steps: list[StepTime]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, with what it ran on."""
        parts = {key: [one._asdict() for one in getattr(self, key)] for key in ('rates', 'steps')}
        return {**self._asdict(), **parts, 'environment': environment()}

    def lines(self) -> list[str]:
        """A table, of medians, with the least and the most."""
        height, width = self.image_size
        found = [f'{self.config}, batch {self.batch_size}, {width}x{height} px, {self.device}']
        for rate in self.rates:
            ways = ', '.join(f'{count} {name}' for name, count in sorted(rate.counts.items()))
            figure = f'{median(rate.rounds):.0f} img/s ({min(rate.rounds):.0f} to {max(rate.rounds):.0f})'
            found.append(f'{rate.way:5} workers {rate.workers}: {figure} {ways}'.rstrip())
        alone = next((median(step.rounds) for step in self.steps if step.way == 'none'), 0.0)
        for step in self.steps:
            middle = median(step.rounds)
            figure = f'{middle:.2f} ms ({min(step.rounds):.2f} to {max(step.rounds):.2f})'
            found.append(f'step, batch {step.way}: {figure}, {middle - alone:+.2f} ms')
        return found


def data_rates(
    cfg: Config,
    *,
    workers: Sequence[int] = (1, 2, 4, 8),
    ways: Sequence[str] = WAYS,
    step: bool = True,
    seconds: float = 1.5,
    rounds: int = 3,
    precision: str = 'bf16',
    device: str | torch.device | None = None,
) -> DataRates:
    """Measure the loader of a training alone, and a captured step with batches that come in each way.

    Mosaic, mixup and copy-paste stay open. Every number of workers has a loader of its own; its start, and the filling
    of the pool, are left out.

    Args:
        cfg: What ``load_config`` returned, not changed; ``train_dataloader`` holds but for workers and drawing.
        workers: Numbers of them to measure with.
        ways: Of ``WAYS``.
        step: Whether a step is timed too.
        seconds: Of a round, at least.
        rounds: Of each figure.
        precision: Of the step, one of ``training_pair.PRECISIONS``.
        device: Default a CUDA card where there is one. Without one, the tape replays and times say nothing about one.

    Returns:
        The figures.

    Raises:
        ConfigError: The config cannot be meant, or its data is missing.
    """
    device = torch.device(device or ('cuda' if torch.cuda.is_available() else 'cpu'))
    parts = None if device.type == 'cuda' else Parts(memory=lambda _: TapeMemory())
    pair = TrainingPair(cfg, region='step', steps=10**6, device=device, parts=parts)
    # As in training: workers that draw have one thread each, OpenCV's included.
    set_multi_processing(**(pair.cfg.get('env_cfg') or {}).get('mp_cfg', {}))
    dataset: Any = pair.loader.dataset
    given = pair.cfg.train_dataloader
    prepare = MODELS.build(pair.cfg.model).to(device).train().prepare
    rates = []
    for way, number in itertools.product(ways, workers):
        loader = loader_of(way, given, dataset=dataset, seed=pair.cfg.randomness.seed, workers=number)
        rates.append(_rate(way, loader, prepare, seconds=seconds, rounds=rounds, device=device))
    height, width = dataset.image_size
    return DataRates(
        str(cfg.filename or 'config').rpartition('/')[2],
        torch.cuda.get_device_name(device) if device.type == 'cuda' else 'cpu',
        given.batch_size,
        (height, width),
        rates,
        prepare_times(pair, ways, seconds=seconds, rounds=rounds, precision=precision) if step else [],
    )


def _rate(
    way: str,
    loader: DataLoader,
    prepare: Callable[[Any], Any],
    *,
    seconds: float,
    rounds: int,
    device: torch.device,
) -> Rate:
    batches, pool = endless(loader), pool_of(loader)
    try:
        for _ in range(2 * max(loader.num_workers, 1) * (loader.prefetch_factor or 1)):  # read while nobody asked
            prepare(next(batches))
        if way == 'pool':
            fill_pool(loader, batches, prepare)
        before = Counter(pool.counts if pool is not None else ())
        found = [_images_per_second(batches, prepare, seconds, device) for _ in range(rounds)]
    finally:
        close_workers(loader)
    counts = Counter(pool.counts if pool is not None else ())
    counts.subtract(before)
    return Rate(way, loader.num_workers, found, {name: count for name, count in counts.items() if count})


def _images_per_second(
    batches: Iterator[Any], prepare: Callable[[Any], Any], seconds: float, device: torch.device
) -> float:
    """The device's work on them included."""
    wait(device)
    images, start = 0, time.perf_counter()
    while not images or time.perf_counter() - start < seconds:
        batch = next(batches)
        prepare(batch)
        images += batch['inputs'].shape[0]
    wait(device)
    return round(images / (time.perf_counter() - start), 1)
