"""Schedulers of the learning rate."""

from .warmup_linear import WarmupLinearLR

__all__ = ['WarmupLinearLR']
