"""Heads: one per task. They share functions, not parents."""

from lucid.models.heads.detect import DetectBranch, DetectHead
from lucid.models.heads.keypoint import KeypointHead
from lucid.models.heads.oriented import OrientedHead
from lucid.models.heads.segment import SegmentHead

__all__ = ['DetectBranch', 'DetectHead', 'KeypointHead', 'OrientedHead', 'SegmentHead']
