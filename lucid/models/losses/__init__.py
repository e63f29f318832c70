"""Losses."""

from lucid.models.losses.detection import DetectionLoss
from lucid.models.losses.keypoint import KeypointLoss
from lucid.models.losses.oriented import OrientedLoss
from lucid.models.losses.segmentation import SegmentationLoss

__all__ = ['DetectionLoss', 'KeypointLoss', 'OrientedLoss', 'SegmentationLoss']
