"""Backbones: images to feature maps."""

from lucid.models.backbones.yolo import YOLOBackbone

__all__ = ['YOLOBackbone']
