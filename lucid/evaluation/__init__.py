"""Metrics of detections against annotation files."""

from lucid.evaluation.coco_metric import CocoMetric
from lucid.evaluation.ground_truth import GroundTruth, read_ground_truth
from lucid.evaluation.keypoint_metric import CocoKeypointMetric
from lucid.evaluation.mask_metric import CocoMaskMetric
from lucid.evaluation.rotated_metric import RotatedMetric

__all__ = ['CocoKeypointMetric', 'CocoMaskMetric', 'CocoMetric', 'GroundTruth', 'RotatedMetric', 'read_ground_truth']
