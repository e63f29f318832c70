import numpy as np
import pytest
import torch
from torch import nn

from lucid.models.heads.stems import apply_stems, make_stems
from lucid.registry import HEADS
from lucid.structures import RawOutputs
from lucid.structures.anchors import make_anchor_grid


@pytest.fixture
def head():
    return HEADS.build({'type': 'DetectHead', 'in_channels': (64, 128, 256), 'num_classes': 5})


def features(batch=2):
    return [torch.randn(batch, c, *side) for c, side in ((64, (8, 12)), (128, (4, 6)), (256, (2, 3)))]


def test_both_branches_give_logits_and_boxes_over_all_anchors(head):
    outputs = head(features())
    assert [tuple(output.shape) for output in outputs] == [(2, 126, 5), (2, 126, 4)] * 2
    assert not torch.equal(outputs.o2m_boxes_BA4, outputs.o2o_boxes_BA4)


def test_every_class_starts_at_one_percent_and_boxes_where_torch_starts_them(head):
    for branch in (head.one_to_many, head.one_to_one):
        for stem in branch.classes:
            torch.testing.assert_close(stem[-1].bias, torch.full((5,), -4.59512))
            torch.testing.assert_close(stem[-1].bias.sigmoid(), torch.full((5,), 0.01))
        for stem in branch.boxes:
            assert 0 < stem[-1].bias.abs().max() <= stem[-1].in_channels ** -0.5


def test_predictions_come_from_the_one_to_one_branch(head, predict):
    """One-to-one puts class 2 at the first anchor, one-to-many class 4 at the last; swapped, the other is found."""
    grid = make_anchor_grid((32, 32), strides=(8, 16, 32), device='cpu')
    metas = [{'image_id': 0, 'file': '', 'original_hw': (32, 32), 'matrix': np.eye(3)}]
    branches = []
    for anchor, label, distance in ((20, 4, 0.25), (0, 2, 0.5)):
        logits_BAC, boxes_BA4 = torch.full((1, 21, 5), -20.0), torch.full((1, 21, 4), distance)
        logits_BAC[0, anchor, label] = 20.0
        branches += [logits_BAC, boxes_BA4]
    for outputs, label, box in (
        (RawOutputs(*branches), 2, [0, 0, 8, 8]),
        (RawOutputs(*branches[2:], *branches[:2]), 4, [8, 8, 24, 24]),
    ):
        (found,) = predict(head, outputs, grid, metas, max_detections=300, score_threshold=0.5)
        assert found['labels'].tolist() == [label]
        assert found['boxes'].tolist() == [box]


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


def test_boxes_can_start_with_a_size():
    head = HEADS.build({'type': 'DetectHead', 'in_channels': (64, 128, 256), 'num_classes': 5, 'box_start': 2.0})
    for branch in (head.one_to_many, head.one_to_one):
        assert all(stem[-1].bias.tolist() == [2.0] * 4 for stem in branch.boxes)


def test_the_nms_path_takes_the_one_to_many_branch_and_drops_what_overlaps_a_better_box(predict) -> None:
    """Three anchors of one-to-many see the same box, two of them as one class; one-to-one sees nothing."""
    grid = make_anchor_grid((32, 32), strides=(8, 16, 32), device='cpu')
    metas = [{'image_id': 0, 'file': '', 'original_hw': (32, 32), 'matrix': np.eye(3)}]
    logits_BAC, boxes_BA4 = torch.full((1, 21, 5), -20.0), torch.zeros(1, 21, 4)
    for anchor, label, logit in ((5, 4, 2.0), (6, 4, 3.0), (9, 1, 1.0)):
        logits_BAC[0, anchor, label] = logit
        centre = grid.centers_A2[anchor]
        boxes_BA4[0, anchor] = torch.cat((centre - 8, 24 - centre)) / grid.strides_A[anchor]
    nothing = torch.full((1, 21, 5), -20.0), torch.zeros(1, 21, 4)
    head = HEADS.build({'type': 'DetectHead', 'in_channels': (64, 128, 256), 'num_classes': 5})
    outputs = RawOutputs(logits_BAC, boxes_BA4, *nothing)
    options = {'max_detections': 300, 'score_threshold': 0.001}
    (found,) = predict(head, outputs, grid, metas, path='nms', **options)
    assert found['labels'].tolist() == [4, 1]
    assert found['boxes'].tolist() == [[8, 8, 24, 24]] * 2
    # Controls: an IoU of 1 keeps the duplicate, and the other path looks at the other branch.
    (found,) = predict(head, outputs, grid, metas, path='nms', iou_threshold=1.0, **options)
    assert found['labels'].tolist() == [4, 4, 1]
    (found,) = predict(head, outputs, grid, metas, **options)
    assert found['labels'].tolist() == []
