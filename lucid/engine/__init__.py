"""What runs a model: loops, hooks, optimizers, checkpoints."""

from lucid.engine import distributed, hooks, loops, optim_wrappers, optimizers, regions, schedulers

__all__ = ['distributed', 'hooks', 'loops', 'optim_wrappers', 'optimizers', 'regions', 'schedulers']
