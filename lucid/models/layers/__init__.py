"""Building blocks of backbones, necks and heads."""

from lucid.models.layers.attention import C2PSA, PSABlock, SpatialAttention
from lucid.models.layers.casting import Stage, set_cast_together, weights_cast
from lucid.models.layers.conv import ConvUnit, fuse_norms
from lucid.models.layers.csp import Bottleneck, C3k, C3k2
from lucid.models.layers.scale import SCALES, Scale, get_scale
from lucid.models.layers.sppf import SPPF

__all__ = [
    'C2PSA',
    'SCALES',
    'SPPF',
    'Bottleneck',
    'C3k',
    'C3k2',
    'ConvUnit',
    'PSABlock',
    'Scale',
    'SpatialAttention',
    'Stage',
    'set_cast_together',
    'fuse_norms',
    'get_scale',
    'weights_cast',
]
