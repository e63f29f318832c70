"""How fast the training step of a config is eager and with a captured region, side by side in one run."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from lucid.apis.gpu_time import GpuTime, gpu_time
from lucid.apis.training_pair import Batches, Side, TrainingPair
from lucid.capture import ModuleRegion, Parts, Policy, TapeMemory
from lucid.engine.environment import environment

NUM_BATCHES = 8  # held in memory and repeated, so that no loader is measured


class Timing(NamedTuple):
    """One variant: ``eager``, ``captured``, or ``adopted`` (captured, with gradients adopted).

    Milliseconds are of a micro-batch; the step of its window counts in full, divided among them.

    rounds:     per round, the wall time
    gpu:        what the card is busy with, without the gaps; None where there is no card
    memory_mib: most that the variant reserved, capture included
    start:      seconds of its first window: compiling of kernels, capture
    """

    variant: str
    accumulate: int
    rounds: list[float]
    gpu: GpuTime | None
    memory_mib: int
    start: float

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.rounds)


class Benchmark(NamedTuple):
    """``steps`` are whole training steps; ``parts`` the region's forward and backward alone."""

    config: str
    region: str
    precision: str
    batch_size: int
    image_size: tuple[int, int]
    device: str
    steps: list[Timing]
    parts: list[Timing]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, with what it ran on."""
        found = self._asdict()
        for key in ('steps', 'parts'):
            found[key] = [
                {**t._asdict(), 'gpu': t.gpu and t.gpu._asdict(), 'median': t.median} for t in getattr(self, key)
            ]
        return {**found, 'environment': environment()}


def benchmark(
    cfg: Config,
    *,
    region: str = 'network',
    accumulate: Sequence[int] = (1, 2),
    precision: str = 'bf16',
    rounds: int = 7,
    micro_batches: int = 20,
    device: str | torch.device | None = None,
) -> Benchmark:
    """Time the training step of a config: eager, with ``region`` captured, and captured with adopted gradients.

    The variants take turns, so that what else the machine does falls on all of them. Batches are read before, and
    copied to the device and prepared in each step, as in training; hooks take no part, except EMAHook.

    Args:
        cfg: What ``load_config`` returned, not changed.
        region: Path of the module.
        accumulate: Micro-batches of a window.
        precision: Of ``training_pair.PRECISIONS``.
        rounds: Turns of each variant.
        micro_batches: Of a turn, at least; whole windows are run.
        device: Default a CUDA card where there is one. Without one, the tape replays and its times mean nothing.

    Returns:
        The timings, one per variant and window length, then one per variant of the region alone.

    Raises:
        ConfigError: The config cannot be meant, has no such module, or its data is missing.
    """
    device = torch.device(device or ('cuda' if torch.cuda.is_available() else 'cpu'))
    parts = None if device.type == 'cuda' else Parts(memory=lambda _: TapeMemory())
    windows = rounds * (micro_batches + max(accumulate)) + 100
    pair = TrainingPair(cfg, region=region, steps=windows, device=device, parts=parts)
    pair.check_region()
    read = Batches(pair.loader, max_epochs=pair.cfg.get('train_cfg', {}).get('max_epochs', 1))
    batches = [read(i) for i in range(NUM_BATCHES)]
    with _kernels_of_training(pair.cfg):
        found = [_steps(pair, region, precision, number, batches, rounds, micro_batches) for number in accumulate]
        alone = _parts(pair, region, precision, batches[0], rounds, micro_batches)
    height, width = batches[0]['inputs'].shape[1:3]
    return Benchmark(
        Path(cfg.filename or 'config').name,
        region,
        precision,
        len(batches[0]['inputs']),
        (height, width),
        torch.cuda.get_device_name(device) if device.type == 'cuda' else 'cpu',
        list(itertools.chain(*found)),
        alone,
    )


def _steps(
    pair: TrainingPair,
    region: str,
    precision: str,
    accumulate: int,
    batches: Sequence[Any],
    rounds: int,
    micro_batches: int,
) -> list[Timing]:
    def window(side: Side) -> Callable[[], None]:
        stream = itertools.cycle(batches)

        def run() -> None:
            for _ in range(accumulate):
                side.model.train_step(next(stream), side.wrapper)

        return run

    return _take_turns(pair, region, precision, accumulate, window, rounds, micro_batches)


def _parts(
    pair: TrainingPair, region: str, precision: str, batch: Any, rounds: int, micro_batches: int
) -> list[Timing]:
    def part(side: Side) -> Callable[[], None]:
        module, seen = side.model.get_submodule(region), list[Any]()
        handle = module.register_forward_pre_hook(lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True)
        side.model.train_step(batch, side.wrapper)
        handle.remove()
        args, kwargs = tree_map_only(Tensor, lambda t: t.detach().requires_grad_(t.requires_grad), seen[0])
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad]
        grads: list[Tensor] = []

        def run() -> None:
            with side.wrapper.optim_context(side.model):
                outputs = [leaf for leaf in tree_leaves(module(*args, **kwargs)) if leaf.requires_grad]
            if not grads:
                grads.extend(torch.full_like(output, 1e-3) for output in outputs)
            torch.autograd.backward(outputs, grads)
            side.model.zero_grad()
            for tensor in inputs:
                tensor.grad = None

        return run

    return _take_turns(pair, region, precision, 1, part, rounds, micro_batches)


def _take_turns(
    pair: TrainingPair,
    region: str,
    precision: str,
    accumulate: int,
    made: Callable[[Side], Callable[[], None]],
    rounds: int,
    micro_batches: int,
) -> list[Timing]:
    """Build the variants one after the other, run them by turns, and release them."""
    variants = {'eager': None, 'captured': Policy(), 'adopted': Policy(gradients='adopt')}
    runs: dict[str, Callable[[], None]] = {}
    memory, start, regions = dict[str, int](), dict[str, float](), list[ModuleRegion]()
    try:
        for name, policy in variants.items():
            side = pair.side(precision, accumulate)
            runs[name] = made(side)
            with _Memory(pair.device) as used:
                if policy is not None:
                    regions.append(ModuleRegion(region))
                    pair.capture(side, regions[-1], policy=policy)
                start[name] = _seconds(runs[name], pair.device)
                for _ in range(3):
                    runs[name]()
            memory[name] = used.mib
        times: dict[str, list[float]] = {name: [] for name in runs}
        windows = -(-micro_batches // accumulate)
        for _ in range(rounds):
            for name, run in runs.items():
                seconds = _seconds(run, pair.device, times=windows)
                times[name].append(round(seconds * 1e3 / (windows * accumulate), 4))
        gpu = {name: _gpu(run, accumulate) if pair.device.type == 'cuda' else None for name, run in runs.items()}
    finally:
        for captured in regions:
            captured.release()
    for captured in regions:
        if problems := captured.routes.problems():
            raise RuntimeError(f'the captured variant did not do its work: {problems}')
    return [Timing(name, accumulate, times[name], gpu[name], memory[name], round(start[name], 2)) for name in variants]


def _gpu(run: Callable[[], None], accumulate: int) -> GpuTime:
    busy, kernels = gpu_time(run)
    return GpuTime(round(busy / accumulate, 4), round(kernels / accumulate))


def _seconds(run: Callable[[], object], device: torch.device, *, times: int = 1) -> float:
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == 'cuda' else lambda: None
    wait()
    begin = time.perf_counter()
    for _ in range(times):
        run()
    wait()
    return time.perf_counter() - begin


class _Memory:
    """Most MiB that were reserved inside, beyond what was before; 0 without a card."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        self.mib = 0

    def __enter__(self) -> '_Memory':
        if self._device.type == 'cuda':
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_reserved(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        if self._device.type == 'cuda':
            self.mib = (torch.cuda.max_memory_reserved(self._device) - self._before) >> 20


@contextmanager
def _kernels_of_training(cfg: Config) -> Iterator[None]:
    """CuDNN's choice of kernels as the config's training has it; as before outside."""
    kept = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = bool(cfg.get('env_cfg', {}).get('cudnn_benchmark', False))
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = kept
