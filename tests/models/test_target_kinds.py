"""Masks, rotated boxes and keypoints on their way from collate to the device."""

import pytest
import torch

from lucid.registry import MODELS
from lucid.structures import PackedTargets, Targets

FIELDS = {'masks': 'masks_BMHW', 'rboxes': 'rboxes_BM5', 'keypoints': 'keypoints_BMJ3'}
TASKS = {'segment': 'masks', 'oriented': 'rboxes', 'keypoint': 'keypoints'}


def make(**options):
    return MODELS.build({'type': 'DetDataPreprocessor', 'num_classes': 3, **options})


def packed(*counts):
    """Row r has the mask cell (r, r + 1), a rotated box about (r, r) and keypoints at (r, j) of visibility j."""
    rows = sum(counts)
    start = torch.arange(rows, dtype=torch.float32)
    masks = torch.zeros(rows, 8, 16, dtype=torch.bool)
    masks[torch.arange(rows), torch.arange(rows) % 8, torch.arange(rows) % 8 + 1] = True
    keypoints = torch.stack(torch.broadcast_tensors(start[:, None], torch.arange(3.0), torch.arange(3.0)), dim=-1)
    return PackedTargets(
        boxes_N4=torch.stack((start, start * 0, start + 1, start * 0 + 2), dim=1),
        labels_N=torch.arange(rows) % 3,
        image_N=torch.tensor([i for i, count in enumerate(counts) for _ in range(count)], dtype=torch.int64),
        slot_N=torch.tensor([slot for count in counts for slot in range(count)], dtype=torch.int64),
        counts=list(counts),
        masks_NHW=masks,
        rboxes_N5=torch.stack((start, start, start * 0 + 4, start * 0 + 2, start * 0.1), dim=1),
        keypoints_NJ3=keypoints.contiguous(),
    )


def batch(targets):
    num_images = len(targets.counts)
    return {
        'inputs': torch.zeros((num_images, 32, 64, 3), dtype=torch.uint8),
        'targets': targets,
        'metas': [{'file': f'{index}.jpg'} for index in range(num_images)],
    }


def test_rows_of_every_kind_go_to_their_image_and_slot_and_the_rest_is_zero(device):
    targets = make().to(device)(batch(packed(2, 0, 1)), True)['targets']
    assert isinstance(targets, Targets)
    assert all(field.device.type == device.type for field in targets)
    assert targets.masks_BMHW.shape == (3, 64, 8, 16)
    assert targets.masks_BMHW.dtype == torch.bool
    assert targets.masks_BMHW.nonzero().tolist() == [[0, 0, 0, 1], [0, 1, 1, 2], [2, 0, 2, 3]]
    torch.testing.assert_close(targets.rboxes_BM5[0, 1].cpu(), torch.tensor([1, 1, 4, 2, 0.1]))
    torch.testing.assert_close(targets.rboxes_BM5[2, 0].cpu(), torch.tensor([2, 2, 4, 2, 0.2]))
    assert targets.keypoints_BMJ3.shape == (3, 64, 3, 3)
    assert targets.keypoints_BMJ3[2, 0].tolist() == [[2, 0, 0], [2, 1, 1], [2, 2, 2]]
    for field in FIELDS.values():
        assert not getattr(targets, field)[~targets.valid_BM].any()
    assert targets.valid_BM.sum(dim=1).tolist() == [2, 0, 1]


def test_a_kind_that_a_batch_lacks_stays_away():
    targets = packed(1)._replace(masks_NHW=None, keypoints_NJ3=None)
    found = make()(batch(targets), True)['targets']
    assert (found.masks_BMHW, found.keypoints_BMJ3) == (None, None)
    assert found.rboxes_BM5.shape == (1, 64, 5)


def test_a_batch_without_objects_has_the_shapes_of_any_other():
    targets = make()(batch(packed(0, 0)), True)['targets']
    assert targets.masks_BMHW.shape == (2, 64, 8, 16)
    assert targets.rboxes_BM5.shape == (2, 64, 5)
    assert targets.keypoints_BMJ3.shape == (2, 64, 3, 3)
    assert not targets.masks_BMHW.any()


@pytest.mark.parametrize(('task', 'kind'), [*TASKS.items(), ('detect', None)])
def test_a_task_takes_its_own_kind_alone(task, kind):
    targets = make(task=task)(batch(packed(1)), True)['targets']
    assert [name for name, field in FIELDS.items() if getattr(targets, field) is not None] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ('task', 'message'),
    [
        (
            'segment',
            r"no masks, which the task 'segment' learns from; set train_dataloader\.collate_fn=dict\(type="
            r"'detection_collate', masks=True\), and add 'masks' to train_dataloader\.dataset\.targets",
        ),
        ('oriented', r"no rboxes, .*; add 'rboxes' to train_dataloader\.dataset\.targets"),
        ('keypoint', r"no keypoints, .*; add 'keypoints' to train_dataloader\.dataset\.targets"),
    ],
)
def test_a_kind_that_training_needs_is_missed_by_name_and_evaluation_does_without(task, message):
    data = batch(PackedTargets(*packed(1)[:5]))
    with pytest.raises(ValueError, match=message):
        make(task=task)(data, True)
    assert make(task=task)(data, False)['targets'][3:] == (None, None, None)


def test_moving_and_padding_read_no_tensor_on_the_host():
    """The meta device has shapes but no values, and refuses to be read."""
    prepared = make().to('meta')(batch(packed(65, 0)))['targets']
    assert all(field.is_meta for field in prepared)
    assert prepared.masks_BMHW.shape == (2, 128, 8, 16)


@pytest.mark.parametrize(
    'masks', [torch.zeros(3, 8, 16), torch.zeros(3, 4, 8, dtype=torch.bool), torch.zeros(2, 8, 16, dtype=torch.bool)]
)
def test_masks_of_another_type_grid_or_number_are_refused(masks):
    message = r'for 3 objects in images of 32x64 pixels; collate torch.bool \(3, 8, 16\), as detection_collate does'
    with pytest.raises(ValueError, match=message):
        make()(batch(packed(1, 2)._replace(masks_NHW=masks)))


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_numbers_that_are_not_finite_are_refused_naming_kind_and_image(value):
    data = batch(packed(1, 2))
    data['targets'].rboxes_N5[1, 4] = value
    with pytest.raises(ValueError, match=r'1\.jpg has a rotated box that is not finite: \[1\.0, 1\.0, 4\.0'):
        make()(data)
    data = batch(packed(1, 2))
    data['targets'].keypoints_NJ3[2, 1, 0] = value
    with pytest.raises(ValueError, match=r'1\.jpg has keypoints that are not finite'):
        make()(data)


@pytest.mark.parametrize('visibility', [3.0, -1.0, 0.5])
def test_a_visibility_that_does_not_exist_is_refused_naming_the_image(visibility):
    data = batch(packed(1, 2))
    data['targets'].keypoints_NJ3[2, 1, 2] = visibility
    with pytest.raises(ValueError, match=r'1\.jpg has keypoints of visibility .*0 not labelled, 1 hidden, 2 visible'):
        make()(data)


def test_another_number_of_keypoints_is_refused():
    assert make(num_keypoints=3)(batch(packed(1)))['targets'].keypoints_BMJ3.shape[2] == 3
    with pytest.raises(ValueError, match='come with 3 keypoints, the model has num_keypoints=17; remove model'):
        make(num_keypoints=17)(batch(packed(1)))


def test_nothing_reaches_the_device_before_the_checks():
    """The meta device would refuse the comparison that finds the number."""
    data = batch(packed(1))
    data['targets'].rboxes_N5[0, 0] = float('nan')
    with pytest.raises(ValueError, match='a rotated box that is not finite'):
        make().to('meta')(data)
