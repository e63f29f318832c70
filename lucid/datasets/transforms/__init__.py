"""Transforms of a sample: each draws its parameters, then applies them."""

from lucid.datasets.transforms.affine import AffineParameters, RandomAffine
from lucid.datasets.transforms.base import FILL, Transform, build_pipeline, height_width
from lucid.datasets.transforms.color import HSVParameters, RandomHSV
from lucid.datasets.transforms.flip import HorizontalFlip
from lucid.datasets.transforms.letterbox import Letterbox
from lucid.datasets.transforms.mosaic import Mosaic, MosaicParameters
from lucid.datasets.transforms.warp import warp_image

__all__ = [
    'AffineParameters',
    'FILL',
    'HSVParameters',
    'HorizontalFlip',
    'Letterbox',
    'Mosaic',
    'MosaicParameters',
    'RandomAffine',
    'RandomHSV',
    'Transform',
    'build_pipeline',
    'height_width',
    'warp_image',
]
