import numpy as np
import pytest
import torch
from mmengine.registry import FUNCTIONS as ROOT_FUNCTIONS
from torch.utils.data._utils.pin_memory import pin_memory

from lucid.datasets.collate import detection_collate
from lucid.registry import FUNCTIONS
from lucid.structures import PackedTargets


@pytest.fixture
def samples(paint):
    return [
        paint((32, 64), [(10, 10, 8, 4, 0), (30, 10, 8, 4, 0)], [0, 1]),
        paint((32, 64), [], []),
        paint((32, 64), [(50, 20, 8, 4, 0)], [2]),
    ]


def test_rows_know_their_image_and_their_place_in_it(samples):
    batch = detection_collate(samples)
    targets = batch['targets']
    assert isinstance(targets, PackedTargets)
    assert targets.image_N.tolist() == [0, 0, 2]
    assert targets.slot_N.tolist() == [0, 1, 0]
    assert targets.labels_N.tolist() == [0, 1, 2]
    assert list(targets.counts) == [2, 0, 1]
    np.testing.assert_allclose(targets.boxes_N4[2], [46, 18, 54, 22], atol=1e-5)
    types = [tensor.dtype for tensor in targets[:4]]
    assert types == [torch.float32, torch.int64, torch.int64, torch.int64]


def test_images_stay_uint8_and_channels_last(samples):
    inputs = detection_collate(samples)['inputs']
    assert inputs.dtype == torch.uint8
    assert inputs.is_contiguous()
    assert inputs.shape == (3, 32, 64, 3)
    np.testing.assert_array_equal(inputs[2].numpy(), samples[2].image)
    assert inputs.permute(0, 3, 1, 2).is_contiguous(memory_format=torch.channels_last)


def test_metas_lead_back_to_the_file(samples):
    samples[1].image_id, samples[1].file = 17, 'b.jpg'
    samples[1].matrix = np.diag([2.0, 2.0, 1.0])
    meta = detection_collate(samples)['metas'][1]
    assert set(meta) == {'image_id', 'file', 'original_hw', 'matrix'}
    assert (meta['image_id'], meta['file'], meta['original_hw']) == (17, 'b.jpg', (32, 64))
    np.testing.assert_array_equal(meta['matrix'], np.diag([2, 2, 1]))


def test_a_batch_without_any_box_has_empty_rows(samples):
    targets = detection_collate([samples[1], samples[1]])['targets']
    assert [tuple(tensor.shape) for tensor in targets[:4]] == [(0, 4), (0,), (0,), (0,)]
    assert list(targets.counts) == [0, 0]


def test_read_only_and_mirrored_views_are_accepted(samples):
    samples[0].image.setflags(write=False)
    mirrored = samples[2].image[:, ::-1]
    samples[2].image = mirrored
    inputs = detection_collate(samples)['inputs']
    np.testing.assert_array_equal(inputs[2].numpy(), mirrored)


def test_images_of_several_sizes_are_refused_with_the_remedy(samples, paint):
    with pytest.raises(ValueError, match=r'\(16, 16\).*end the pipeline with Letterbox'):
        detection_collate([samples[0], paint((16, 16), [], [])])


def test_it_is_found_in_both_registries():
    # mmengine's Runner looks in the root alone.
    assert FUNCTIONS.get('detection_collate') is ROOT_FUNCTIONS.get('detection_collate') is detection_collate


def test_pinning_keeps_the_types(samples, monkeypatch):
    monkeypatch.setattr(torch.Tensor, 'pin_memory', lambda tensor: tensor.clone())
    batch = detection_collate(samples)
    pinned = pin_memory(batch)
    assert isinstance(pinned['targets'], PackedTargets)
    assert list(pinned['targets'].counts) == [2, 0, 1]
    assert pinned['targets'].boxes_N4 is not batch['targets'].boxes_N4
    assert pinned['inputs'] is not batch['inputs']
    assert isinstance(pinned['metas'][0]['matrix'], np.ndarray)


@pytest.mark.cuda
def test_a_batch_can_be_pinned(samples):
    pinned = pin_memory(detection_collate(samples))
    assert pinned['inputs'].is_pinned()
    assert all(tensor.is_pinned() for tensor in pinned['targets'][:4])
