"""Metrics of detections against annotation files."""

from lucid.evaluation.coco_metric import CocoMetric
from lucid.evaluation.ground_truth import GroundTruth, read_ground_truth

__all__ = ['CocoMetric', 'GroundTruth', 'read_ground_truth']
