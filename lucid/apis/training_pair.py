"""Two trainings of one config that can be compared: same seed, same batches, every value of every micro-step."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from mmengine.runner import set_random_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader

import lucid.engine  # noqa: F401  (registers hooks, wrappers and optimizers)
from lucid.apis.build import complete
from lucid.apis.data import build_dataloader, build_dataset, settle_classes, settle_keypoints
from lucid.apis.data_ways import endless
from lucid.apis.region_names import make_regions
from lucid.apis.validate import ConfigError
from lucid.capture import (
    AccumulationTable,
    CompiledModules,
    Parts,
    Policy,
    Region,
    StepRegion,
    TargetError,
    run_lockstep,
    training_values,
)
from lucid.engine.ema import ExponentialMovingAverage
from lucid.registry import MODELS, SCOPE

PRECISIONS: Mapping[str, str | None] = {'fp32': None, 'bf16': 'bfloat16', 'fp16': 'float16'}
_AMP_ONLY = ('dtype', 'init_scale', 'growth_factor', 'backoff_factor', 'growth_interval')


@contextmanager
def exact() -> Iterator[None]:
    """Deterministic algorithms and no TF32 inside; as before outside."""
    # cuBLAS reads it when CUDA starts, and without it refuses to be deterministic.
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    kept = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    deterministic = torch.are_deterministic_algorithms_enabled()
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = True, False, False, False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = kept


class TrainingPair:
    """Builds the sides of a comparison from one config, with one data set between them."""

    def __init__(self, cfg: Config, *, region: str, steps: int, device: torch.device, parts: Parts | None) -> None:
        init_default_scope(SCOPE)
        self.cfg = complete(cfg)
        for name in ('train_dataloader', 'optim_wrapper'):
            if self.cfg.get(name) is None:
                raise ConfigError(f'{cfg.filename}: there is no {name}, which a comparison needs; add it')
        dataset = build_dataset(self.cfg.train_dataloader.dataset)
        settle_classes(self.cfg, dataset)
        settle_keypoints(self.cfg, dataset)
        options = {**self.cfg.train_dataloader, 'persistent_workers': False}  # each run starts with the first epoch
        self.loader = build_dataloader(options, dataset=dataset, seed=self.cfg.randomness.seed)
        self.region = region
        self.steps = steps
        self.device = device
        self.parts = parts

    def side(self, precision: str, accumulate: int) -> 'Side':
        """A new model with its optimizer, always the same values."""
        return Side(self.cfg, dtype=PRECISIONS[precision], accumulate=accumulate, steps=self.steps, device=self.device)

    def check_region(self, names: str | None = None) -> None:
        """Raise ``ConfigError`` if the model has no such region (default its own), before anything is trained."""
        names = names or self.region
        regions, model = make_regions(names), MODELS.build(self.cfg.model)
        try:
            for region in regions:
                region.activate(model)
        except TargetError as error:
            raise ConfigError(f'--region {names}: {error}') from error
        finally:
            for region in regions:
                region.release()

    def capture(self, side: 'Side', regions: Sequence[Region], *, policy: Policy | None = None) -> None:
        """Activate regions on a side; they replay in windows of any length."""
        for region in regions:
            table = AccumulationTable({(None, region.name): 'replay'})
            region.activate(side.model, policy=policy, accumulation=table, parts=self.parts)

    def lockstep(
        self, precision: str, accumulate: int, regions: Sequence[Region], *, steps: int
    ) -> tuple[str | None, float]:
        """Train eager and, with ``regions``, captured; the first difference, and the last loss of the eager side."""
        reference, candidate = self.side(precision, accumulate), self.side(precision, accumulate)
        batch = Batches(self.loader, max_epochs=self.cfg.get('train_cfg', {}).get('max_epochs', 1))
        if not any(isinstance(region, StepRegion) for region in regions):  # its gradients never leave the graph
            reference.watch()
            candidate.watch()
        paths = [path for region in regions for path in region.compiled_paths(reference.model)]
        compiled = CompiledModules(reference.model, paths)
        try:
            self.capture(candidate, regions)
            difference = run_lockstep(
                lambda step: reference.step(batch(step)),
                lambda step: candidate.step(batch(step)),
                steps * accumulate,
            )
        finally:
            compiled.release()
            for region in regions:
                region.release()
        return None if difference is None else str(difference), reference.loss


class Side:
    """One model in training, and every value that a micro-step of it leaves."""

    def __init__(self, cfg: Config, *, dtype: str | None, accumulate: int, steps: int, device: torch.device) -> None:
        set_random_seed(cfg.randomness.seed)
        self.model: Any = MODELS.build(cfg.model)
        logger = MMLogger.get_current_instance()
        level = logger.level
        logger.setLevel(logging.WARNING)  # it would list every parameter
        self.model.init_weights()
        logger.setLevel(level)
        self.model.to(device).train()
        options = {key: value for key, value in cfg.optim_wrapper.items() if key not in ('type', *_AMP_ONLY)}
        if dtype is None:
            options['type'] = 'OptimWrapper'
        else:
            kept = {key: cfg.optim_wrapper[key] for key in _AMP_ONLY if key in cfg.optim_wrapper}
            options |= {**kept, 'type': 'AmpOptimWrapper', 'dtype': dtype}
        options['accumulative_counts'] = accumulate
        self.wrapper: Any = build_optim_wrapper(self.model, options)
        self.ema = _ema(cfg, self.model)
        if self.ema is not None:
            self.wrapper.add_post_step(self.ema)
        if getattr(self.wrapper, 'faults', None) is not None:
            self.wrapper.faults.watch(self.model)  # as in training
        self.wrapper.start_epoch(steps * accumulate)
        self._steps = steps
        self._initial = [dict(group) for group in self.wrapper.param_groups]
        self.loss = float('nan')
        self._grads: dict[str, Any] = {}

    def watch(self) -> None:
        """Have ``step`` keep the gradients too: a window's end clears them, so look when the backward has just run."""
        self.wrapper.run_backward = partial(self._look, self.wrapper.run_backward)

    def step(self, batch: Any) -> dict[str, Any]:
        """Train on one micro-batch; all that must be equal, as it is until the next step."""
        self._move()
        logged = self.model.train_step(batch, self.wrapper)
        values = {f'log.{name}': value for name, value in logged.items()}
        self.loss = float(logged['loss'])
        values |= training_values(self.model, self.wrapper.optimizer, copied=False) | self._grads
        if getattr(self.wrapper, 'loss_scaler', None) is not None:
            values['scaler'] = self.wrapper.loss_scaler.state_dict()
        if self.ema is not None:
            values['ema'] = dict(self.ema.shadow)
        return values

    def _move(self) -> None:
        """Set what a run changes from step to step, as a warm-up and a decay would."""
        done = self.wrapper.num_steps / self._steps
        for group, initial in zip(self.wrapper.param_groups, self._initial, strict=True):
            group['lr'] = initial['lr'] * min(1.0, (self.wrapper.num_steps + 1) / 3) * (1 - done / 2)
            if 'momentum' in initial:
                group['momentum'] = initial['momentum'] * (0.9 + 0.1 * done)
        for module in self.model.modules():
            if isinstance(weight := getattr(module, 'branch_weight', None), Tensor):
                weight.fill_(0.8 - 0.7 * done)

    def _look(self, run_backward: Callable[..., None], loss: Tensor, **kwargs: Any) -> None:
        run_backward(loss, **kwargs)
        self._grads = {f'grad.{name}': _copied(p.grad) for name, p in self.model.named_parameters()}


class Batches:
    """The batches of a loader from the first epoch on, each handed to both sides."""

    def __init__(self, loader: DataLoader, *, max_epochs: int) -> None:
        self._iterator = endless(loader, max_epochs=max_epochs)
        self._step = -1
        self._batch: Any = None

    def __call__(self, step: int) -> Any:
        """Return the batch of a micro-step; steps are asked for in order, any number of times."""
        if step != self._step:
            with torch.random.fork_rng(devices=[]):  # a data set that draws must not move one side's generator
                self._batch = next(self._iterator)
            self._step = step
        return self._batch


def _ema(cfg: Config, model: nn.Module) -> ExponentialMovingAverage | None:
    for hook in (*(cfg.get('default_hooks') or {}).values(), *(cfg.get('custom_hooks') or ())):
        if hook and hook.get('type') == 'EMAHook':
            options = {key: value for key, value in hook.items() if key in ('decay', 'warmup')}
            return ExponentialMovingAverage(model, **options)
    return None


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
