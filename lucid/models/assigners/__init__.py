"""Assigners: which ground truth each anchor learns."""

from lucid.models.assigners.task_aligned import TaskAlignedAssigner

__all__ = ['TaskAlignedAssigner']
