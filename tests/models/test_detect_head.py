import math

import pytest
import torch
from torch import nn

from lucid.models.heads.stems import apply_stems, make_stems
from lucid.registry import HEADS


@pytest.fixture
def head():
    return HEADS.build({'type': 'DetectHead', 'in_channels': (64, 128, 256), 'num_classes': 5})


def features(batch=2):
    return [torch.randn(batch, c, *side) for c, side in ((64, (8, 12)), (128, (4, 6)), (256, (2, 3)))]


def test_both_branches_give_logits_and_boxes_over_all_anchors(head):
    outputs = head(features())
    assert [tuple(output.shape) for output in outputs] == [(2, 126, 5), (2, 126, 4)] * 2
    assert not torch.equal(outputs.o2m_boxes_BA4, outputs.o2o_boxes_BA4)


def test_every_class_starts_at_one_percent_and_other_biases_do_not(head):
    for branch in (head.one_to_many, head.one_to_one):
        for stem in branch.classes:
            torch.testing.assert_close(stem[-1].bias, torch.full((5,), -4.59512))
            torch.testing.assert_close(stem[-1].bias.sigmoid(), torch.full((5,), 0.01))
        for stem in branch.boxes:
            assert stem[-1].bias.abs().max() <= 1 / math.sqrt(stem[-1].in_channels)


def test_branches_share_no_parameter(head):
    assert not {id(p) for p in head.one_to_many.parameters()} & {id(p) for p in head.one_to_one.parameters()}


def test_both_branches_send_gradients_into_the_features(head):
    maps = [feature.requires_grad_() for feature in features()]
    outputs = head(maps)
    for output in outputs:
        gradients = torch.autograd.grad((output * torch.randn_like(output)).sum(), maps, retain_graph=True)
        assert all(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize(
    ('channels', 'divisor', 'hidden'), [(64, 3, 21), (256, 3, 85), (384, 3, 128), (32, 3, 16), (64, 2, 32)]
)
def test_hidden_channels_of_a_stem(channels, divisor, hidden):
    (stem,) = make_stems([channels], out_channels=4, divisor=divisor)
    assert stem[-1].in_channels == hidden


def test_the_layers_of_a_stem():
    (stem,) = make_stems([64], out_channels=4)
    shapes = [tuple(layer.conv.weight.shape) for layer in stem[:4]]
    assert shapes == [(64, 1, 3, 3), (21, 64, 1, 1), (21, 1, 3, 3), (21, 21, 1, 1)]
    assert isinstance(stem[4], nn.Conv2d)
    assert stem[4].bias is not None


@pytest.mark.parametrize('memory_format', [torch.contiguous_format, torch.channels_last])
def test_anchors_follow_the_order_of_the_grid(memory_format):
    """Identity stems over maps that hold their own row and column."""
    maps = []
    for height, width in ((2, 3), (1, 2)):
        ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing='ij')
        maps.append(torch.stack((xs, ys))[None].float().to(memory_format=memory_format))
    rows = apply_stems(nn.ModuleList([nn.Identity(), nn.Identity()]), maps)
    assert rows.tolist() == [[[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1], [0, 0], [1, 0]]]
