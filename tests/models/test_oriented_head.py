import math

import numpy as np
import pytest
import torch

from lucid.registry import HEADS
from lucid.structures import OrientedOutputs
from lucid.structures.anchors import make_anchor_grid

GRID = make_anchor_grid((64, 64))  # 84 anchors
META = {'image_id': 0, 'file': '', 'original_hw': (32, 32), 'matrix': np.diag([2.0, 2.0, 1.0])}
OPTIONS = {'max_detections': 300, 'score_threshold': 0.5}
QUARTER = math.pi / 4


@pytest.fixture
def head():
    torch.manual_seed(0)
    return HEADS.build({'type': 'OrientedHead', 'in_channels': (64, 128, 256), 'num_classes': 5})


def test_both_branches_give_angles_that_are_not_bounded(head):
    maps = [torch.randn(2, c, *side) for c, side in ((64, (8, 12)), (128, (4, 6)), (256, (2, 3)))]
    outputs = head(maps)
    assert isinstance(outputs, OrientedOutputs)
    shapes = [(2, 126, 5), (2, 126, 4)] * 2 + [(2, 126, 1)] * 2
    assert [tuple(output.shape) for output in outputs] == shapes
    assert not torch.equal(outputs.o2m_angles_BA1, outputs.o2o_angles_BA1)
    with torch.no_grad():
        for stem in head.o2o_angles:
            stem[-1].bias.fill_(100.0)
    assert head(maps).o2o_angles_BA1.gt(90).all()


def test_the_stem_of_the_angle_is_half_as_wide_as_its_level(head):
    assert [stem[-1].in_channels for stem in head.o2m_angles] == [32, 64, 128]
    assert [stem[-1].in_channels for stem in head.one_to_many.boxes] == [21, 42, 85]


def test_angles_start_where_torch_starts_them_and_classes_at_one_percent(head):
    for stem in head.o2o_angles:
        assert 0 < stem[-1].bias.abs().max() <= stem[-1].in_channels ** -0.5
    for stem in head.one_to_one.classes:
        torch.testing.assert_close(stem[-1].bias, torch.full((5,), -4.59512))


def test_every_row_of_a_class_is_named(head):
    state = head.state_dict()
    others = [name for name, value in state.items() if value.ndim and value.shape[0] == 5]
    assert len(head.class_rows) == 12
    assert set(others) == set(head.class_rows)


def outputs_of(one_to_many, one_to_one, *, dtype=torch.float32):
    """(anchor, logit, distances, angle) per detection of each branch, class 0."""
    fields, angles = [], []
    for rows in (one_to_many, one_to_one):
        logits, boxes, turns = torch.full((1, 84, 1), -20.0), torch.zeros(1, 84, 4), torch.zeros(1, 84, 1)
        for anchor, logit, distances, angle in rows:
            logits[0, anchor], boxes[0, anchor], turns[0, anchor] = logit, torch.tensor(distances), angle
        fields, angles = [*fields, logits, boxes], [*angles, turns]
    return OrientedOutputs(*(field.to(dtype) for field in (*fields, *angles)))


def test_a_box_is_turned_about_its_own_centre_by_the_angle_of_its_anchor(head, predict):
    """Anchor 27 is at (28, 28): x from 12 to 36 and y from 20 to 28 is 24 by 8 about (24, 24)."""
    rows = [(27, 2.0, [2.0, 1.0, 1.0, 0.0], QUARTER), (3, 3.0, [-2.0, 0.0, 1.0, 1.0], 0.1), (0, 1.0, [0.25] * 4, 0.0)]
    (found,) = predict(head, outputs_of([], rows), GRID, [META], **OPTIONS)
    # In original pixels half of it; the second is inverted, the third 4 by 4 about (4, 4).
    np.testing.assert_allclose(found['rboxes'], [[12, 12, 12, 4, QUARTER], [2, 2, 2, 2, 0]], atol=1e-6)
    half = (6 + 2) * math.cos(QUARTER)
    np.testing.assert_allclose(found['boxes'], [[12 - half, 12 - half, 12 + half, 12 + half], [1, 1, 3, 3]], rtol=1e-6)
    # Control: about the anchor instead of the box's centre it would lie elsewhere.
    assert found['rboxes'][0, :2].tolist() != [14, 14]


def test_both_paths_take_the_angles_of_their_own_branch(head, predict):
    many = [(27, 2.0, [2.0, 0.5, 2.0, 0.5], QUARTER), (28, 1.0, [3.0, 0.5, 1.0, 0.5], QUARTER + 0.05)]
    one = [(27, 2.0, [2.0, 0.5, 2.0, 0.5], -QUARTER)]
    outputs = outputs_of(many, one)
    (found,) = predict(head, outputs, GRID, [META], **OPTIONS)
    np.testing.assert_allclose(found['rboxes'], [[14, 14, 16, 4, -QUARTER]], rtol=1e-6)
    (found,) = predict(head, outputs, GRID, [META], path='nms', **OPTIONS)
    np.testing.assert_allclose(found['rboxes'], [[14, 14, 16, 4, QUARTER]], rtol=1e-6)
    (found,) = predict(head, outputs, GRID, [META], path='nms', iou_threshold=1.0, **OPTIONS)
    np.testing.assert_allclose(found['rboxes'][:, 4], [QUARTER, QUARTER + 0.05], rtol=1e-6)


@pytest.mark.parametrize('path', ['one_to_one', 'nms'])
def test_a_box_whose_angle_is_not_finite_is_no_detection(head, path, predict):
    rows = [(27, 2.0, [2.0, 0.5, 2.0, 0.5], float('nan')), (0, 1.0, [0.25] * 4, 0.0)]
    (found,) = predict(head, outputs_of(rows, rows), GRID, [META], path=path, **{**OPTIONS, 'max_detections': 1})
    np.testing.assert_allclose(found['rboxes'], [[2, 2, 2, 2, 0]])


@pytest.mark.parametrize('path', ['one_to_one', 'nms'])
def test_half_precision_gives_what_its_float32_values_give(head, path, predict):
    rows = [(27, 2.0, [2.3, 0.7, 1.7, 0.45], 0.77), (0, 1.0, [0.2, 0.3, 0.4, 0.5], 0.1)]
    half = outputs_of(rows, rows, dtype=torch.bfloat16)
    (found,) = predict(head, half, GRID, [META], path=path, **OPTIONS)
    (expected,) = predict(head, OrientedOutputs(*(f.float() for f in half)), GRID, [META], path=path, **OPTIONS)
    assert len(found['rboxes']) == 2
    assert torch.equal(found['rboxes'], expected['rboxes'])
