"""Optimizers whose update is device arithmetic only, so that it can be recorded."""

from lucid.engine.optimizers.adamw import AdamW
from lucid.engine.optimizers.device_optimizer import DeviceOptimizer
from lucid.engine.optimizers.musgd import MuSGD
from lucid.engine.optimizers.sgd import SGD

__all__ = ['AdamW', 'DeviceOptimizer', 'MuSGD', 'SGD']
