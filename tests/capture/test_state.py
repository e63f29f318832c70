"""Cases 7, 9, 10, 11: capturing changes nothing, copies are plain, random sequences are eager's."""

import copy
import gc
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn

from lucid.capture import Recording, RecordingError, first_difference, training_values
from lucid.capture.state import State


def everything(model):
    values = training_values(model)
    values['generator.cpu'] = torch.get_rng_state()
    if next(model.parameters()).is_cuda:
        values['generator.cuda'] = torch.cuda.get_rng_state()
    return values


class CaptureOnly(State):
    """Stops after the state has been put back, so that the test sees what the capture alone did."""

    def restore(self):
        super().restore()
        raise KeyboardInterrupt


class Unrestored(State):
    def restore(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize('grads', [False, True])
def test_capturing_changes_nothing(captured, kit, grads):
    _, model = kit.pair(captured, kit.Detector(dropout=0.3))
    batch = kit.images(1)[0].to(captured.device)
    if grads:
        model(batch).backward()
    captured.capture(model, parts={'state': CaptureOnly})
    before, attributes = everything(model), {n: dict(vars(m)) for n, m in model.named_modules()}
    kept = [p.grad for p in model.parameters()]
    collecting, autocast = gc.isenabled(), torch.is_autocast_cache_enabled()
    with pytest.raises(KeyboardInterrupt):
        model(batch)
    found = first_difference(before, everything(model))
    assert found is None, str(found)
    assert all(p.grad is grad for p, grad in zip(model.parameters(), kept, strict=True))
    assert (gc.isenabled(), torch.is_autocast_cache_enabled()) == (collecting, autocast)
    for name, module in model.named_modules():
        assert vars(module).keys() == attributes[name].keys()
        assert all(vars(module)[key] is value for key, value in attributes[name].items()), name


def test_control_without_restoring_the_capture_leaves_traces(captured, kit):
    _, model = kit.pair(captured, kit.Detector(dropout=0.3))
    captured.capture(model, parts={'state': Unrestored})
    before = everything(model)
    with pytest.raises(KeyboardInterrupt):
        model(kit.images(1)[0].to(captured.device))
    found = first_difference(before, everything(model))
    assert found is not None
    assert found.key.startswith('buffer.')


def test_all_that_a_target_could_reach_while_it_is_recorded_is_put_back(kit):
    """Gradients, their objects, attributes and the generators of Python, numpy and torch, though a target may not."""
    model = kit.Detector()
    weight, head = model.network.stem[0][0].weight, model.network.head
    weight.grad = grad = torch.ones_like(weight)
    state = State(model.network, torch.device('cpu'))
    draws = [random.getstate(), tuple(np.random.get_state()[1]), tuple(torch.get_rng_state())]  # noqa: NPY002
    for parameter in model.network.parameters():
        parameter.data.add_(1)
        parameter.grad = torch.zeros_like(parameter)
    grad.mul_(3)
    head.gain, head.new = 5.0, 1
    model.network.stem[0][1].running_mean = torch.ones(8)
    random.random(), np.random.rand(1000), torch.rand(1)  # noqa: NPY002
    state.restore()
    assert weight.grad is grad
    assert (grad == 1).all()
    assert sum(p.grad is not None for p in model.network.parameters()) == 1
    assert head.gain == 1.0
    assert not hasattr(head, 'new')
    assert (model.network.stem[0][1].running_mean == 0).all()
    assert draws == [random.getstate(), tuple(np.random.get_state()[1]), tuple(torch.get_rng_state())]  # noqa: NPY002


def test_batch_norm_after_ten_steps_equals_eager(graph, kit):
    reference, candidate = kit.pair(graph)
    graph.capture(candidate)
    for model in (reference, candidate):
        kit.Training(model).run(kit.images(10))
    found = first_difference(dict(reference.named_buffers()), dict(candidate.named_buffers()))
    assert found is None, str(found)
    assert int(candidate.network.stem[0][1].num_batches_tracked) == 10


def test_capture_release_capture_three_times_each_equal(graph, kit):
    reference, candidate = kit.pair(graph)
    plain = set(vars(candidate.network))
    training, ours = kit.Training(reference, accumulate=2), kit.Training(candidate, accumulate=2)
    for i in range(3):
        region = graph.capture(candidate)
        batches = kit.images(4, seed=i)
        found = kit.difference(training.run(batches), ours.run(batches))
        assert found is None, f'round {i}: {found}'
        graph.replays(region, 4)
        region.release()
        region.release()
        assert set(vars(candidate.network)) == plain
    batches = kit.images(2, seed=9)
    found = kit.difference(training.run(batches), ours.run(batches))
    assert found is None, str(found)


def test_gradients_outlive_the_release(captured, kit):
    for gradients in ('clone', 'adopt'):
        reference, candidate = kit.pair(captured)
        region = captured.capture(candidate, gradients=gradients)
        batch = kit.images(1)[0].to(captured.device)
        for model in (reference, candidate):
            model(batch).backward()
        pool = region._pool
        spans = [span for recording in pool.recordings for span in recording.gradients.spans()]
        region.release()
        assert pool.recordings == []
        grads = [p.grad for p in candidate.parameters()]
        assert not any(a <= grad.data_ptr() < b for grad in grads for a, b in spans)  # nor does any lie in a graph's
        found = first_difference(training_values(reference), training_values(candidate))
        assert found is None, str(found)


def test_deepcopy_and_pickle_of_a_captured_model_are_plain(captured, kit):
    _, model = kit.pair(captured)
    region = captured.capture(model)
    kit.Training(model).run(kit.images(2))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model.network))):
        network = getattr(twin, 'network', twin)
        assert '_compiled_call_impl' not in vars(network)
        found = first_difference(model.network.state_dict(), network.state_dict())
        assert found is None, str(found)
        before = region.routes.calls
        network(kit.images(1)[0].to(captured.device))
        assert region.routes.calls == before
    assert model.network.forward.__func__ is kit.Network.forward
    assert not any('compiled' in key for key in model.state_dict())


def test_an_average_made_before_or_after_capture_evaluates_like_a_fresh_model(graph, kit):
    _, model = kit.pair(graph)
    averages = [torch.optim.swa_utils.AveragedModel(model)]
    region = graph.capture(model)
    training = kit.Training(model)
    training.run(kit.images(1))
    averages.append(torch.optim.swa_utils.AveragedModel(model))
    for batch in kit.images(3):
        training.micro_step(batch)
        for average in averages:
            average.update_parameters(model)
    batch = kit.images(1, seed=5)[0].to(graph.device)
    for average in averages:
        fresh = kit.Detector().to(graph.device).eval()
        fresh.load_state_dict(average.module.state_dict())
        with torch.no_grad():
            ours, theirs = average.module.eval().network(batch), fresh.network(batch)
        found = first_difference({'outputs': theirs}, {'outputs': ours})
        assert found is None, str(found)
    graph.replays(region, 4)


def test_validation_with_swapped_values_keeps_the_recording(graph, kit):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate)
    batch = kit.images(1, seed=5)[0].to(graph.device)

    def run(model):
        training, values = kit.Training(model), []
        for images in kit.images(3):
            values.append(training.micro_step(images))
            kept = [p.detach().clone() for p in model.parameters()]
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.9)  # in place: values change, storage does not
                values[-1]['validation'] = [o.clone() for o in model.eval().network(batch)]
                for p, value in zip(model.parameters(), kept, strict=True):
                    p.copy_(value)
            model.train()
        return values

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 3)
    if graph.captures:
        assert region.routes.captures == 1


@pytest.mark.parametrize('target', ['network', 'network.head'])
def test_dropout_draws_the_sequence_of_eager_and_honours_a_seed(graph, kit, target):
    reference, candidate = kit.pair(graph, kit.Detector(dropout=0.4))
    region = graph.capture(candidate, target)

    def run(model):
        training, values = kit.Training(model, accumulate=2), []
        torch.manual_seed(7)
        for i, batch in enumerate(kit.images(6)):
            if i == 4:
                torch.manual_seed(11)
            values.append(training.micro_step(batch) | {'next draw': torch.rand(3, device=graph.device)})
        return values

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 6)


class DropPath(nn.Module):
    """Leaves a branch out of a part of the images, as residual networks do."""

    def __init__(self, branch):
        super().__init__()
        self.branch = branch

    def forward(self, x):
        kept = torch.empty(len(x), 1, 1, 1, device=x.device).bernoulli_(0.5)
        return x + self.branch(x) * kept / 0.5


def test_paths_that_are_dropped_follow_the_sequence_of_eager_and_its_seeds(graph, kit):
    def build():
        torch.manual_seed(0)
        model = kit.Detector()
        model.network.stem.append(DropPath(kit.ConvBNSiLU(8, 8)))
        return model.to(graph.device)

    reference, candidate = build(), build()
    region = graph.capture(candidate)

    def run(model):
        training, values = kit.Training(model, accumulate=2), []
        for i, batch in enumerate(kit.images(6)):
            if i in (0, 4):
                torch.manual_seed(7 + i)
            values.append(training.micro_step(batch) | {'next draw': torch.rand(3, device=graph.device)})
        return values

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 6)


class Repeating(Recording):
    """A graph that bakes in its random numbers."""

    def replay(self, leaves, **options):
        torch.manual_seed(0)
        return super().replay(leaves, **options)


def test_control_a_recording_that_repeats_its_draws_differs(captured, kit):
    reference, candidate = kit.pair(captured, kit.Detector(dropout=0.4))
    captured.capture(candidate, parts={'recording': Repeating})
    batches = kit.images(3)
    found = kit.difference(kit.Training(reference).run(batches), kit.Training(candidate).run(batches))
    assert found is not None
    assert found.step == 1


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x)


class Rebinding(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer('mean', torch.zeros(3))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(x) - self.mean


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x.mul_(2))


class Draws(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        import random

        return self.linear(x) * random.random()


@pytest.mark.parametrize(
    ('module', 'message'),
    [
        (Counting, r'attribute calls .*; keep the value in a buffer'),
        (Rebinding, r'rebinds its buffer mean .*; write it in place'),
        (InPlace, r'writes into its input'),
        (Draws, r"Python's or numpy's random generator.*; draw with torch"),
    ],
)
def test_state_that_a_replay_could_not_keep_up_is_refused_by_name(captured, module, message):
    model = nn.ModuleDict({'network': module()}).to(captured.device)
    captured.capture(model)
    with pytest.raises(RecordingError, match=message):
        model['network'](torch.randn(2, 3, device=captured.device))
    assert getattr(model['network'], 'calls', 0) == 0
