"""Predictions ahead of the host, captured or not, are those of one batch after the other."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lucid.capture import CudaMemory, EvalRegion, Parts, Reason, TapeMemory, first_difference
from lucid.engine.host_workers import HostWorkers
from lucid.engine.predictions import Predictor, _filled, behind, has_seam
from lucid.models.detectors import YOLODetector

HEADS = {'detect': 'DetectHead', 'segment': 'SegmentHead', 'oriented': 'OrientedHead', 'keypoint': 'KeypointHead'}
PATHS = ('one_to_one', 'nms')


def detector(task: str) -> YOLODetector:
    """A detector of random weights whose scores differ from anchor to anchor, and by which boxes overlap."""
    torch.manual_seed(0)
    keypoints = {'num_keypoints': 2} if task == 'keypoint' else {}
    head = {'type': HEADS[task], 'box_start': 2.0}
    model = YOLODetector(num_classes=3, head=head, max_detections=20, nms_iou_threshold=0.5, **keypoints)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.3)
            nn.init.normal_(module.bias, 0.0, 0.3)
    model.paths = PATHS
    return model.eval()


def batch(seed: int, count: int = 2) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 64, 64, 3), generator=generator, dtype=torch.uint8)
    matrix = np.diag([2.0, 2.0, 1.0])
    metas = [{'image_id': i, 'file': f'{i}.jpg', 'original_hw': (32, 30), 'matrix': matrix} for i in range(count)]
    return {'inputs': images, 'metas': metas}


def same(ours: Any, theirs: Any) -> bool:
    return first_difference({'': ours}, {'': theirs}) is None


@pytest.mark.parametrize('task', HEADS)
def test_both_parts_give_what_val_step_gives_however_late_they_are_taken(task: str, device: torch.device) -> None:
    model = detector(task).to(device)
    with torch.no_grad():
        expected = [model.val_step(batch(seed)) for seed in range(3)]
    predictor = Predictor(model)
    finish = [predictor.launch(batch(seed)) for seed in range(3)]
    found = [list(iterator) for iterator in [launched() for launched in finish]]
    assert same(expected, found)
    assert len(expected[0][0]['nms']['scores']) > 3
    assert not same(expected[0], found[1])  # control: batches differ
    assert not same(expected[0][0]['nms']['boxes'], expected[0][0]['boxes'])


@pytest.mark.parametrize('task', ['segment', 'oriented'])
def test_other_processes_give_the_same_in_order(task: str, device: torch.device) -> None:
    model, workers = detector(task).to(device), HostWorkers(2)
    expected = [list(Predictor(model).launch(batch(seed, 3))()) for seed in range(2)]
    predictor = Predictor(model, run=workers.map)
    found = [list(iterator) for iterator in [predictor.launch(batch(seed, 3))() for seed in range(2)]]
    workers.close()
    assert same(expected, found)
    assert [prediction['image_id'] for prediction in found[1]] == [0, 1, 2]


@pytest.fixture(params=['tape', pytest.param('cuda', marks=pytest.mark.cuda)])
def backend(request: pytest.FixtureRequest) -> Iterator[tuple[torch.device, Parts]]:
    kept, torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic, True
    cuda = request.param == 'cuda'
    yield torch.device(request.param if cuda else 'cpu'), Parts(memory=CudaMemory if cuda else lambda _: TapeMemory())
    torch.backends.cudnn.deterministic = kept


@pytest.mark.parametrize('task', HEADS)
def test_captured_predictions_of_each_task_equal_eager_ones(task: str, backend: tuple[torch.device, Parts]) -> None:
    device, parts = backend
    reference = detector(task).to(device)
    model = copy.deepcopy(reference)
    region = EvalRegion()
    region.activate(model, parts=parts)
    batches = [batch(0), batch(1), batch(2, count=1), batch(3)]
    expected = [list(Predictor(reference).launch(each)()) for each in batches]
    finish = [Predictor(model).launch(each) for each in batches]
    assert same(expected, [list(launched()) for launched in finish])
    assert region.routes.replays == 3
    assert region.routes.eager == {(Reason.NEW_SIGNATURE, '1x3x64x64 float32'): 1}
    region.release()
    assert 'infer' not in vars(model)


def test_options_of_the_detector_are_baked_in_and_watched(backend: tuple[torch.device, Parts]) -> None:
    device, parts = backend
    reference = detector('detect').to(device)
    model = copy.deepcopy(reference)
    region = EvalRegion()
    region.activate(model, parts=parts)
    for threshold, paths in ((0.0, PATHS), (0.5, PATHS), (0.5, ('nms',))):
        for each in (reference, model):
            each.score_threshold, each.paths = threshold, paths
        expected = list(Predictor(reference).launch(batch(0))())
        assert same(expected, list(Predictor(model).launch(batch(0))()))
    assert dict(region.routes.retired) == {
        'the attribute score_threshold changed': 1,
        'the attribute paths changed': 1,
    }
    region.release()


def test_captured_inference_under_bfloat16_equals_eager(backend: tuple[torch.device, Parts]) -> None:
    device, parts = backend
    reference = detector('segment').to(device)
    model = copy.deepcopy(reference)
    region = EvalRegion()
    region.activate(model, parts=parts)
    images = [reference.prepare(batch(seed))['inputs'] for seed in range(3)]
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
        expected = [reference.infer(each) for each in images]
        found = [model.infer(each) for each in images]
    with torch.no_grad():
        exact = [reference.infer(each) for each in images]
    assert same(expected, found)
    assert not same(expected, exact)  # control: the precision does change the numbers
    assert region.routes.replays == 3
    region.release()


class Own(YOLODetector):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class OwnPart(YOLODetector):
    def infer(self, images: Tensor) -> Any:
        return super().infer(images)


def test_only_a_model_that_predicts_in_these_parts_is_taken_apart() -> None:
    assert has_seam(detector('detect'))
    assert not has_seam(nn.Linear(1, 1))
    assert not has_seam(Own(num_classes=1))
    assert has_seam(OwnPart(num_classes=1))


def test_a_model_whose_calls_somebody_took_is_not_taken_apart() -> None:
    """As mmengine's ``compile`` does, or a forward hook, which would not run."""
    for name in ('val_step', 'test_step', 'forward'):
        model = detector('detect')
        setattr(model, name, getattr(model, name))
        assert not has_seam(model)
        delattr(model, name)
        assert has_seam(model)
    for register in (model.register_forward_hook, model.register_forward_pre_hook):
        hook = register(lambda *_: None)
        assert not has_seam(model)
        hook.remove()
        assert has_seam(model)
    model.infer = model.infer  # control: that is the seam itself, which a region takes
    assert has_seam(model)


def recorded(events: list[str], number: int) -> Callable[[], int]:
    events.append(f'start {number}')

    def finish() -> int:
        events.append(f'finish {number}')
        return 10 * number

    return finish


@pytest.mark.parametrize(
    ('depth', 'expected'),
    [
        (0, ['start 0', 'finish 0', 'start 1', 'finish 1', 'start 2', 'finish 2']),
        (1, ['start 0', 'start 1', 'finish 0', 'start 2', 'finish 1', 'finish 2']),
        (2, ['start 0', 'start 1', 'start 2', 'finish 0', 'finish 1', 'finish 2']),
    ],
)
def test_an_item_is_finished_when_so_many_later_ones_have_begun(depth: int, expected: list[str]) -> None:
    events: list[str] = []
    assert list(behind(range(3), partial(recorded, events), depth=depth)) == [(0, 0), (1, 10), (2, 20)]
    assert events == expected


@pytest.mark.parametrize('task', HEADS)
def test_a_partial_batch_that_is_filled_up_gives_what_its_images_give_beside_others(
    task: str, device: torch.device
) -> None:
    """Bit by bit what a full batch gives of its first images: the same kernels see the same shape."""
    model = detector(task).to(device)
    shapes: list[Any] = []
    infer = model.infer
    model.infer = lambda images: shapes.append((tuple(images.shape), images.stride())) or infer(images)
    full, part = batch(0, 4), batch(0, 4)
    part = {'inputs': part['inputs'][:3], 'metas': part['metas'][:3]}
    black = {**full, 'inputs': torch.cat([part['inputs'], torch.zeros_like(full['inputs'][:1])])}
    predictor = Predictor(model, fill=4)
    found = list(predictor.launch(part)())
    assert len(found) == 3
    assert same(list(predictor.launch(black)())[:3], found)
    assert len(set(shapes)) == 1
    # Controls: black images are looked at and would show, and nothing is filled where it is not asked for.
    assert len(list(predictor.launch(black)())[3]['nms']['boxes']) > 0
    list(Predictor(model).launch(part)())
    assert shapes[-1][0][0] == 3


def test_a_model_with_an_infer_of_its_own_is_given_no_black_images() -> None:
    class Own(YOLODetector):
        def infer(self, images: Tensor) -> Any:
            seen.append(len(images))
            return super().infer(images)

    class Cut(Own):
        def first(self, inferred: Any, count: int) -> Any:
            return super().first(inferred, count)

    seen: list[int] = []
    for kind in (Own, Cut):
        model = detector('detect')
        model.__class__ = kind
        assert len(list(Predictor(model, fill=4).launch(batch(0, 2))())) == 2
    assert seen == [2, 4]  # the second is the control


def test_a_model_that_normalises_by_the_batch_is_given_no_black_images(device: torch.device) -> None:
    """They would change what is found in the others."""
    model = detector('detect').to(device)
    assert Predictor(model, fill=4)._fill == 4  # control
    norm = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    part = batch(0, 2)
    for training in (True, False):
        norm.train(training)
        norm.running_mean = norm.running_mean if training else None
        norm.running_var = norm.running_var if training else None
        with torch.no_grad():
            expected = copy.deepcopy(model).val_step(part)
        assert same(expected, list(Predictor(copy.deepcopy(model), fill=4).launch(part)()))
    norm.register_forward_pre_hook(lambda _, images: (torch.cat([images[0], torch.zeros_like(images[0])]),))
    norm.register_forward_hook(lambda _, __, output: output[:2])
    assert not same(expected, list(Predictor(model).launch(part)()))  # control: black ones would show


def test_a_single_image_is_filled_up_whatever_its_stride_over_images_says() -> None:
    """It says nothing of one image: numpy gives 0, torch that of the colors; by either all images would be one."""
    image = torch.rand(8, 6, 3)
    of_numpy = torch.from_numpy(image.numpy()[None]).permute(0, 3, 1, 2)
    of_torch = image.permute(2, 0, 1)[None]
    assert (of_numpy.stride()[0], of_torch.stride()[0]) == (0, 3)
    for single in (of_numpy, of_torch):
        filled = _filled(single, 4)
        assert torch.equal(filled, torch.cat([single, torch.zeros(3, 3, 8, 6)]))
        assert filled.stride() == torch.rand(4, 3, 8, 6).contiguous(memory_format=torch.channels_last).stride()


def test_images_of_channels_last_are_filled_up_in_their_own_layout() -> None:
    full = torch.rand(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    for count in (1, 3):
        filled = _filled(full[:count], 4)
        assert filled.stride() == full.stride()
        assert torch.equal(filled[:count], full[:count])
        assert not filled[count:].any()


def test_filled_batches_are_replayed_by_the_recording_of_full_ones(backend: tuple[torch.device, Parts]) -> None:
    device, parts = backend
    reference = detector('detect').to(device)
    model = copy.deepcopy(reference)
    region = EvalRegion()
    region.activate(model, parts=parts)
    batches = [batch(0, 4), batch(1, 3), batch(2, 1)]
    expected = [list(Predictor(reference, fill=4).launch(each)()) for each in batches]
    finish = [Predictor(model, fill=4).launch(each) for each in batches]
    found = [list(launched()) for launched in finish]
    assert same(expected, found)
    assert [len(each) for each in found] == [4, 3, 1]
    assert (region.routes.replays, region.routes.captures, region.routes.eager) == (3, 1, {})
    list(Predictor(model).launch(batches[1])())  # control: as it comes it is another shape
    assert region.routes.eager == {(Reason.NEW_SIGNATURE, '3x3x64x64 float32'): 1}
    region.release()


def failing(numbers: int, error: BaseException) -> Iterator[int]:
    yield from range(numbers)
    raise error


def test_a_failure_comes_after_the_results_of_what_was_begun_before_it() -> None:
    events: list[str] = []
    with pytest.raises(ArithmeticError):
        list(behind(failing(2, ArithmeticError()), partial(recorded, events), depth=1))
    assert events == ['start 0', 'start 1', 'finish 0', 'finish 1']

    def start(number: int) -> Callable[[], int]:
        if number == 2:
            raise ArithmeticError
        return recorded(events, number)

    events.clear()
    with pytest.raises(ArithmeticError):
        list(behind(range(4), start, depth=1))
    assert events == ['start 0', 'start 1', 'finish 0', 'finish 1']


def test_a_start_that_ends_an_iteration_by_mistake_does_not_end_this_one() -> None:
    def start(number: int) -> Callable[[], int]:
        return partial(next, iter([number] if number < 2 else [])) if number != 2 else next(iter([]))

    results = behind(range(4), start, depth=1)
    assert [next(results), next(results)] == [(0, 0), (1, 1)]
    with pytest.raises(RuntimeError, match='StopIteration'):
        next(results)


def test_an_item_that_cannot_be_finished_raises_in_its_turn() -> None:
    results = behind(range(5), lambda number: lambda: 1 // (2 - number), depth=1)
    assert [next(results)[0], next(results)[0]] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_an_interrupt_is_not_kept_waiting() -> None:
    events: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        list(behind(failing(1, KeyboardInterrupt()), partial(recorded, events), depth=1))
    assert events == ['start 0']


@pytest.mark.cuda
@pytest.mark.parametrize('task', HEADS)
def test_launching_does_not_wait_for_the_device(task: str) -> None:
    model = detector(task).cuda()
    data = batch(0)
    data['inputs'] = data['inputs'].pin_memory()
    predictor = Predictor(model)
    expected = list(predictor.launch(data)())  # grids and kernels are there
    torch.cuda.set_sync_debug_mode('error')
    try:
        finish = predictor.launch(data)
    finally:
        torch.cuda.set_sync_debug_mode('default')
    assert same(expected, list(finish()))


@pytest.mark.cuda
@pytest.mark.parametrize('task', HEADS)
def test_a_batch_is_read_while_the_device_works_on_what_came_after(task: str) -> None:
    predictor = Predictor(detector(task).cuda())
    expected = list(predictor.launch(batch(0))())
    finish = predictor.launch(batch(0))
    torch.cuda._sleep(2_000_000_000)  # about a second of later work
    later = torch.cuda.current_stream().record_event()
    assert same(expected, list(finish()))
    assert not later.query()
    torch.cuda.synchronize()


@pytest.mark.cuda
def test_each_validation_reads_on_the_stream_of_the_one_before() -> None:
    model, streams = detector('detect').cuda(), set[int]()
    select = model.select

    def noted(inferred: Any) -> Any:
        streams.add(torch.cuda.current_stream().cuda_stream)
        return select(inferred)

    model.select = noted
    for _ in range(3):
        list(Predictor(model).launch(batch(0))())
    assert len(streams) == 1
    assert streams != {torch.cuda.current_stream().cuda_stream}
