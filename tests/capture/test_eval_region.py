"""Evaluation captured: the same outputs as eager, beside a training whose graph memory it shares."""

import copy
import pickle

import pytest
import torch
from torch import nn

from lucid.capture import (
    EvalRegion,
    Parts,
    Policy,
    Pool,
    Reason,
    RecordingError,
    Report,
    SharedMemory,
    TargetError,
    first_difference,
    training_values,
)
from lucid.capture.compiling import SLOT
from lucid.capture.guards import Guards


def evaluating(graph, model, target='network', *, beside=None, parts=None, **policy):
    """An active region of evaluation; on the eager run one that nobody asks."""
    region = EvalRegion(target)
    if graph.captures:
        region.beside = beside
        replaced = {'memory': lambda _: graph.memory(), **(parts or {})}
        region.activate(model, policy=Policy(**policy), parts=Parts(**replaced))
        graph.regions.insert(0, region)  # released before the region of training that it may lie on
    return region


def both(graph, model, *, parts=None, **policy):
    """A region of training and one of evaluation on one target, in one memory."""
    memory = SharedMemory(lambda _: graph.memory())
    training = graph.capture(model, parts={'memory': memory}, **policy)
    region = evaluating(
        graph, model, beside=training if graph.captures else None, parts={'memory': memory, **(parts or {})}
    )
    return training, region


@torch.no_grad()
def outputs(model, images, dtype=None):
    device = next(model.parameters()).device
    model.eval()
    with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        found = model.network(images.to(device))
    model.train()
    return found


def difference(ours, theirs):
    return first_difference(dict(enumerate(ours)), dict(enumerate(theirs)))


@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
def test_evaluation_equals_eager_while_weights_and_statistics_move(graph, kit, dtype):
    reference, candidate = kit.pair(graph)
    region = evaluating(graph, candidate)
    trainings = kit.Training(reference), kit.Training(candidate)
    seen = []
    for epoch, batch in enumerate(kit.images(3)):
        for training in trainings:
            training.run(kit.images(2, seed=epoch))
        for images in (*kit.images(2, seed=9), batch[:1]):
            expected, found = outputs(reference, images, dtype), outputs(candidate, images, dtype)
            assert difference(expected, found) is None, difference(expected, found)
            seen.append(found[0])
    assert not torch.equal(seen[0], seen[3])  # control: the trainings did move the weights
    graph.replays(region, 6)
    if graph.captures:
        assert region.routes.captures == 1
        assert region.routes.eager == {(Reason.NEW_SIGNATURE, '1x3x64x64 float32'): 3}
        assert region.routes.problems() == []


def test_what_is_swapped_in_by_value_is_evaluated(graph, kit):
    reference, candidate = kit.pair(graph)
    region = evaluating(graph, candidate)
    images = kit.images(1)[0]
    before = outputs(candidate, images)
    for model in (reference, candidate):
        with torch.no_grad():
            for value in (*model.parameters(), *model.buffers()):
                value.copy_(value * 2)
    assert difference(outputs(reference, images), outputs(candidate, images)) is None
    assert difference(before, outputs(candidate, images)) is not None
    graph.replays(region, 3)


class Blind(Guards):
    """Sees nothing."""

    def changed(self):
        return None


@pytest.mark.parametrize(
    ('change', 'what'),
    [
        (lambda network: setattr(network.head, 'gain', 3.0), 'the attribute head.gain changed'),
        (lambda network: network.level1[1].train(), 'the training flag of level1.1 changed'),
        (
            lambda network: setattr(network.level1[0].weight, 'data', network.level1[0].weight.data * 2),
            'the memory of level1.0.weight changed',
        ),
        (
            lambda network: network.level1[1].register_buffer('running_mean', network.level1[1].running_mean + 1),
            'level1.1.running_mean is another object',
        ),
    ],
)
def test_what_a_recording_baked_in_is_watched(captured, kit, change, what):
    images = kit.images(1)[0]
    for parts, equal in ((None, True), ({'guards': Blind}, False)):  # control: without the guard the values are stale
        torch.manual_seed(0)
        reference, candidate = kit.pair(captured, kit.Detector())
        region = evaluating(captured, candidate, parts=parts)
        found = []
        for model in (reference, candidate):
            model.eval()
            with torch.no_grad():
                model.network(images.to(captured.device))
                change(model.network)
                found.append(model.network(images.to(captured.device)))
        assert (difference(*found) is None) is equal
        captured.replays(region, 2)
        assert region.routes.captures == 1 + equal
        assert list(region.routes.retired) == [what] * equal
        region.release()


def test_a_hook_on_a_module_runs_eager_and_is_a_problem(captured, kit):
    _, candidate = kit.pair(captured)
    region = evaluating(captured, candidate)
    calls = []
    candidate.network.level1.register_forward_hook(lambda *_: calls.append(1))
    outputs(candidate, kit.images(1)[0])
    assert len(calls) == 1
    assert region.routes.eager == {(Reason.HOOK, 'forward_hooks on level1'): 1}
    assert len(region.routes.problems()) == 2


def test_outputs_are_the_callers(captured, kit):
    reference, candidate = kit.pair(captured)
    evaluating(captured, candidate)
    batches = kit.images(3)
    kept = [outputs(candidate, images) for images in batches]
    for images, found in zip(batches, kept, strict=True):
        assert difference(outputs(reference, images), found) is None


def test_capturing_changes_no_state(captured, kit):
    _, candidate = kit.pair(captured, kit.Detector(dropout=0.5))
    training = kit.Training(candidate)
    training.forward(kit.images(1)[0].to(captured.device)).backward()
    evaluating(captured, candidate)

    def state():
        values = training_values(candidate, training.optimizer) | {'cpu': torch.get_rng_state()}
        return values | ({'cuda': torch.cuda.get_rng_state()} if captured.name == 'cuda' else {})

    candidate.eval()
    before, flags = state(), [module.training for module in candidate.modules()]
    attributes = [dict(vars(module)) for module in candidate.modules()]
    with torch.no_grad():
        candidate.network(kit.images(1)[0].to(captured.device))
    assert first_difference(before, state()) is None
    assert [module.training for module in candidate.modules()] == flags
    assert [dict(vars(module)) for module in candidate.modules()] == attributes


@pytest.mark.parametrize('gradients', ['clone', 'adopt'])
@pytest.mark.parametrize('accumulate', [1, 3])
def test_training_and_evaluation_in_one_memory_equal_eager(graph, kit, accumulate, gradients):
    """Evaluations come inside of windows too, where gradients are alive."""
    reference, candidate = kit.pair(graph)
    training, region = both(graph, candidate, gradients=gradients)
    sides = kit.Training(reference, accumulate=accumulate), kit.Training(candidate, accumulate=accumulate)
    for step, images in enumerate(kit.images(7)):
        values = [side.micro_step(images) for side in sides]
        values = [
            value | dict(enumerate(outputs(side.model, images))) for value, side in zip(values, sides, strict=True)
        ]
        found = first_difference(*values, step=step)
        assert found is None, str(found)
    graph.replays(training, 7)
    graph.replays(region, 7)
    if graph.captures:
        assert training._pool.memory is region._pool.memory
        # The calls of evaluation were not its, but for the one that was recorded through it.
        assert {reason for reason, _ in training.routes.eager} == {Reason.NESTED}


class Alone(Pool):
    """A pool that does not look at its neighbours."""

    def __setattr__(self, name, value):
        super().__setattr__(name, tuple if name == 'neighbours' else value)


def gradients_of(model):
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.usefixtures('no_kept_graph')
def test_gradients_in_graph_memory_are_moved_before_an_evaluation(captured, kit):
    """Two micro-batches of one window, with an evaluation between them; ``.grad`` lies in the graph's own memory."""
    batches, model = kit.images(2), kit.Detector().to(captured.device)
    reference = copy.deepcopy(model)
    kit.Training(reference, accumulate=3).run(batches)
    for parts, equal in ((None, True), ({'pool': Alone}, False)):
        candidate = copy.deepcopy(model)
        training, region = both(captured, candidate, parts=parts, gradients='adopt')
        outputs(candidate, batches[0])  # its graph is there before the gradients are
        side = kit.Training(candidate, accumulate=3)
        side.micro_step(batches[0])
        outputs(candidate, batches[0])
        side.micro_step(batches[1])
        assert (first_difference(gradients_of(reference), gradients_of(candidate)) is None) is equal
        region.release()
        training.release()


def test_an_evaluation_between_a_forward_and_its_backward_runs_eager(captured, kit):
    images, model = kit.images(1)[0].to(captured.device), kit.Detector().to(captured.device)
    reference = copy.deepcopy(model)
    kit.Training(reference).forward(images).backward()
    for parts, held in ((None, True), ({'pool': Alone}, False)):  # control: a replay destroys the activations
        candidate = copy.deepcopy(model)
        training, region = both(captured, candidate, parts=parts)
        side = kit.Training(candidate)
        outputs(candidate, images)
        loss = side.forward(images)
        expected, found = outputs(copy.deepcopy(reference), images), outputs(candidate, images)
        loss.backward()
        assert (first_difference(gradients_of(reference), gradients_of(candidate)) is None) is held
        assert region.routes.eager == ({(Reason.HOLD, ''): 1} if held else {})
        region.release()
        training.release()
        del expected, found


def test_release_leaves_the_model_as_if_it_had_never_been_captured(captured, kit):
    _, candidate = kit.pair(captured)
    training, region = both(captured, candidate)
    kit.Training(candidate).run(kit.images(1))
    outputs(candidate, kit.images(1)[0])
    assert region.active
    for twin in (copy.deepcopy(candidate), pickle.loads(pickle.dumps(candidate.state_dict()))):
        assert SLOT not in vars(getattr(twin, 'network', object()) if isinstance(twin, nn.Module) else nn.Module())
    region.release()
    assert training.active
    training.release()
    assert SLOT not in vars(candidate.network)
    assert not region.active
    outputs(candidate, kit.images(1)[0])
    captured.replays(region, 1)


class Finder(nn.Module):
    """A model with the seam: a network, and a decoding that sorts."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.count = 5

    def infer(self, images):
        scores, places = self.network(images).flatten(1).sort(dim=1, descending=True, stable=True)
        return {'scores': scores[:, : self.count], 'places': places[:, : self.count], 'maps': None}

    def forward(self, images):
        return self.infer(images)


@torch.no_grad()
def test_what_a_model_infers_is_captured_with_its_decoding(captured, kit):
    candidate = Finder().eval().to(captured.device)
    reference = copy.deepcopy(candidate)
    region = evaluating(captured, candidate, None)
    for images in kit.images(3):
        images = images.to(captured.device)
        expected, found = reference(images), candidate(images)
        assert list(found) == ['scores', 'places', 'maps']
        assert first_difference(expected, found) is None
    captured.replays(region, 3)
    for twin in (copy.deepcopy(candidate), pickle.loads(pickle.dumps(candidate))):  # plain, and their own
        twin.count = 2
        assert twin(images)['places'].shape == (4, 2)
    captured.replays(region, 3)
    reference.count = candidate.count = 7
    assert first_difference(reference(images), candidate(images)) is None
    assert list(region.routes.retired) == ['the attribute count changed']
    region.release()
    assert 'infer' not in vars(candidate)


class Reading(Finder):
    def infer(self, images):
        found = super().infer(images)
        return {**found, 'best': found['scores'].max().item()}


@torch.no_grad()
def test_a_decoding_that_reads_the_device_is_refused_by_name(captured, kit):
    candidate = Reading().eval().to(captured.device)
    evaluating(captured, candidate, None)
    with pytest.raises(RecordingError, match='reads a tensor on the host'):
        candidate(kit.images(1)[0].to(captured.device))


def test_calls_of_training_and_with_gradients_are_not_the_regions(captured, kit):
    _, candidate = kit.pair(captured)
    region = evaluating(captured, candidate)
    images = kit.images(1)[0].to(captured.device)
    kit.Training(candidate).run([images])
    candidate.eval()
    assert candidate.network(images)[0].requires_grad
    with torch.inference_mode():
        candidate.network(images)
    assert region.routes.calls == 1
    assert region.routes.eager == {(Reason.INFERENCE, ''): 1}


def test_a_region_that_no_validation_needed_is_no_problem_and_a_missed_one_is(captured, kit):
    _, candidate = kit.pair(captured)
    region = evaluating(captured, candidate)
    assert region.routes.problems() == []
    assert 'was not needed' in Report([region.routes]).table()
    region.routes.due = True
    (problem,) = region.routes.problems()
    assert problem.startswith('eval/network: never called; ')
    assert 'UNEXPECTED: never called' in Report([region.routes]).table()


def test_without_cuda_evaluation_runs_eager_and_says_so(kit):
    model = kit.Detector()
    region = EvalRegion('network')
    region.activate(model)
    outputs(model, kit.images(1)[0])
    region.release()
    assert region.routes.eager == {(Reason.NO_CUDA, ''): 1}
    assert region.routes.problems() == []


def test_a_region_that_cannot_take_the_calls_says_why(captured, kit):
    _, candidate = kit.pair(captured)
    with pytest.raises(TargetError, match=r"Detector has no infer, .*dict\(type='EvalRegion', target='network'\)"):
        evaluating(captured, candidate, None)
    with pytest.raises(TargetError, match="has no module 'net'"):
        evaluating(captured, candidate, 'net')
    evaluating(captured, candidate)
    with pytest.raises(TargetError, match='eval/network is compiled, or captured already'):
        evaluating(captured, candidate)
    candidate.network.level1.compile()
    with pytest.raises(TargetError, match=r'eval/network\.level1 is compiled, or captured already'):
        evaluating(captured, candidate, 'network.level1')
