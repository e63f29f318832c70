"""Necks: feature maps of several strides, mixed."""

from lucid.models.necks.yolo import YOLONeck

__all__ = ['YOLONeck']
