"""Data sets, transforms, samplers and collation: everything before the batch, on the host."""

from lucid.datasets.coco import CocoDataset, GroundTruth, check_same_classes
from lucid.datasets.collate import detection_collate
from lucid.datasets.images import ImageError, read_image
from lucid.datasets.sample import Sample
from lucid.datasets.samplers import EpochSampler, SampleKey
from lucid.datasets.shapes import ShapesDataset
from lucid.datasets.transforms import HorizontalFlip, Letterbox, Mosaic, RandomAffine, RandomHSV, Transform

__all__ = [
    'CocoDataset',
    'EpochSampler',
    'GroundTruth',
    'HorizontalFlip',
    'ImageError',
    'Letterbox',
    'Mosaic',
    'RandomAffine',
    'RandomHSV',
    'Sample',
    'SampleKey',
    'ShapesDataset',
    'Transform',
    'check_same_classes',
    'detection_collate',
    'read_image',
]
