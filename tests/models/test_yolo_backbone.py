import pytest
import torch

from lucid.models.backbones import YOLOBackbone
from lucid.registry import MODELS


@pytest.mark.parametrize(
    ('scale', 'channels'),
    [('n', (128, 128, 256)), ('s', (256, 256, 512)), ('m', (512, 512, 512)), ('x', (768, 768, 768))],
)
def test_three_maps_at_strides_8_16_32(scale, channels):
    with torch.device('meta'):
        backbone = MODELS.build({'type': 'YOLOBackbone', 'scale': scale})
        maps = backbone(torch.empty(2, 3, 64, 96))
    assert backbone.out_channels == channels
    assert backbone.strides == (8, 16, 32)
    assert [tuple(level.shape) for level in maps] == [
        (2, channels[0], 8, 12),
        (2, channels[1], 4, 6),
        (2, channels[2], 2, 3),
    ]


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="use one of 'n'"):
        YOLOBackbone(scale='nano')
