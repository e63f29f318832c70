"""Optimizer wrappers for float32, bfloat16 and float16."""

from .amp_optim_wrapper import AmpOptimWrapper
from .optim_wrapper import OptimWrapper, PostStep

__all__ = ['AmpOptimWrapper', 'OptimWrapper', 'PostStep']
