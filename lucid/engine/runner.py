"""mmengine's runner, with a console that shows what a person reads, and able to run distributed without CUDA."""

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapperDict
from mmengine.runner import Runner as BaseRunner
from torch import nn
from torch.utils.data import DataLoader

from lucid.engine import checkpoint
from lucid.engine.distributed import DistributedModel, unwrapped
from lucid.engine.resumed import (
    group_options,
    restore_group_options,
    restore_scheduler_options,
    scheduler_options,
)
from lucid.engine.transfer import Transfer, plan_transfer
from lucid.registry import MODEL_WRAPPERS, SCOPE

WEIGHTS_FILE = 'loaded_weights.json'
FILE_ONLY = ('_log_env', '__init__', 'wrap_model')


class _Brief(logging.Filter):
    """Keeps environment, config text and the order of hooks off the console; the log file has them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.INFO:
            return True
        start = record.module == 'runner' and record.funcName in FILE_ONLY
        return not (start or (record.module == 'logger_hook' and str(record.msg).startswith('Exp name')))


class Runner(BaseRunner):
    """mmengine's runner, with five differences.

    Environment, config and the order of hooks go to the log file only. A model is made distributed by
    ``DistributedModel`` where the config names no other wrapper, on a CPU too. Resuming takes the state of optimizer
    and schedulers from the checkpoint and their options from the config. ``load_from`` takes over what fits, class by
    class, and says what did not. ``auto_scale_lr`` counts the micro-batches of a step.
    """

    def build_logger(self, log_level: int | str = 'INFO', log_file: str | None = None, **options: Any) -> MMLogger:
        """Build the logger of this run; its console part is brief."""
        logger = super().build_logger(log_level, log_file, **options)
        for handler in logger.handlers:
            if type(handler) is logging.StreamHandler:
                handler.addFilter(_Brief())
        return logger

    def wrap_model(self, model_wrapper_cfg: dict[str, Any] | None, model: nn.Module) -> nn.Module:
        """Move the model to its device and make it distributed where the run is."""
        if self.distributed:
            model_wrapper_cfg = dict(model_wrapper_cfg or {})
            name = model_wrapper_cfg.setdefault('type', DistributedModel.__name__)
            if name in MODEL_WRAPPERS.module_dict:  # mmengine looks in its own registry, without the default scope
                model_wrapper_cfg['type'] = f'{SCOPE}.{name}'
            model_wrapper_cfg.setdefault('find_unused_parameters', self.cfg.get('find_unused_parameters', False))
            device_ids = [int(os.environ['LOCAL_RANK'])] if torch.cuda.is_available() else None
            model_wrapper_cfg.setdefault('device_ids', device_ids)
        return super().wrap_model(model_wrapper_cfg, model)

    def resume(
        self,
        filename: str,
        resume_optimizer: bool = True,
        resume_param_scheduler: bool = True,
        map_location: str | Callable = 'default',
    ) -> None:
        """Load weights, state and place of a run; options of optimizer and schedulers stay those of this runner."""
        wrapper: Any = self.build_optim_wrapper(self.optim_wrapper)  # type: ignore[has-type]
        schedulers: Any = self.param_schedulers  # type: ignore[has-type]
        if schedulers is not None:
            schedulers = self.build_param_scheduler(schedulers)
        self.optim_wrapper, self.param_schedulers = wrapper, schedulers
        optimizer = getattr(wrapper, 'optimizer', None)  # none where there are several
        if optimizer is None:
            super().resume(filename, resume_optimizer, resume_param_scheduler, map_location)
            return
        schedulers = schedulers or []
        options = group_options(optimizer), [scheduler_options(scheduler) for scheduler in schedulers]
        super().resume(filename, resume_optimizer, resume_param_scheduler, map_location)
        restore_group_options(optimizer, options[0])
        for scheduler, wanted in zip(schedulers, options[1], strict=True):
            restore_scheduler_options(scheduler, wanted)

    def plan_weights(self, content: Mapping[str, Any] | None = None) -> Transfer:
        """Find out what the model can take over from ``load_from``; nothing is changed.

        Args:
            content: Of the file; None reads it.

        Returns:
            What ``apply`` copies.

        Raises:
            FileNotFoundError: There is no such file.
            CheckpointError: It is damaged, or no weight of it fits.
        """
        content = checkpoint.load(self._load_from) if content is None else content
        classes = tuple(getattr(self.train_dataloader.dataset, 'classes', ())) if self._train_loop is not None else ()
        try:
            return plan_transfer(unwrapped(self.model), content, classes=classes)
        except checkpoint.CheckpointError as error:
            raise checkpoint.CheckpointError(f'{self._load_from}: {error}') from None

    def load_or_resume(self) -> None:
        """Resume, or take over the weights of ``load_from``; ``loaded_weights.json`` names each tensor's fate."""
        loaded: bool = self._has_loaded  # type: ignore[has-type]
        if loaded or self._resume or self._load_from is None:
            super().load_or_resume()
            return
        content = checkpoint.load(self._load_from)
        self.call_hook('after_load_checkpoint', checkpoint=content)
        transfer = self.plan_weights(content)
        transfer.apply()
        self._has_loaded = True
        kind = 'trained' if content.get('ema') is None else 'averaged'
        self.logger.info(f'{kind} weights of {self._load_from}:{transfer.table()}')
        if (share := transfer.loaded_share()) < 0.5:
            self.logger.warning(f'only {share:.1%} of the parameters come from {self._load_from}; is it the right one?')
        frozen: frozenset[str] = getattr(transfer.model, 'frozen_state', frozenset())
        if random := sorted(frozen & transfer.fresh.keys()):
            self.logger.warning(f'{len(random)} frozen tensors were not loaded and stay random, such as {random[0]}')
        if self.rank == 0:
            text = json.dumps({'file': str(self._load_from), **transfer.report()}, indent=2) + '\n'
            Path(self.work_dir, WEIGHTS_FILE).write_text(text)

    def scale_lr(self, optim_wrapper: Any, auto_scale_lr: dict[str, Any] | None = None) -> None:
        """Multiply the rate of every parameter group by images per optimizer step over ``base_batch_size``.

        An optimizer step takes batch_size x accumulative_counts x processes images; mmengine leaves the second out.
        Schedules are factors of the rate, so that a warm-up is scaled with it.

        Args:
            optim_wrapper: Built, before the schedulers.
            auto_scale_lr: ``enable`` and ``base_batch_size``; None does nothing.

        Raises:
            ValueError: ``base_batch_size`` is missing.
        """
        if auto_scale_lr is None or not auto_scale_lr.get('enable'):
            return
        base = auto_scale_lr.get('base_batch_size')
        if not base:
            raise ValueError(
                'auto_scale_lr has no base_batch_size; state the images per step that the rate is meant for'
            )
        loader = self._train_dataloader
        batch: Any = loader.batch_size if isinstance(loader, DataLoader) else loader['batch_size']
        wrappers = optim_wrapper.values() if isinstance(optim_wrapper, OptimWrapperDict) else [optim_wrapper]
        for wrapper in wrappers:
            counts = getattr(wrapper, '_accumulative_counts', 1)
            images = batch * counts * self.world_size
            groups = wrapper.optimizer.param_groups
            before = groups[0]['lr']
            for group in wrapper.param_groups:  # with the wrapper's record of the rate before paramwise_cfg, if any
                group['lr'] *= images / base
            processes = f'{self.world_size} process{"es" if self.world_size > 1 else ""}'
            others = f', and the other {len(groups) - 1} parameter groups alike' if len(groups) > 1 else ''
            self.logger.info(
                f'auto_scale_lr: {images} images per optimizer step ({batch} per batch x {counts} micro-batches x '
                f'{processes}) over base_batch_size {base}: lr {before:g} -> {groups[0]["lr"]:g}{others}'
            )
