"""How fast the training step of a config is eager and with a captured region, side by side in one run."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from lucid.apis.gpu_time import GpuTime, gpu_time
from lucid.apis.region_names import make_regions
from lucid.apis.training_pair import Batches, Side, TrainingPair
from lucid.capture import Parts, Policy, Region, TapeMemory
from lucid.engine.environment import environment

NUM_BATCHES = 8  # held in memory and repeated, so that no loader is measured


class Timing(NamedTuple):
    """One variant: ``eager``, what is captured, or that ``, adopted`` (gradients stay in graph memory).

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
    """``steps`` are whole training steps; ``parts`` the forward and backward of ``module`` alone."""

    config: str
    module: str
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
    regions: Sequence[str] = ('network', 'network+loss', 'step'),
    module: str = 'network',
    adopt: bool = False,
    accumulate: Sequence[int] = (1, 2),
    precision: str = 'bf16',
    rounds: int = 7,
    micro_batches: int = 20,
    device: str | torch.device | None = None,
) -> Benchmark:
    """Time the training step of a config eager and captured, and one module of it alone.

    The variants take turns, so that what else the machine does falls on all of them. Batches are read before, and
    copied to the device and prepared in each step, as in training; hooks take no part, except EMAHook.

    Args:
        cfg: What ``load_config`` returned, not changed.
        regions: What to capture, one variant each: the path of a module, ``loss``, ``step``, or several joined by
            ``+``.
        module: Path of the module that is timed alone, forward and backward, eager and captured.
        adopt: Add variants whose gradients stay in graph memory.
        accumulate: Micro-batches of a window.
        precision: Of ``training_pair.PRECISIONS``.
        rounds: Turns of each variant.
        micro_batches: Of a turn, at least; whole windows are run.
        device: Default a CUDA card where there is one. Without one, the tape replays and its times mean nothing.

    Returns:
        The timings, one per variant and window length, then those of the module alone.

    Raises:
        ConfigError: The config cannot be meant, has no such module, or its data is missing.
    """
    device = torch.device(device or ('cuda' if torch.cuda.is_available() else 'cpu'))
    parts = None if device.type == 'cuda' else Parts(memory=lambda _: TapeMemory())
    windows = rounds * (micro_batches + max(accumulate)) + 100
    pair = TrainingPair(cfg, region=module, steps=windows, device=device, parts=parts)
    for names in (*regions, module):
        pair.check_region(names)
    policies = {'': Policy(), ', adopted': Policy(gradients='adopt')} if adopt else {'': Policy()}
    captured = {f'{names}{how}': (names, policy) for names in regions for how, policy in policies.items()}
    alone = {f'{module}{how}': (module, policy) for how, policy in policies.items()}
    read = Batches(pair.loader, max_epochs=pair.cfg.get('train_cfg', {}).get('max_epochs', 1))
    batches = [read(i) for i in range(NUM_BATCHES)]
    with _kernels_of_training(pair.cfg):
        turns = _Turns(pair, precision, rounds, micro_batches)
        steps = [turns.take(captured, number, _window(batches, number)) for number in accumulate]
        parts_alone = turns.take(alone, 1, _part(module, batches[0]))
    height, width = batches[0]['inputs'].shape[1:3]
    return Benchmark(
        Path(cfg.filename or 'config').name,
        module,
        precision,
        len(batches[0]['inputs']),
        (height, width),
        torch.cuda.get_device_name(device) if device.type == 'cuda' else 'cpu',
        list(itertools.chain(*steps)),
        parts_alone,
    )


def _window(batches: Sequence[Any], accumulate: int) -> Callable[[Side], Callable[[], None]]:
    """Makes what trains a side for one window."""

    def made(side: Side) -> Callable[[], None]:
        stream = itertools.cycle(batches)

        def run() -> None:
            for _ in range(accumulate):
                side.model.train_step(next(stream), side.wrapper)

        return run

    return made


def _part(path: str, batch: Any) -> Callable[[Side], Callable[[], None]]:
    """Makes what runs one module of a side forward and backward, on the inputs that a training step gives it."""

    def made(side: Side) -> Callable[[], None]:
        module, seen = side.model.get_submodule(path), list[Any]()
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

    return made


class _Turns(NamedTuple):
    """How variants are run."""

    pair: TrainingPair
    precision: str
    rounds: int
    micro_batches: int

    def take(
        self, captured: Mapping[str, tuple[str, Policy]], accumulate: int, made: Callable[[Side], Callable[[], None]]
    ) -> list[Timing]:
        """Build the variants one after the other, eager first, run them by turns, and release them."""
        device = self.pair.device
        runs: dict[str, Callable[[], None]] = {}
        memory, start, active = dict[str, int](), dict[str, float](), list[Region]()
        try:
            for name, (names, policy) in {'eager': ('', Policy()), **captured}.items():
                side = self.pair.side(self.precision, accumulate)
                runs[name] = made(side)
                with _Memory(device) as used:
                    regions = make_regions(names) if names else []
                    active += regions
                    self.pair.capture(side, regions, policy=policy)
                    start[name] = _seconds(runs[name], device)
                    for _ in range(3):
                        runs[name]()
                memory[name] = used.mib
            times: dict[str, list[float]] = {name: [] for name in runs}
            windows = -(-self.micro_batches // accumulate)
            for _ in range(self.rounds):
                for name, run in runs.items():
                    seconds = _seconds(run, device, times=windows)
                    times[name].append(round(seconds * 1e3 / (windows * accumulate), 4))
            gpu = {name: _gpu(run, accumulate) if device.type == 'cuda' else None for name, run in runs.items()}
        finally:
            for region in active:
                region.release()
        if problems := [problem for region in active for problem in region.routes.problems()]:
            raise RuntimeError(f'a captured variant did not do its work: {problems}')
        return [Timing(name, accumulate, times[name], gpu[name], memory[name], round(start[name], 2)) for name in runs]


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
