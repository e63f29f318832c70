import copy
import pickle

import numpy as np
import pytest
import torch
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lucid.models.detectors import yolo
from lucid.registry import MODELS
from lucid.structures import PackedTargets, RawOutputs


class SquareLoss(nn.Module):
    """Pulls every output to zero, and remembers how it was called."""

    def __init__(self, *, num_classes):
        super().__init__()
        self.num_classes = num_classes

    def forward(self, outputs, targets, grid):
        self.dtypes = [output.dtype for output in outputs]
        self.autocast = torch.is_autocast_enabled(outputs[0].device.type)
        self.grid = grid
        box = outputs.o2m_boxes_BA4.square().mean() + outputs.o2o_boxes_BA4.square().mean()
        return {'loss_box': box, 'loss_cls': outputs.o2o_logits_BAC.square().mean(), 'o2m_box': box.detach()}


def make(**options):
    torch.manual_seed(0)
    return MODELS.build({'type': 'YOLODetector', 'num_classes': 3, 'loss': {'type': SquareLoss}, **options})


def batch(num_images=2, height=64, width=96):
    boxes = torch.tensor([[4.0, 4.0, 20.0, 30.0]]).repeat(num_images, 1)
    return {
        'inputs': torch.randint(0, 256, (num_images, height, width, 3), dtype=torch.uint8),
        'targets': PackedTargets(
            boxes,
            torch.zeros(num_images, dtype=torch.int64),
            torch.arange(num_images),
            torch.zeros(num_images, dtype=torch.int64),
            [1] * num_images,
        ),
        'metas': [
            {'image_id': i, 'file': f'{i}.jpg', 'original_hw': (128, 192), 'matrix': np.diag([0.5, 0.5, 1.0])}
            for i in range(num_images)
        ],
    }


def wrapper_for(detector):
    return OptimWrapper(torch.optim.SGD(detector.parameters(), lr=0.1))


def test_training_prepares_steps_and_returns_values_on_the_device(device):
    detector = make().to(device).train()
    wrapper, data = wrapper_for(detector), batch()
    first = detector.train_step(data, wrapper)
    assert list(first) == ['loss', 'loss_box', 'loss_cls', 'o2m_box']
    assert all(v.ndim == 0 and v.device.type == device.type and not v.requires_grad for v in first.values())
    torch.testing.assert_close(first['loss'], first['loss_box'] + first['loss_cls'])
    for _ in range(3):
        last = detector.train_step(data, wrapper)
    assert last['loss'] < first['loss']


def test_train_step_is_step_after_prepare():
    whole, parts = make(), make()
    data = batch()
    losses = whole.train_step(data, wrapper_for(whole))
    again = parts.step(parts.prepare(data), wrapper_for(parts))
    assert all(torch.equal(losses[key], again[key]) for key in losses)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_the_call_of_mmengines_distributed_wrapper_gives_the_same_losses():
    detector = make()
    data = detector.data_preprocessor(batch(), training=True)
    losses = detector(**data, mode='loss')
    assert list(losses) == ['loss_box', 'loss_cls', 'o2m_box']
    assert losses['loss_box'].requires_grad


def test_the_loss_runs_in_float32_without_autocast(device):
    detector = make().to(device)
    data = detector.prepare(batch())
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
        assert detector(**data).o2o_boxes_BA4.dtype == torch.bfloat16
        detector(**data, mode='loss')
        assert torch.is_autocast_enabled(device.type)
    assert detector.criterion.dtypes == [torch.float32] * 4
    assert detector.criterion.autocast is False


def test_a_float64_loss_stays_float64():
    detector = make().double()
    data = detector.prepare(batch())
    detector(data['inputs'].double(), data['targets'], mode='loss')
    assert detector.criterion.dtypes == [torch.float64] * 4


class ReadingLoss(SquareLoss):
    def forward(self, outputs, targets, grid):
        losses = super().forward(outputs, targets, grid)
        return losses if losses['loss_box'] > 0 else {}


class BooleanIndexLoss(SquareLoss):
    def forward(self, outputs, targets, grid):
        targets.boxes_BM4[targets.valid_BM]
        return super().forward(outputs, targets, grid)


class NoHostReads(TorchDispatchMode):
    """Raises at an operator that reads a tensor on the host, or whose output's shape depends on values."""

    FORBIDDEN = ('_local_scalar_dense', 'nonzero', 'masked_select', 'equal', '_unique2', 'bincount')

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        boolean = func is torch.ops.aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        if boolean or func.overloadpacket.__name__ in self.FORBIDDEN:
            raise AssertionError(f'{func} reads the host')
        return func(*args, **(kwargs or {}))


def test_a_step_reads_nothing_on_the_host():
    detector = make(loss=None)
    wrapper, data = wrapper_for(detector), detector.prepare(batch())
    with NoHostReads():
        detector.step(data, wrapper)


@pytest.mark.parametrize('loss', [ReadingLoss, BooleanIndexLoss])
def test_a_loss_that_reads_the_host_would_be_found(loss):
    detector = make(loss={'type': loss})
    wrapper, data = wrapper_for(detector), detector.prepare(batch())
    with NoHostReads(), pytest.raises(AssertionError, match='reads the host'):
        detector.step(data, wrapper)


def test_a_grid_is_made_once_in_prepare_and_step_only_reads_it(monkeypatch):
    detector = make()
    data = detector.prepare(batch())
    grid = detector.anchor_grid(data['inputs'])
    assert grid.centers_A2.shape == (126, 2)
    monkeypatch.setattr(yolo, 'make_anchor_grid', None)
    detector.step(data, wrapper_for(detector))
    assert detector.criterion.grid is grid
    with pytest.raises(TypeError):  # the control: another size does make one
        detector.prepare(batch(height=96))


def test_copies_pickles_and_state_dicts_hold_no_grid():
    detector = make()
    detector.prepare(batch())
    assert len(detector._grids) == 1
    for twin in (copy.deepcopy(detector), pickle.loads(pickle.dumps(detector))):
        assert twin._grids == {}
        assert twin.state_dict().keys() == detector.state_dict().keys()
        twin.prepare(batch())
    assert len(detector._grids) == 1
    assert all(key.startswith('network.') for key in detector.state_dict())


def test_predictions_are_in_original_pixels():
    detector = make(max_detections=2).eval()
    data = detector.prepare(batch(num_images=1))
    logits, boxes = torch.full((1, 126, 3), -9.0), torch.zeros(1, 126, 4)
    logits[0, 13, 2] = 3.0  # row 1, column 1 at stride 8: centre (12, 12)
    boxes[0, 13] = torch.tensor([1.0, 0.5, 2.0, 3.0])
    outputs = RawOutputs(-logits, boxes + 1, logits, boxes)
    (prediction,) = detector.predict(outputs, data['metas'], detector.anchor_grid(data['inputs']))
    assert prediction['boxes'].tolist() == [[8, 16, 56, 72]]  # (4, 8, 28, 36) at half size
    assert prediction['labels'].tolist() == [2]
    assert prediction['file'] == '0.jpg'


def test_evaluation_returns_one_prediction_per_image(device):
    detector = make().to(device).eval()
    with torch.no_grad():
        predictions = detector.val_step(batch())
        assert len(detector.test_step({key: batch()[key] for key in ('inputs', 'metas')})) == 2
    assert [prediction['image_id'] for prediction in predictions] == [0, 1]
    for prediction in predictions:
        assert prediction['boxes'].device.type == 'cpu'
        assert len(prediction['boxes']) == len(prediction['scores']) == len(prediction['labels']) <= 126


def test_the_score_threshold_can_be_changed_between_predictions():
    detector = make()
    data = detector.prepare(batch(num_images=1))
    logits, boxes = torch.linspace(-2, 2, 126).view(1, 126, 1), torch.ones(1, 126, 4)
    outputs, grid = RawOutputs(logits, boxes, logits, boxes), detector.anchor_grid(data['inputs'])
    assert len(detector.predict(outputs, data['metas'], grid)[0]['scores']) == 126
    detector.score_threshold = 0.5
    assert len(detector.predict(outputs, data['metas'], grid)[0]['scores']) == 63


@pytest.mark.parametrize('channels_last', [True, False])
def test_images_come_in_the_memory_format_of_the_weights(channels_last, device):
    detector = make(channels_last=channels_last).to(device)
    inputs = detector.prepare(batch())['inputs']
    weight = detector.network.backbone.to_p3[0].conv.weight
    for tensor in (inputs, weight):
        assert tensor.is_contiguous(memory_format=torch.channels_last) is channels_last


def test_the_configs_passed_in_stay_as_they_were():
    head, backbone = {'type': 'DetectHead'}, {'type': 'YOLOBackbone'}
    detector = make(head=head, backbone=backbone, scale='s')
    assert head == {'type': 'DetectHead'}
    assert backbone == {'type': 'YOLOBackbone'}
    assert detector.network.backbone.out_channels == (256, 256, 512)


def test_a_part_without_a_type_is_the_default_with_what_is_stated():
    detector = make(head={}, loss={'box_gain': 3.0, 'assigner_o2m': {'topk': 5}}, data_preprocessor={'capacity': [32]})
    loss = detector.criterion
    assert (type(loss).__name__, loss.box_gain, loss.cls_gain) == ('DetectionLoss', 3.0, 0.5)
    assert (loss.assigner_o2m.topk, loss.assigner_o2o.topk, loss.assigner_o2o.topk_final) == (5, 7, 1)
    assert tuple(detector.data_preprocessor.capacity) == (32,)


def test_the_number_of_classes_reaches_head_loss_and_preprocessor():
    detector = make(num_classes=7)
    assert detector.criterion.num_classes == detector.data_preprocessor.num_classes == 7
    assert detector(torch.rand(1, 3, 64, 64)).o2m_logits_BAC.shape[2] == 7


def test_the_default_loss_reaches_every_parameter(device):
    detector = make(loss=None).to(device)
    losses = detector(**detector.prepare(batch()), mode='loss')
    assert {'loss_box', 'loss_cls', 'loss_l1'} == {name for name in losses if 'loss' in name}
    loss, _ = detector.parse_losses(losses)
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in detector.network.parameters())


def test_it_is_a_model_of_mmengine():
    assert isinstance(make(), BaseModel)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'num_classes': None}, 'set model.num_classes'),
        ({'num_classes': 0}, 'make it 1 or more'),
        ({'fused_norm': 'no'}, "fused_norm='no' is neither on nor off; set model.fused_norm to True or False"),
        ({'cast_together': 'no'}, "cast_together='no' is neither on nor off; set model.cast_together to True or False"),
        ({'channels_last': 0}, 'channels_last=0 is neither on nor off; set model.channels_last to True or False'),
        ({'scale': 'huge'}, "scale='huge' does not exist"),
    ],
)
def test_a_detector_that_cannot_be_built_says_what_to_do(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ('mode', 'message'), [('loss', 'needs targets'), ('predict', 'needs metas'), ('train', "use 'tensor', 'loss'")]
)
def test_forward_says_what_is_missing(mode, message):
    with pytest.raises(ValueError, match=message):
        make()(torch.rand(1, 3, 32, 32), mode=mode)


def test_an_image_side_that_is_no_multiple_of_32_is_refused_before_the_network():
    detector = make()
    with pytest.raises(ValueError, match='multiple of 32'):
        detector.prepare(batch(height=80))


@torch.no_grad()
def test_both_paths_come_from_one_forward_of_the_network():
    detector = make().eval()
    calls = []
    detector.network.register_forward_hook(lambda *_: calls.append(1))
    detector.paths = ('one_to_one', 'nms')
    assert detector.known_paths == detector.paths
    both = detector.val_step(batch())
    assert len(calls) == 1
    for path in detector.known_paths:
        detector.paths = (path,)
        for alone, together in zip(detector.val_step(batch()), both, strict=True):
            there = together if path == 'one_to_one' else together['nms']
            assert alone['path'] == there['path'] == path
            assert all(torch.equal(alone[key], there[key]) for key in ('boxes', 'scores', 'labels'))
            assert not {'nms', 'one_to_one'} & alone.keys()
    assert len(calls) == 3
    # Control: the two paths do not find the same.
    assert not torch.equal(both[0]['boxes'], both[0]['nms']['boxes'])


@torch.no_grad()
def test_a_path_that_the_head_lacks_and_thresholds_out_of_range_are_refused():
    detector = make().eval()
    detector.paths = ('soft_nms',)
    with pytest.raises(ValueError, match=r"'soft_nms' is none of \('one_to_one', 'nms'\)"):
        detector.val_step(batch())
    for options in ({'nms_iou_threshold': 0.0}, {'nms_score_threshold': 1.5}):
        with pytest.raises(ValueError, match=next(iter(options))):
            make(**options)
