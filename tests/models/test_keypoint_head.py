import numpy as np
import pytest
import torch

from lucid.registry import HEADS
from lucid.structures import KeypointOutputs
from lucid.structures.anchors import make_anchor_grid

GRID = make_anchor_grid((64, 64))  # 84 anchors
META = {'image_id': 0, 'file': '', 'original_hw': (32, 32), 'matrix': np.diag([2.0, 2.0, 1.0])}
OPTIONS = {'max_detections': 300, 'score_threshold': 0.5}
CONFIG = {'type': 'KeypointHead', 'in_channels': (64, 128, 256), 'num_classes': 5, 'num_keypoints': 3}


@pytest.fixture
def head():
    torch.manual_seed(0)
    return HEADS.build(CONFIG)


def features(batch=2):
    return [torch.randn(batch, c, *side) for c, side in ((64, (8, 12)), (128, (4, 6)), (256, (2, 3)))]


def test_both_branches_give_points_and_their_spread(head):
    outputs = head(features())
    assert isinstance(outputs, KeypointOutputs)
    shapes = [(2, 126, 5), (2, 126, 4)] * 2 + [(2, 126, 3, 2)] * 4
    assert [tuple(output.shape) for output in outputs] == shapes
    # A recording hands out copies, which are contiguous: eager must not differ.
    assert all(output.is_contiguous() for output in outputs)


def test_a_stem_gives_x_y_and_the_spread_along_x_and_y_point_after_point(head):
    with torch.no_grad():
        for stems, start in ((head.o2m_points, 0.0), (head.o2o_points, 100.0)):
            for stem in stems:
                stem[-1].weight.zero_()
                stem[-1].bias.copy_(start + torch.arange(12.0))
    outputs = head(features())
    assert outputs.o2m_points_BAJ2[1, 70].tolist() == [[0, 1], [4, 5], [8, 9]]
    assert outputs.o2m_sigmas_BAJ2[1, 70].tolist() == [[2, 3], [6, 7], [10, 11]]
    assert outputs.o2o_points_BAJ2[0, 5].tolist() == [[100, 101], [104, 105], [108, 109]]
    assert outputs.o2o_sigmas_BAJ2[0, 5].tolist() == [[102, 103], [106, 107], [110, 111]]


def test_every_row_of_a_class_is_named(head):
    state = head.state_dict()
    others = [name for name, value in state.items() if value.ndim and value.shape[0] == 5]
    assert len(head.class_rows) == 12
    assert set(others) == set(head.class_rows)


def test_a_head_without_points_is_refused():
    with pytest.raises(ValueError, match='num_keypoints=0 leaves no point to find; make it 1 or more'):
        HEADS.build({**CONFIG, 'num_keypoints': 0})


def outputs_of(one_to_many, one_to_one, *, dtype=torch.float32):
    """(anchor, logit, distances) per detection of each branch; point j of anchor a is at (j, a / 10) strides from it,
    of one-to-many on the other side."""
    fields = []
    for rows in (one_to_many, one_to_one):
        logits, boxes = torch.full((1, 84, 1), -20.0), torch.zeros(1, 84, 4)
        for anchor, logit, distances in rows:
            logits[0, anchor], boxes[0, anchor] = logit, torch.tensor(distances)
        fields += [logits, boxes]
    points = torch.stack(torch.broadcast_tensors(torch.arange(3.0), torch.arange(84.0)[:, None] / 10), dim=-1)[None]
    fields += [-points, points, torch.zeros_like(points), torch.zeros_like(points)]
    return KeypointOutputs(*(field.to(dtype) for field in fields))


def test_the_anchor_of_a_box_gives_its_points_by_both_paths(head, predict):
    """Anchors out of order, one inverted and one outside the image between them."""
    rows = [
        (30, 4.0, [1.0] * 4),
        (3, 3.0, [-2.0, 0.0, 1.0, 1.0]),
        (1, 2.0, [9.0, 0.0, -9.0, 1.0]),
        (10, 1.0, [1.0] * 4),
    ]
    outputs = outputs_of([(9, 2.0, [1.0] * 4), (10, 1.0, [2.0, 1.0, 0.0, 1.0])], rows)
    (found,) = predict(head, outputs, GRID, [META], **OPTIONS)
    # Anchor 30 is at (52, 28), anchor 10 at (20, 12), 8 pixels to a stride; originals have half of all that.
    expected = [[[26, 26], [30, 26], [34, 26]], [[10, 10], [14, 10], [18, 10]]]
    np.testing.assert_allclose(found['keypoints'], expected, rtol=1e-6)
    assert found['boxes'].tolist() == [[22, 10, 30, 18], [6, 2, 14, 10]]
    # Anchor 9 is at (12, 12); anchor 10 sees the same box, and goes.
    (found,) = predict(head, outputs, GRID, [META], path='nms', **OPTIONS)
    np.testing.assert_allclose(found['keypoints'], [[[6, 2.4], [2, 2.4], [-2, 2.4]]], rtol=1e-6)
    (found,) = predict(head, outputs, GRID, [META], path='nms', iou_threshold=1.0, **OPTIONS)
    np.testing.assert_allclose(found['keypoints'][1], [[10, 2], [6, 2], [2, 2]], rtol=1e-6)


@pytest.mark.parametrize('path', ['one_to_one', 'nms'])
def test_an_object_with_a_point_that_is_not_finite_is_no_detection(head, path, predict):
    rows = [(30, 4.0, [1.0] * 4), (10, 1.0, [1.0] * 4)]
    outputs = outputs_of(rows, rows)
    outputs.o2m_points_BAJ2[0, 30, 2, 0] = outputs.o2o_points_BAJ2[0, 30, 2, 0] = float('inf')
    (found,) = predict(head, outputs, GRID, [META], path=path, **{**OPTIONS, 'max_detections': 1})
    assert found['boxes'].tolist() == [[6, 2, 14, 10]]
    assert found['keypoints'].isfinite().all()


@pytest.mark.parametrize('path', ['one_to_one', 'nms'])
def test_half_precision_gives_what_its_float32_values_give(head, path, predict):
    rows = [(30, 4.0, [1.3] * 4), (10, 1.0, [0.7] * 4)]
    half = outputs_of(rows, rows, dtype=torch.bfloat16)
    (found,) = predict(head, half, GRID, [META], path=path, **OPTIONS)
    (expected,) = predict(head, KeypointOutputs(*(f.float() for f in half)), GRID, [META], path=path, **OPTIONS)
    assert len(found['keypoints']) == 2
    assert torch.equal(found['keypoints'], expected['keypoints'])
