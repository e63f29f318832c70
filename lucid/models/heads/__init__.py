"""Heads: one per task. They share functions, not parents."""

from lucid.models.heads.detect import DetectBranch, DetectHead

__all__ = ['DetectBranch', 'DetectHead']
