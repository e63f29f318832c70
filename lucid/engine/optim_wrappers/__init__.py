"""Optimizer wrappers for float32, bfloat16 and float16."""

from lucid.engine.optim_wrappers.amp_optim_wrapper import AmpOptimWrapper
from lucid.engine.optim_wrappers.optim_wrapper import OptimWrapper, PostStep

__all__ = ['AmpOptimWrapper', 'OptimWrapper', 'PostStep']
