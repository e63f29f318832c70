import pytest
import torch

from lucid.registry import MODELS


@pytest.mark.parametrize(
    ('scale', 'in_channels', 'channels'),
    [
        ('n', (128, 128, 256), (64, 128, 256)),
        ('s', (256, 256, 512), (128, 256, 512)),
        ('l', (512, 512, 512), (256, 512, 512)),
        ('x', (768, 768, 768), (384, 768, 768)),
    ],
)
def test_maps_keep_their_strides(scale, in_channels, channels):
    sides = ((8, 12), (4, 6), (2, 3))
    with torch.device('meta'):
        neck = MODELS.build({'type': 'YOLONeck', 'in_channels': in_channels, 'scale': scale})
        maps = neck([torch.empty(2, c, *side) for c, side in zip(in_channels, sides, strict=True)])
    assert neck.out_channels == channels
    assert [tuple(level.shape) for level in maps] == [(2, c, *side) for c, side in zip(channels, sides, strict=True)]


def test_every_output_depends_on_every_input():
    neck = MODELS.build({'type': 'YOLONeck', 'in_channels': (128, 128, 256), 'scale': 'n'})
    features = [torch.randn(2, c, s, s, requires_grad=True) for c, s in ((128, 8), (128, 4), (256, 2))]
    for level in neck(features):
        gradients = torch.autograd.grad((level * torch.randn_like(level)).sum(), features, retain_graph=True)
        assert all(gradient.abs().sum() > 0 for gradient in gradients)
