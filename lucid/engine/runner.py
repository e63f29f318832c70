"""mmengine's runner, with a console that shows what a person reads, and able to run distributed without CUDA."""

import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from mmengine.logging import MMLogger
from mmengine.runner import Runner as BaseRunner
from torch import nn

from lucid.engine.distributed import DistributedModel
from lucid.engine.resumed import (
    group_options,
    restore_group_options,
    restore_scheduler_options,
    scheduler_options,
)
from lucid.registry import MODEL_WRAPPERS, SCOPE

FILE_ONLY = ('_log_env', '__init__', 'wrap_model')


class _Brief(logging.Filter):
    """Keeps environment, config text and the order of hooks off the console; the log file has them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.INFO:
            return True
        start = record.module == 'runner' and record.funcName in FILE_ONLY
        return not (start or (record.module == 'logger_hook' and str(record.msg).startswith('Exp name')))


class Runner(BaseRunner):
    """mmengine's runner, with three differences.

    Environment, config and the order of hooks go to the log file only. A model is made distributed by
    ``DistributedModel`` where the config names no other wrapper, on a CPU too. Resuming takes the state of optimizer
    and schedulers from the checkpoint and their options from the config.
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
