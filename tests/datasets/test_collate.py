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


def test_rotated_boxes_and_keypoints_travel_where_they_were_loaded(samples):
    targets = detection_collate(samples)['targets']
    np.testing.assert_array_equal(targets.rboxes_N5, np.concatenate([sample.rboxes for sample in samples]))
    np.testing.assert_array_equal(targets.keypoints_NJ3, np.concatenate([sample.keypoints for sample in samples]))
    assert (targets.rboxes_N5.dtype, targets.keypoints_NJ3.dtype) == (torch.float32, torch.float32)
    assert targets.masks_NHW is None
    for sample in samples:
        sample.rboxes = sample.keypoints = None
    bare = detection_collate(samples)['targets']
    assert bare.rboxes_N5 is bare.keypoints_NJ3 is None
    empty = detection_collate([samples[1]], masks=True)['targets']
    assert empty.masks_NHW.shape == (0, 8, 16)


def test_a_cell_of_a_mask_is_covered_where_its_centre_is(samples):
    # Boxes 6..14, 26..34 and 46..54 pixels wide, 8..12, 8..12 and 18..22 high: centres of cells lie at 2, 6, 10, ...
    masks = detection_collate(samples, masks=True)['targets'].masks_NHW
    assert masks.dtype == torch.bool
    assert masks.shape == (3, 8, 16)
    rows = [(6, 14, 8, 12), (26, 34, 8, 12), (46, 54, 18, 22)]
    for mask, (x1, x2, y1, y2) in zip(masks, rows, strict=True):
        expected = {
            (row, column)
            for row in range(8)
            for column in range(16)
            if x1 <= 4 * column + 2 < x2 and y1 <= 4 * row + 2 < y2
        }
        assert {tuple(cell) for cell in mask.nonzero().tolist()} == expected
        assert len(expected) == 2


def test_rings_are_scaled_first_and_their_union_is_filled(samples):
    # A ring of half a cell that covers a centre counts; a larger one between two centres does not.
    small, between, square = (
        np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2)], np.float32)
        for x1, y1, x2, y2 in [(9.5, 9.5, 11.5, 11.5), (19, 3, 21.9, 29), (40, 0, 48, 8)]
    )
    sample = samples[2]
    sample.polygons = [[small, square, between]]
    (mask,) = detection_collate([sample], masks=True)['targets'].masks_NHW
    assert mask.nonzero().tolist() == [[0, 10], [0, 11], [1, 10], [1, 11], [2, 2]]
    assert sample.polygons[0][0].max() == 11.5


def test_an_object_without_outline_has_an_empty_mask(samples):
    samples[0].polygons[0] = []
    masks = detection_collate(samples, masks=True)['targets'].masks_NHW
    assert masks.sum(dim=(1, 2)).tolist() == [0, 2, 2]


def test_masks_that_cannot_be_made_are_refused_with_the_remedy(samples, paint):
    samples[2].polygons = None
    with pytest.raises(ValueError, match=r"outlines, which were not loaded; set targets=\('boxes', 'masks'\)"):
        detection_collate(samples, masks=True)
    assert detection_collate(samples)['targets'].masks_NHW is None
    with pytest.raises(ValueError, match=r'images of 62x30 pixels have no masks .* image_size that 4 divides'):
        detection_collate([paint((30, 62), [], [])], masks=True)


def test_a_config_turns_masks_on(samples):
    from lucid.apis.data import build_dataloader

    cfg = {'batch_size': 3, 'collate_fn': {'type': 'detection_collate', 'masks': True}}
    (batch,) = build_dataloader(cfg, dataset=samples, seed=0)
    assert batch['targets'].masks_NHW.shape == (3, 8, 16)


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
