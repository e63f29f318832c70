"""Losses."""

from lucid.models.losses.detection import DetectionLoss

__all__ = ['DetectionLoss']
