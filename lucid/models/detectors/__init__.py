"""Detectors: network, loss and data preprocessor behind mmengine's model interface."""

from lucid.models.detectors.network import YOLONetwork
from lucid.models.detectors.yolo import YOLODetector

__all__ = ['YOLODetector', 'YOLONetwork']
