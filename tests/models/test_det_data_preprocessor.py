import pytest
import torch

from lucid.registry import MODELS
from lucid.structures import PackedTargets


def make(**options):
    return MODELS.build({'type': 'DetDataPreprocessor', 'num_classes': 3, **options})


def packed(*counts):
    """Row r has the box (r, 0, r + 1, 2) and the label r % 3."""
    rows = sum(counts)
    start = torch.arange(rows, dtype=torch.float32)
    return PackedTargets(
        boxes_N4=torch.stack((start, start * 0, start + 1, start * 0 + 2), dim=1),
        labels_N=torch.arange(rows) % 3,
        image_N=torch.tensor([i for i, count in enumerate(counts) for _ in range(count)], dtype=torch.int64),
        slot_N=torch.tensor([slot for count in counts for slot in range(count)], dtype=torch.int64),
        counts=list(counts),
    )


def batch(targets, *, height=32, width=64):
    num_images = len(targets.counts)
    return {
        'inputs': torch.randint(0, 256, (num_images, height, width, 3), dtype=torch.uint8),
        'targets': targets,
        'metas': [{'file': f'{index}.jpg'} for index in range(num_images)],
    }


def test_images_become_float_planes_between_0_and_1(device):
    data = batch(packed(1))
    data['inputs'][0, 3, 5] = torch.tensor([255, 51, 0], dtype=torch.uint8)
    before = data['inputs'].clone()
    inputs = make().to(device)(data, True)['inputs']
    assert inputs.shape == (1, 3, 32, 64)
    assert inputs.dtype == torch.float32
    assert inputs.device.type == device.type
    torch.testing.assert_close(inputs[0, :, 3, 5].cpu(), torch.tensor([1.0, 0.2, 0.0]))
    assert torch.equal(data['inputs'], before)


@pytest.mark.parametrize('channels_last', [True, False])
def test_the_memory_format_of_the_images(channels_last):
    inputs = make(channels_last=channels_last)(batch(packed(1, 1)))['inputs']
    assert inputs.is_contiguous(memory_format=torch.channels_last) is channels_last
    assert inputs.is_contiguous() is not channels_last


def test_rows_go_to_their_image_and_slot_and_the_rest_is_zero(device):
    targets = make().to(device)(batch(packed(2, 0, 1)), True)['targets']
    assert targets.boxes_BM4.shape == (3, 64, 4)
    assert targets.boxes_BM4.device.type == device.type
    assert targets.boxes_BM4[0, :2].tolist() == [[0, 0, 1, 2], [1, 0, 2, 2]]
    assert targets.boxes_BM4[2, 0].tolist() == [2, 0, 3, 2]
    assert targets.labels_BM[0, :2].tolist() == [0, 1]
    assert targets.labels_BM[2, 0] == 2
    assert targets.valid_BM.sum(dim=1).tolist() == [2, 0, 1]
    assert targets.valid_BM[0, :2].all()
    assert targets.boxes_BM4[~targets.valid_BM].eq(0).all()
    assert targets.labels_BM[~targets.valid_BM].eq(0).all()


@pytest.mark.parametrize(
    ('counts', 'capacity'),
    [((0, 0), 64), ((1, 0), 64), ((64, 1), 64), ((65, 1), 128), ((129, 0), 256), ((256, 0), 256), ((257, 0), 512)],
)
def test_the_smallest_capacity_that_holds_the_fullest_image(counts, capacity):
    targets = make()(batch(packed(*counts)))['targets']
    assert targets.boxes_BM4.shape == (2, capacity, 4)
    assert targets.valid_BM.sum(dim=1).tolist() == list(counts)


def test_overflow_can_be_refused_naming_the_image():
    with pytest.raises(ValueError, match=r"1\.jpg has 9 boxes, more than capacity=\(4, 8\).*on_overflow='eager'"):
        make(capacity=(8, 4), on_overflow='raise')(batch(packed(1, 9)))
    assert make(capacity=(8, 4), on_overflow='raise')(batch(packed(1, 8)))['targets'].valid_BM.shape == (2, 8)


@pytest.mark.parametrize('label', [3, -1])
def test_a_label_out_of_range_is_refused_naming_the_image(label):
    data = batch(packed(1, 2))
    data['targets'].labels_N[2] = label
    with pytest.raises(ValueError, match=rf'1\.jpg has label {label}, but labels go from 0 to 2'):
        make()(data)


def test_labels_that_are_no_whole_numbers_are_refused():
    data = batch(packed(1))
    data['targets'] = data['targets']._replace(labels_N=torch.tensor([1.5]))
    with pytest.raises(ValueError, match='int64'):
        make()(data)


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_a_box_that_is_not_finite_is_refused_naming_the_image(value):
    data = batch(packed(1, 2))
    data['targets'].boxes_N4[1, 2] = value
    with pytest.raises(ValueError, match=r'1\.jpg has a box that is not finite'):
        make()(data)


def test_without_metas_the_place_in_the_batch_is_named():
    data = batch(packed(1, 1)) | {'metas': None}
    data['targets'].labels_N[1] = 7
    with pytest.raises(ValueError, match='image 1 of the batch'):
        make()(data)


def test_nothing_reaches_the_device_before_the_checks():
    """The meta device would refuse the comparison that finds the label."""
    data = batch(packed(1))
    data['targets'].labels_N[0] = 3
    with pytest.raises(ValueError, match='has label 3'):
        make().to('meta')(data)


def test_moving_and_padding_read_no_tensor_on_the_host():
    """The meta device has shapes but no values, and refuses to be read."""
    prepared = make().to('meta')(batch(packed(65, 0)))
    assert prepared['inputs'].is_meta
    assert prepared['targets'].boxes_BM4.shape == (2, 128, 4)
    assert all(tensor.is_meta for tensor in prepared['targets'][:3])


@pytest.mark.parametrize('size', [{'height': 33}, {'width': 48}])
def test_a_side_that_is_no_multiple_of_32_is_refused(size):
    with pytest.raises(ValueError, match='multiple of 32; change image_size'):
        make()(batch(packed(1), **size))


@pytest.mark.parametrize('images', [torch.zeros(1, 32, 32, 3), torch.zeros(1, 3, 32, 32, dtype=torch.uint8)])
def test_images_of_another_type_or_layout_are_refused(images):
    with pytest.raises(ValueError, match=r'collate uint8 images'):
        make()({'inputs': images})


def test_images_alone_are_enough_for_prediction():
    prepared = make()({'inputs': torch.zeros(2, 32, 32, 3, dtype=torch.uint8)})
    assert prepared['targets'] is None
    assert prepared['metas'] is None


@pytest.mark.parametrize('options', [{'capacity': ()}, {'capacity': (0, 64)}, {'on_overflow': 'cut'}])
def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        make(**options)
