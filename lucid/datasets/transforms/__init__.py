"""Transforms of a sample: each draws its parameters, then applies them."""

from lucid.datasets.layers import FILL
from lucid.datasets.transforms.affine import AffineParameters, RandomAffine
from lucid.datasets.transforms.base import Transform, build_pipeline, height_width
from lucid.datasets.transforms.color import HSVParameters, RandomHSV
from lucid.datasets.transforms.copy_paste import CopyPaste, CopyPasteParameters
from lucid.datasets.transforms.flip import HorizontalFlip
from lucid.datasets.transforms.letterbox import Letterbox
from lucid.datasets.transforms.mixup import Mixup, MixupParameters
from lucid.datasets.transforms.mosaic import Mosaic, MosaicParameters, SampleSource
from lucid.datasets.transforms.partner import Partner
from lucid.datasets.warp import warp_image

__all__ = [
    'AffineParameters',
    'CopyPaste',
    'CopyPasteParameters',
    'FILL',
    'HSVParameters',
    'HorizontalFlip',
    'Letterbox',
    'Mixup',
    'MixupParameters',
    'Mosaic',
    'MosaicParameters',
    'Partner',
    'RandomAffine',
    'RandomHSV',
    'SampleSource',
    'Transform',
    'build_pipeline',
    'height_width',
    'warp_image',
]
