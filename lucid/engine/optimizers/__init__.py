"""Optimizers whose update is device arithmetic only, so that it can be recorded."""

from .adamw import AdamW
from .device_optimizer import DeviceOptimizer
from .musgd import MuSGD
from .sgd import SGD

__all__ = ['AdamW', 'DeviceOptimizer', 'MuSGD', 'SGD']
