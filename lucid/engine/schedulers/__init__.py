"""Schedulers of the learning rate."""

from lucid.engine.schedulers.warmup_linear import WarmupLinearLR

__all__ = ['WarmupLinearLR']
