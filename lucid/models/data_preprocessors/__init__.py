"""Data preprocessors: from a collated batch to tensors on the device."""

from lucid.models.data_preprocessors.detection import DetDataPreprocessor

__all__ = ['DetDataPreprocessor']
