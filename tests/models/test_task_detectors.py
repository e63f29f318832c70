"""The detector with the heads of the three tasks beyond detection."""

import numpy as np
import pytest
import torch
from mmengine.optim import OptimWrapper
from torch.utils._python_dispatch import TorchDispatchMode

from lucid.engine.transfer import plan_transfer
from lucid.registry import MODELS
from lucid.structures import PackedTargets

TASKS = {'segment': 'SegmentHead', 'oriented': 'OrientedHead', 'keypoint': 'KeypointHead'}
LOSSES = {
    'detect': 'DetectionLoss',
    'segment': 'SegmentationLoss',
    'oriented': 'OrientedLoss',
    'keypoint': 'KeypointLoss',
}
KINDS = {'segment': 'masks', 'oriented': 'rboxes', 'keypoint': 'keypoints'}


def make(task, **options):
    torch.manual_seed(0)
    if task == 'keypoint':
        options.setdefault('num_keypoints', 5)
    head = {'type': TASKS.get(task, 'DetectHead'), 'box_start': 1.0}
    return MODELS.build({'type': 'YOLODetector', 'num_classes': 3, 'head': head, **options})


def batch(num_images=2, height=64, width=96):
    """One box per image, x from 4 to 36 and y from 8 to 40, with every kind of target."""
    masks = torch.zeros(num_images, height // 4, width // 4, dtype=torch.bool)
    masks[:, 2:10, 1:9] = True
    x, y = torch.tensor([8.0, 16, 24, 30, 12]), torch.tensor([12.0, 30, 20, 38, 16])
    keypoints = torch.stack((x, y, torch.tensor([2.0, 1, 2, 0, 2])), dim=1)
    return {
        'inputs': torch.randint(0, 256, (num_images, height, width, 3), dtype=torch.uint8),
        'targets': PackedTargets(
            torch.tensor([[4.0, 8.0, 36.0, 40.0]]).repeat(num_images, 1),
            torch.zeros(num_images, dtype=torch.int64),
            torch.arange(num_images),
            torch.zeros(num_images, dtype=torch.int64),
            [1] * num_images,
            masks_NHW=masks,
            rboxes_N5=torch.tensor([[20.0, 24.0, 30.0, 14.0, 0.7]]).repeat(num_images, 1),
            keypoints_NJ3=keypoints.repeat(num_images, 1, 1),
        ),
        'metas': [
            {'image_id': i, 'file': f'{i}.jpg', 'original_hw': (128, 192), 'matrix': np.diag([0.5, 0.5, 1.0])}
            for i in range(num_images)
        ],
    }


def wrapper_for(detector):
    return OptimWrapper(torch.optim.SGD(detector.parameters(), lr=1e-3))


@pytest.mark.parametrize('task', LOSSES)
def test_the_head_makes_the_task_and_the_task_the_loss(task):
    detector = make(task)
    assert detector.task == task
    assert type(detector.criterion).__name__ == LOSSES[task]
    assert detector.known_paths == ('one_to_one', 'nms')


def test_what_a_config_states_of_a_loss_changes_the_loss_of_the_task_and_a_type_of_ones_own_replaces_it():
    assert make('segment', loss={'mask_gain': 3.0}).criterion.mask_gain == 3.0
    assert make('segment', loss={'type': 'SegmentationLoss', 'mask_gain': 3.0}).criterion.mask_gain == 3.0

    class OwnLoss(torch.nn.Module):
        def __init__(self, *, num_classes):
            super().__init__()

    assert type(make('segment', loss={'type': OwnLoss}).criterion) is OwnLoss


@pytest.mark.parametrize('task', LOSSES)
def test_the_loss_of_another_task_is_refused(task):
    for other, name in LOSSES.items():
        if other != task:
            message = (
                rf"model\.loss\.type='{name}' is the loss of the task '{other}', and the head predicts '{task}'; "
                rf"remove model\.loss\.type, which is then '{LOSSES[task]}', or change model\.head\.type"
            )
            with pytest.raises(ValueError, match=message):
                make(task, loss={'type': name})


@pytest.mark.parametrize('part', ['head', 'loss', 'data_preprocessor'])
def test_a_part_that_states_another_number_of_classes_is_refused(part):
    assert make('segment', **{part: {'num_classes': 3} | ({'type': 'SegmentHead'} if part == 'head' else {})})
    config = {'num_classes': 4} | ({'type': 'SegmentHead'} if part == 'head' else {})
    with pytest.raises(ValueError, match=r'model\.num_classes is 3 and the config of \w+ says num_classes=4; remove'):
        make('segment', **{part: config})


class TestNumberOfKeypoints:
    def test_it_reaches_head_loss_and_preprocessor(self):
        detector = make('keypoint', num_keypoints=7)
        assert detector.num_keypoints == detector.network.head.num_keypoints == 7
        assert detector.criterion.num_keypoints == detector.data_preprocessor.num_keypoints == 7
        assert detector(torch.rand(1, 3, 64, 64)).o2o_points_BAJ2.shape == (1, 84, 7, 2)

    def test_the_head_may_state_it(self):
        head = {'type': 'KeypointHead', 'num_keypoints': 4}
        detector = make('keypoint', num_keypoints=None, head=head)
        assert (detector.num_keypoints, detector.criterion.num_keypoints) == (4, 4)
        assert head == {'type': 'KeypointHead', 'num_keypoints': 4}
        with pytest.raises(ValueError, match=r'num_keypoints is 5 and model\.head\.num_keypoints is 4; remove the sec'):
            make('keypoint', num_keypoints=5, head=head)

    def test_where_it_is_missing_the_remedy_is_told(self):
        with pytest.raises(ValueError, match=r'set model\.num_keypoints .*, or build the detector through lucid\.apis'):
            make('keypoint', num_keypoints=None)

    @pytest.mark.parametrize('task', ['detect', 'segment'])
    def test_a_head_without_keypoints_refuses_it_by_name(self, task):
        assert make(task).num_keypoints is None
        with pytest.raises(ValueError, match=r'Head predicts no keypoints; remove model\.num_keypoints, or set model'):
            make(task, num_keypoints=17)

    @pytest.mark.parametrize('part', ['loss', 'data_preprocessor'])
    def test_a_part_that_states_another_is_refused(self, part):
        assert make('keypoint', **{part: {'num_keypoints': 5}}).num_keypoints == 5
        with pytest.raises(ValueError, match=r'model\.num_keypoints is 5 and the config of \w+ says num_keypoints=4'):
            make('keypoint', **{part: {'num_keypoints': 4}})

    def test_targets_with_another_number_are_refused(self):
        with pytest.raises(ValueError, match='come with 5 keypoints, the model has num_keypoints=6'):
            make('keypoint', num_keypoints=6).prepare(batch())


class NoHostReads(TorchDispatchMode):
    """Raises at an operator that reads a tensor on the host, or whose output's shape depends on values."""

    FORBIDDEN = ('_local_scalar_dense', 'nonzero', 'masked_select', 'equal', '_unique2', 'bincount')

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        boolean = func is torch.ops.aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        if boolean or func.overloadpacket.__name__ in self.FORBIDDEN:
            raise AssertionError(f'{func} reads the host')
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize('task', TASKS)
def test_a_step_learns_and_reads_nothing_on_the_host(task, device):
    detector = make(task).to(device).train()
    wrapper, data = wrapper_for(detector), detector.prepare(batch())
    with NoHostReads():
        first = detector.step(data, wrapper)
    assert all(value.isfinite() for value in first.values())
    for _ in range(3):
        last = detector.step(data, wrapper)
    assert last['loss'] < first['loss']


@pytest.mark.parametrize('task', TASKS)
def test_the_loss_reaches_every_parameter(task, device):
    detector = make(task).to(device).train()
    loss, _ = detector.parse_losses(detector(**detector.prepare(batch()), mode='loss'))
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in detector.named_parameters()}
    assert [name for name, gradient in gradients.items() if gradient is None] == []
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@pytest.mark.parametrize('task', TASKS)
def test_an_image_without_objects_trains_too(task):
    data = batch()
    kept = {name: getattr(data['targets'], name)[:1] for name in PackedTargets._fields if name != 'counts'}
    data['targets'] = PackedTargets(**kept, counts=[1, 0])
    detector = make(task)
    losses = detector(**detector.prepare(data), mode='loss')
    assert all(value.isfinite() for value in losses.values())


@torch.no_grad()
def test_a_loss_in_evaluation_mode_has_no_semantic_term():
    detector = make('segment')
    data = detector.prepare(batch())
    assert any('semantic' in name for name in detector(**data, mode='loss'))
    detector.eval()
    losses = detector(**data, mode='loss')
    assert losses['loss_mask'].isfinite()
    assert not any('semantic' in name for name in losses)


@pytest.mark.parametrize('task', TASKS)
def test_the_loss_runs_in_float32_without_autocast(task, device, monkeypatch):
    detector = make(task).to(device)
    data, seen = detector.prepare(batch()), []
    inner = detector.criterion.forward

    def spy(outputs, targets, grid):
        seen.extend(output.dtype for output in outputs)
        seen.append(torch.is_autocast_enabled(device.type))
        return inner(outputs, targets, grid)

    monkeypatch.setattr(detector.criterion, 'forward', spy)
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
        detector(**data, mode='loss')
    assert set(seen) == {torch.float32, False}


@pytest.mark.parametrize('task', TASKS)
def test_targets_of_the_task_alone_reach_the_device(task):
    targets = make(task).prepare(batch())['targets']
    fields = {'masks': targets.masks_BMHW, 'rboxes': targets.rboxes_BM5, 'keypoints': targets.keypoints_BMJ3}
    assert {kind for kind, field in fields.items() if field is not None} == {KINDS[task]}
    assert make('detect').prepare(batch())['targets'][3:] == (None, None, None)


@pytest.mark.parametrize('task', TASKS)
@torch.no_grad()
def test_both_paths_give_the_task_s_kind_row_by_row_from_one_forward(task, device):
    detector = make(task, max_detections=20).to(device).eval()
    detector.paths = ('one_to_one', 'nms')
    calls = []
    detector.network.register_forward_hook(lambda *_: calls.append(1))
    predictions = detector.val_step(batch())
    assert len(calls) == 1
    for prediction in predictions:
        for found in (prediction, prediction['nms']):
            assert 0 < len(found['scores']) == len(found[KINDS[task]]) <= 20
            if task != 'segment':
                assert found[KINDS[task]].device.type == 'cpu'
    # Without targets, and with those of boxes alone, evaluation is the same.
    data = batch()
    data['targets'] = PackedTargets(*data['targets'][:5])
    for other in (data, {key: data[key] for key in ('inputs', 'metas')}):
        other = {**other, 'inputs': batch()['inputs']}
        assert len(detector.val_step(other)) == 2


@pytest.mark.parametrize('task', TASKS)
@torch.no_grad()
def test_it_predicts_under_bf16_autocast(task, device):
    detector = make(task, max_detections=5).to(device).eval()
    detector.paths = ('one_to_one', 'nms')
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
        for prediction in detector.val_step(batch()):
            assert len(prediction[KINDS[task]]) == len(prediction['boxes']) > 0


def test_rows_of_shared_classes_are_taken_over_the_semantic_ones_too():
    theirs, ours = make('segment'), make('segment', num_classes=2)
    assert len(ours.class_rows) == 14
    state = {name: torch.randn_like(v) if v.is_floating_point() else v for name, v in theirs.state_dict().items()}
    content = {'state_dict': state, 'classes': ['ant', 'bee', 'cat'], 'meta': {}}
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    transfer = plan_transfer(ours, content, classes=['dog', 'bee'])
    transfer.apply()
    after = ours.state_dict()
    assert set(transfer.rows) == ours.class_rows
    for name in ('network.head.semantic.weight', 'network.head.semantic.bias'):
        assert torch.equal(after[name][1], state[name][1])
        assert torch.equal(after[name][0], before[name][0])
    assert set(after) - set(transfer.rows) == set(transfer.whole)


@pytest.mark.parametrize('task', TASKS)
def test_a_detection_checkpoint_starts_another_task(task):
    theirs, ours = make('detect'), make(task)
    state = {name: torch.randn_like(v) if v.is_floating_point() else v for name, v in theirs.state_dict().items()}
    transfer = plan_transfer(ours, {'state_dict': state, 'meta': {}})
    assert set(transfer.whole) == set(state)
    assert all('head' in name or 'criterion' in name for name in transfer.fresh)
