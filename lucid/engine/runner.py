"""mmengine's runner, with a console that shows what a person reads, and able to run distributed without CUDA."""

import logging
from typing import Any

import torch
from mmengine.logging import MMLogger
from mmengine.runner import Runner as BaseRunner
from torch import nn

FILE_ONLY = ('_log_env', '__init__', 'wrap_model')


class _Brief(logging.Filter):
    """Keeps environment, config text and the order of hooks off the console; the log file has them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.INFO:
            return True
        start = record.module == 'runner' and record.funcName in FILE_ONLY
        return not (start or (record.module == 'logger_hook' and str(record.msg).startswith('Exp name')))


class Runner(BaseRunner):
    """mmengine's runner, with two differences.

    Environment, config and the order of hooks go to the log file only. Without CUDA a model is made distributed without
    device ids, which torch refuses on a CPU.
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
        if self.distributed and model_wrapper_cfg is None and not torch.cuda.is_available():
            model_wrapper_cfg = {
                'type': 'MMDistributedDataParallel',
                'device_ids': None,
                'broadcast_buffers': False,
                'find_unused_parameters': self.cfg.get('find_unused_parameters', False),
            }
        return super().wrap_model(model_wrapper_cfg, model)
