"""Data sets, transforms, samplers and collation: everything before the batch, on the host."""

from lucid.datasets.coco import CocoDataset
from lucid.datasets.collate import detection_collate
from lucid.datasets.detection import DetectionDataset
from lucid.datasets.dota import DotaDataset
from lucid.datasets.folder import FolderDataset
from lucid.datasets.ground_truth import GroundTruth
from lucid.datasets.images import ImageError, read_image
from lucid.datasets.problems import DataError, Problem, Problems
from lucid.datasets.repeat_factor import RepeatFactorSampler
from lucid.datasets.sample import Sample
from lucid.datasets.samplers import EpochSampler, SampleKey
from lucid.datasets.shapes import ShapesDataset
from lucid.datasets.transforms import (
    CopyPaste,
    HorizontalFlip,
    Letterbox,
    Mixup,
    Mosaic,
    RandomAffine,
    RandomHSV,
    Transform,
)
from lucid.datasets.voc import VocDataset
from lucid.datasets.yolo import YoloDataset

__all__ = [
    'CocoDataset',
    'CopyPaste',
    'DataError',
    'DetectionDataset',
    'DotaDataset',
    'EpochSampler',
    'FolderDataset',
    'GroundTruth',
    'HorizontalFlip',
    'ImageError',
    'Letterbox',
    'Mixup',
    'Mosaic',
    'Problem',
    'Problems',
    'RandomAffine',
    'RandomHSV',
    'RepeatFactorSampler',
    'Sample',
    'SampleKey',
    'ShapesDataset',
    'Transform',
    'VocDataset',
    'YoloDataset',
    'detection_collate',
    'read_image',
]
