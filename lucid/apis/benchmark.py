"""How fast the training step of a config is eager and with a captured region, side by side in one run."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from lucid.apis.benchmark_clock import wait
from lucid.apis.benchmark_floor import floor_of
from lucid.apis.benchmark_loading import Loading, loading_rate
from lucid.apis.benchmark_result import Benchmark, Timing
from lucid.apis.benchmark_turns import Turns
from lucid.apis.data import build_dataloader
from lucid.apis.training_pair import Batches, Side, TrainingPair
from lucid.capture import Parts, Policy, TapeMemory
from lucid.registry import MODELS

NUM_BATCHES = 8  # held in memory and repeated, so that no loader is measured
PARTS = ('step', 'module', 'loading')


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
    only: Sequence[str] = PARTS,
    profile: bool = False,
    device: str | torch.device | None = None,
) -> Benchmark:
    """Time the training step of a config eager and captured, one module of it alone, and the loader alone.

    The variants take turns, so that what else the machine does falls on all of them. Batches are read before, and
    copied to the device and prepared in each step, as in training; hooks take no part, except EMAHook. The loader is
    measured last, when no variant is left.

    Args:
        cfg: What ``load_config`` returned, not changed.
        regions: What to capture, one variant each: the path of a module, ``loss``, ``step``, or several joined by
            ``+``.
        module: Path of the module that is timed alone, forward and backward, eager and captured.
        adopt: Add variants whose gradients stay in graph memory.
        accumulate: Micro-batches of a window; with two numbers or more, what a micro-batch takes and what ends a window
            are told apart.
        precision: Of ``training_pair.PRECISIONS``.
        rounds: Turns of each variant, and of the loader.
        micro_batches: Of a turn, at least; whole windows are run.
        only: Of ``PARTS``, what is measured.
        profile: Keep the kernels of each variant by name; there are none without a card.
        device: Default a CUDA card where there is one. Without one, the tape replays and its times mean nothing.

    Returns:
        The timings, one per variant and window length, those of the module alone, the bytes floor and the loader's
        rate.

    Raises:
        ConfigError: The config cannot be meant, has no such module, or its data is missing.
    """
    device = torch.device(device or ('cuda' if torch.cuda.is_available() else 'cpu'))
    parts = None if device.type == 'cuda' else Parts(memory=lambda _: TapeMemory())
    pair = TrainingPair(cfg, region=module, steps=rounds * micro_batches + 100, device=device, parts=parts)
    turns = Turns(pair, precision, rounds, micro_batches, profile)
    timed = [part for part in ('step', 'module') if part in only]
    for names in (*(regions if 'step' in timed else ()), *((module,) if timed else ())):
        pair.check_region(names)
    policies = {'': Policy(), ', adopted': Policy(gradients='adopt')} if adopt else {'': Policy()}
    captured = {f'{names}{how}': (names, policy) for names in regions for how, policy in policies.items()}
    alone = {f'{module}{how}': (module, policy) for how, policy in policies.items()}
    read = Batches(pair.loader, max_epochs=pair.cfg.get('train_cfg', {}).get('max_epochs', 1))
    batches = [read(i) for i in range(NUM_BATCHES if timed else 1)]
    del read  # its workers must not read on beside what is timed
    batch_size, height, width = batches[0]['inputs'].shape[:3]
    steps, of_module, floor = list[Timing](), list[Timing](), None
    with _kernels_of_training(pair.cfg):
        if 'step' in timed:
            for number in accumulate:
                steps += turns.take(captured, number, _window(batches, number))
        if 'module' in timed:
            of_module = turns.take(alone, 1, _part(module, batches[0]))
    if timed:
        floor = floor_of(
            MODELS.build(pair.cfg.model),
            module=module,
            image_size=(height, width),
            batch_size=batch_size,
            element_size=4 if precision == 'fp32' else 2,
            device=device,
        )
    return Benchmark(
        Path(cfg.filename or 'config').name,
        module,
        precision,
        batch_size,
        (height, width),
        torch.cuda.get_device_name(device) if device.type == 'cuda' else 'cpu',
        steps,
        of_module,
        floor,
        _loading(pair, rounds, micro_batches) if 'loading' in only else None,
    )


def _loading(pair: TrainingPair, rounds: int, micro_batches: int) -> Loading:
    """Of the loader that training has: the pair's own starts new workers for each epoch."""
    model = MODELS.build(pair.cfg.model).to(pair.device).train()
    loader = build_dataloader(pair.cfg.train_dataloader, dataset=pair.loader.dataset, seed=pair.cfg.randomness.seed)
    prepare = partial(model.data_preprocessor, training=True)
    return loading_rate(loader, prepare, partial(wait, pair.device), rounds=rounds, num_batches=micro_batches)


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


@contextmanager
def _kernels_of_training(cfg: Config) -> Iterator[None]:
    """CuDNN's choice of kernels as the config's training has it; as before outside."""
    kept = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = bool(cfg.get('env_cfg', {}).get('cudnn_benchmark', False))
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = kept
