import numpy as np
import pytest
import torch
from faster_coco_eval import mask as coco_mask
from torch import nn

from lucid.models.heads.prototypes import ProtoFusion, ProtoNet
from lucid.registry import HEADS
from lucid.structures import SegmentOutputs
from lucid.structures.anchors import make_anchor_grid
from lucid.structures.mask_decoding import decode_masks

GRID = make_anchor_grid((32, 32))  # 21 anchors
META = {'image_id': 0, 'file': '', 'original_hw': (16, 16), 'matrix': np.diag([2.0, 2.0, 1.0])}
OPTIONS = {'max_detections': 300, 'score_threshold': 0.5}


@pytest.fixture
def head():
    torch.manual_seed(0)
    return HEADS.build({'type': 'SegmentHead', 'in_channels': (64, 128, 256), 'num_classes': 5, 'num_prototypes': 3})


def features(batch=2):
    return [torch.randn(batch, c, *side) for c, side in ((64, (8, 12)), (128, (4, 6)), (256, (2, 3)))]


def test_both_branches_give_coefficients_and_share_the_prototypes(head):
    outputs = head(features())
    assert isinstance(outputs, SegmentOutputs)
    shapes = [(2, 126, 5), (2, 126, 4)] * 2 + [(2, 126, 3)] * 2 + [(2, 3, 16, 24), (2, 5, 8, 12)]
    assert [tuple(output.shape) for output in outputs] == shapes
    assert not torch.equal(outputs.o2m_coefficients_BAK, outputs.o2o_coefficients_BAK)


def test_there_are_32_prototypes_unless_stated_otherwise():
    head = HEADS.build({'type': 'SegmentHead', 'in_channels': (64, 128, 256), 'num_classes': 5})
    outputs = head(features(1))
    assert outputs.prototypes_BKHW.shape[1] == outputs.o2o_coefficients_BAK.shape[2] == 32


def test_coefficients_passed_through_tanh_and_prototypes_and_semantic_logits_did_not(head):
    with torch.no_grad():
        for layer in (*(stem[-1] for stem in head.o2m_coefficients), head.prototypes.final, head.semantic):
            layer.weight.zero_()
            layer.bias.fill_(2.0)
        for stem in head.o2o_coefficients:
            stem[-1].weight.zero_()
            stem[-1].bias.fill_(-1.0)
    outputs = head(features())
    torch.testing.assert_close(outputs.o2m_coefficients_BAK, torch.full((2, 126, 3), 0.9640276))
    torch.testing.assert_close(outputs.o2o_coefficients_BAK, torch.full((2, 126, 3), -0.7615942))
    assert outputs.prototypes_BKHW.eq(2.0).all()
    assert outputs.semantic_BCHW.eq(2.0).all()
    assert not outputs.o2o_coefficients_BAK.eq(outputs.o2m_coefficients_BAK).any()


def test_the_semantic_map_goes_by_the_mode_of_the_module_and_not_by_gradients(head):
    maps = features()
    with torch.no_grad():
        assert head(maps).semantic_BCHW is not None
    head.eval()
    assert head(maps).semantic_BCHW is None
    assert head(maps).o2m_boxes_BA4.requires_grad
    assert head.train()(maps).semantic_BCHW is not None


def test_classes_of_branches_and_of_the_semantic_map_start_at_one_percent(head):
    finals = [stem[-1] for branch in (head.one_to_many, head.one_to_one) for stem in branch.classes]
    for layer in (*finals, head.semantic):
        torch.testing.assert_close(layer.bias, torch.full((5,), -4.59512))
    for layer in (*(stem[-1] for stem in head.o2o_coefficients), head.prototypes.final):
        assert 0 < layer.bias.abs().max() <= layer.in_channels**-0.5


def test_every_row_of_a_class_is_named_the_semantic_ones_too(head):
    state = head.state_dict()
    assert len(head.class_rows) == 2 * 3 * 2 + 2
    assert {'semantic.weight', 'semantic.bias'} < set(head.class_rows)
    assert all(state[name].shape[0] == 5 for name in head.class_rows)
    others = [name for name, value in state.items() if value.ndim and value.shape[0] == 5]
    assert set(others) == set(head.class_rows)


def test_fusion_leaves_the_first_level_and_adds_each_projected_and_repeated():
    fusion = ProtoFusion((2, 1, 1))
    with torch.no_grad():
        for projection, weight in zip(fusion.projections, (10.0, 100.0), strict=True):
            projection.weight.fill_(weight)
            projection.bias.fill_(0.5)
    first = torch.arange(2 * 4 * 8.0).view(1, 2, 4, 8)
    second, third = torch.arange(8.0).view(1, 1, 2, 4), torch.tensor([[[[3.0, 4.0]]]])
    fused = fusion([first, second, third])
    for channel, row, column in np.ndindex(2, 4, 8):
        expected = first[0, channel, row, column] + 10 * second[0, 0, row // 2, column // 2] + 0.5
        expected = expected + 100 * third[0, 0, row // 4, column // 4] + 0.5
        assert fused[0, channel, row, column] == expected


def test_the_layers_of_the_prototypes():
    net = ProtoNet(64, num_prototypes=3)
    kernels = [tuple(unit.conv.weight.shape) for unit in (*net.coarse, net.fine)]
    assert kernels == [(64, 64, 3, 3)] * 4
    assert isinstance(net.final, nn.Conv2d)
    assert tuple(net.final.weight.shape) == (3, 64, 1, 1)
    assert net.final.bias is not None
    assert net(torch.randn(1, 64, 4, 6)).shape == (1, 3, 8, 12)


def test_every_output_sends_gradients_into_the_features(head):
    maps = [feature.requires_grad_() for feature in features()]
    for output in head(maps)[:7]:
        reached = torch.autograd.grad(output.square().sum(), maps, retain_graph=True, allow_unused=True)
        assert all(gradient.abs().sum() > 0 for gradient in reached)
    (gradient,) = torch.autograd.grad(head(maps).semantic_BCHW.square().sum(), maps[1])
    assert gradient.abs().sum() > 0


def outputs_of(one_to_many, one_to_one, *, dtype=torch.float32):
    """(anchor, logit, distances) per detection of each branch, class 0.

    Prototype k is the k-th quarter of the image, coefficients ask for quarter ``anchor % 4``.
    """
    prototypes = torch.full((1, 4, 8, 8), -9.0)
    for quarter, (row, column) in enumerate(((0, 0), (0, 4), (4, 0), (4, 4))):
        prototypes[0, quarter, row : row + 4, column : column + 4] = 9.0
    fields = []
    for rows in (one_to_many, one_to_one):
        logits, boxes = torch.full((1, 21, 1), -20.0), torch.zeros(1, 21, 4)
        for anchor, logit, distances in rows:
            logits[0, anchor], boxes[0, anchor] = logit, torch.tensor(distances)
        fields += [logits, boxes]
    coefficients = torch.nn.functional.one_hot(torch.arange(21) % 4, 4)[None].float()
    fields += [coefficients, coefficients.clone(), prototypes]
    return SegmentOutputs(*(field.to(dtype) for field in fields), semantic_BCHW=None)


WHOLE = [9.0, 9.0, 9.0, 9.0]  # 72 pixels to each side: the whole input


def quarter_of(mask):
    """The quarter that a mask of the original image fills; bilinear, it may lack the pixel at the image's centre."""
    pixels = coco_mask.decode(mask)
    assert pixels.sum() in (63, 64)
    return next(q for q in range(4) if pixels[8 * (q // 2) :, 8 * (q % 2) :][:8, :8].sum() == pixels.sum())


def test_the_anchor_of_a_box_gives_its_coefficients_by_both_paths(head, predict):
    """Anchors out of order, one inverted and one outside the image between them."""
    rows = [(6, 4.0, WHOLE), (3, 3.0, [-2.0, 0.0, 1.0, 1.0]), (1, 2.0, [9.0, 0.0, -9.0, 1.0]), (8, 1.0, WHOLE)]
    outputs = outputs_of([(7, 2.0, WHOLE), (4, 1.0, [0.5, 0.5, 0.5, 0.5])], rows)
    (found,) = predict(head, outputs, GRID, [META], **OPTIONS)
    assert found['boxes'].tolist() == [[0, 0, 16, 16]] * 2
    assert [quarter_of(mask) for mask in found['masks']] == [6 % 4, 8 % 4]
    (found,) = predict(head, outputs, GRID, [META], path='nms', **OPTIONS)
    assert len(found['masks']) == len(found['scores']) == 2
    assert quarter_of(found['masks'][0]) == 7 % 4
    # Anchor 4 sees 8 pixels about (4, 12), all of quarter 0; in the original 4 about (2, 6).
    expected = np.zeros((16, 16), bool)
    expected[4:8, 0:4] = True
    np.testing.assert_array_equal(coco_mask.decode(found['masks'][1]), expected)
    # Control: the coefficients of the ranks, 0 and 3, instead of those of the anchors show other quarters.
    boxes = torch.tensor([[-60.0, -60.0, 90.0, 90.0]]).repeat(2, 1)
    coefficients, prototypes = outputs.o2o_coefficients_BAK[0, [0, 3]], outputs.prototypes_BKHW[0]
    ranked = decode_masks(coefficients.numpy(), prototypes.numpy(), boxes.numpy(), meta=META)
    assert [quarter_of(mask) for mask in ranked] == [0, 3]


def test_nms_drops_what_overlaps_with_its_mask_and_the_branches_are_their_own(head, predict):
    outputs = outputs_of([(5, 1.0, WHOLE), (2, 3.0, WHOLE)], [])
    (found,) = predict(head, outputs, GRID, [META], path='nms', **OPTIONS)
    assert [quarter_of(mask) for mask in found['masks']] == [2]
    (found,) = predict(head, outputs, GRID, [META], path='nms', iou_threshold=1.0, **OPTIONS)
    assert [quarter_of(mask) for mask in found['masks']] == [2, 1]
    (found,) = predict(head, outputs, GRID, [META], **OPTIONS)
    assert found['masks'] == []


def test_each_path_takes_the_coefficients_of_its_own_branch(head, predict):
    outputs = outputs_of([(6, 4.0, WHOLE)], [(6, 4.0, WHOLE)])
    outputs = outputs._replace(o2m_coefficients_BAK=outputs.o2m_coefficients_BAK.roll(1, dims=2))
    for path, quarter in (('one_to_one', 2), ('nms', 3)):
        (found,) = predict(head, outputs, GRID, [META], path=path, **OPTIONS)
        assert [quarter_of(mask) for mask in found['masks']] == [quarter]


def test_a_mask_that_cannot_be_summed_takes_its_box_along(head, predict):
    outputs = outputs_of([], [(6, 4.0, WHOLE), (8, 3.0, WHOLE)])
    outputs.o2o_coefficients_BAK[0, 6, 1] = float('nan')
    (found,) = predict(head, outputs, GRID, [META], **OPTIONS)
    assert [quarter_of(mask) for mask in found['masks']] == [0]


def test_half_precision_gives_what_its_float32_values_give(head, predict):
    rows = [(6, 4.0, [0.3, 0.6, 1.7, 0.9]), (8, 3.0, [0.7, 1.1, 0.4, 1.3])]
    half = outputs_of(rows, rows, dtype=torch.bfloat16)
    exact = SegmentOutputs(*(None if field is None else field.float() for field in half))
    for path in head.paths:
        (found,) = predict(head, half, GRID, [META], path=path, **OPTIONS)
        (expected,) = predict(head, exact, GRID, [META], path=path, **OPTIONS)
        assert found['masks'] == expected['masks']
        assert torch.equal(found['boxes'], expected['boxes'])


def test_a_head_without_prototypes_is_refused():
    with pytest.raises(ValueError, match=r'num_prototypes=0 leaves no mask'):
        HEADS.build({'type': 'SegmentHead', 'in_channels': (64, 128, 256), 'num_classes': 5, 'num_prototypes': 0})
