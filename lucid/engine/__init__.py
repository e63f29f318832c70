"""What runs a model: loops, hooks, optimizers, checkpoints."""

from lucid.engine import hooks, loops, optim_wrappers, optimizers, regions, schedulers

__all__ = ['hooks', 'loops', 'optim_wrappers', 'optimizers', 'regions', 'schedulers']
