"""What others do to a model, an optimizer or gradients around a captured step has the effect that it has in eager."""

import copy
import pickle

import pytest
import torch
from torch import nn

from lucid.capture import CaptureError, HostReadError, Parts, Policy, Reason, RecordingError, StepRegion, TargetError
from lucid.engine.ema import ExponentialMovingAverage
from lucid.engine.optim_wrappers import AmpOptimWrapper, OptimWrapper
from lucid.engine.optimizers import SGD, AdamW


class Model(nn.Module):
    """Two layers with the seam of a step, and no care for copies."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def loss(self, data):
        return self.b(torch.tanh(self.a(data['inputs']))).square().mean()

    def compute(self, data, optim_wrapper):
        with optim_wrapper.optim_context(self):
            loss = self.loss(data)
        return loss, {'loss': loss.detach()}

    def step(self, data, optim_wrapper):
        loss, values = self.compute(data, optim_wrapper)
        optim_wrapper.update_params(loss)
        return values


def wrapped(model, params=None, *, dtype=None, optimizer=SGD, **options):
    made = optimizer(params or model.parameters(), lr=0.1, **({'momentum': 0.9} if optimizer is SGD else {}))
    return AmpOptimWrapper(made, dtype=dtype, **options) if dtype else OptimWrapper(made, **options)


def region_of(graph, model, **policy):
    region = StepRegion()
    region.activate(model, policy=Policy(**policy), parts=Parts(memory=lambda _: graph.memory()))
    graph.regions.append(region)
    return region


def batches(graph, count):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(3, 4, generator=generator).to(graph.device) for _ in range(count)]


def both(graph, run, model=Model, **policy):
    """Run the same eager and captured; every step's parameters and gradients must be equal. The captured region."""
    torch.manual_seed(0)
    made = model()
    sides, region = [], None
    for captured in (False, True):
        side = copy.deepcopy(made).to(graph.device)
        if captured and graph.captures:
            region = region_of(graph, side, **policy)
        seen = []

        def look(side=side, seen=seen):
            seen.append({name: p.detach().clone() for name, p in side.named_parameters()})
            seen[-1] |= {f'{n}.grad': None if p.grad is None else p.grad.clone() for n, p in side.named_parameters()}

        run(side, look)
        sides.append(seen)
    for step, (expected, found) in enumerate(zip(*sides, strict=True)):
        for name, value in expected.items():
            same = value is found[name] if value is None else torch.equal(value, found[name])
            assert same, f'step {step}: {name}'
    return region


def moves(model):
    model.double()
    model.float()


@pytest.mark.parametrize(
    'change',
    [
        moves,
        lambda m: m.to(memory_format=torch.channels_last),
        lambda m: setattr(m.a.weight.grad, 'data', m.a.weight.grad.data * 3),
        lambda m: m.a.weight.grad.mul_(3),
        lambda m: setattr(m.a.weight, 'grad', torch.ones_like(m.a.weight)),
        lambda m: setattr(m.a.weight, 'grad', None),
        lambda m: m.zero_grad(set_to_none=False),
        lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True),
        lambda m: setattr(m.a.weight, 'data', m.a.weight.data.clone()),
    ],
)
def test_a_change_inside_a_window_has_its_effect_in_this_and_the_next_windows(graph, change):
    def run(model, look):
        wrapper = wrapped(model, accumulative_counts=2)
        for i, x in enumerate(batches(graph, 12)):
            if i == 5:
                change(model)
            model.step({'inputs': x}, wrapper)
            look()

    both(graph, run)


def test_a_parameter_frozen_inside_a_window_gets_its_last_update_and_no_other(graph):
    def run(model, look):
        wrapper = wrapped(model, accumulative_counts=2)
        for i, x in enumerate(batches(graph, 12)):
            if i in (5, 8):
                model.a.weight.requires_grad_(i == 8)
            model.step({'inputs': x}, wrapper)
            look()

    region = both(graph, run)
    if region:
        assert (Reason.GRADIENT, 'at the end of a window') in region.routes.eager


def test_parameters_of_another_optimizer_keep_their_gradients_for_it(graph):
    def run(model, look):
        wrapper, other = wrapped(model, model.b.parameters()), torch.optim.SGD(model.a.parameters(), lr=0.1)
        for i, x in enumerate(batches(graph, 6)):
            model.step({'inputs': x}, wrapper)
            look()
            if i % 2:
                other.step()
                other.zero_grad()

    both(graph, run)


def test_a_parameter_outside_the_model_is_updated_too(graph):
    def run(model, look):
        extra = nn.Parameter(torch.ones(3, device=graph.device))
        wrapper = wrapped(model, [*model.parameters(), extra])
        for x in batches(graph, 5):
            (extra * x[0, 0]).sum().backward()
            model.step({'inputs': x}, wrapper)
            look()
        model.register_parameter('extra', extra)
        look()

    both(graph, run)


def test_a_graph_that_waits_over_a_step_is_refused_by_autograd_as_in_eager(graph):
    model = Model().to(graph.device)
    if graph.captures:
        region_of(graph, model)
    wrapper, (first, kept, third) = wrapped(model), batches(graph, 3)
    model.step({'inputs': first}, wrapper)
    waiting = model.b(torch.tanh(model.a(kept))).sum()
    model.step({'inputs': third}, wrapper)
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        waiting.backward()


def test_averages_that_are_swapped_in_refuse_a_step(graph):
    model = Model().to(graph.device)
    if graph.captures:
        region_of(graph, model)
    wrapper, average = wrapped(model), ExponentialMovingAverage(model)
    wrapper.add_post_step(average)
    inputs = batches(graph, 3)
    for x in inputs[:2]:
        model.step({'inputs': x}, wrapper)
    average.swap()
    with pytest.raises(RuntimeError, match='swap them out'):
        model.step({'inputs': inputs[2]}, wrapper)


def test_copies_and_pickles_of_a_model_that_knows_nothing_of_capture_train_on_their_own(captured):
    model = Model().to(captured.device)
    region = region_of(captured, model)
    wrapper, inputs = wrapped(model), batches(captured, 2)
    model.step({'inputs': inputs[0]}, wrapper)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = [parameter.clone() for parameter in model.parameters()]
        other.step({'inputs': inputs[1]}, wrapped(other))
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))
    captured.replays(region, 1)


def test_overrides_that_a_replay_would_not_run_are_refused_by_name():
    class Doubles(Model):
        def step(self, data, optim_wrapper):
            return super().step({'inputs': data['inputs'] * 2}, optim_wrapper)

    class Halves(OptimWrapper):
        def run_backward(self, loss, **kwargs):
            super().run_backward(loss / 2, **kwargs)

    with pytest.raises(TargetError, match=r'Doubles overrides step, .*override compute'):
        StepRegion().activate(Doubles())
    model = Model()
    with pytest.raises(TargetError, match='Halves overrides run_backward'):
        StepRegion.check_wrapper(Halves(SGD(model.parameters(), lr=0.1)))


def test_an_end_that_cannot_be_recorded_runs_eager_in_float16_and_is_tried_once(captured):
    class Reads(SGD):
        def update_group(self, group, hyper, params):
            float(params[0].grad.sum())
            super().update_group(group, hyper, params)

    def run(model, look):
        wrapper = AmpOptimWrapper(Reads(model.parameters(), lr=0.1, momentum=0.9), dtype='float16', init_scale=8.0)
        for x in batches(captured, 4):
            model.step({'inputs': x}, wrapper)
            look()

    region = both(captured, run, on_error='eager')
    failed = [count for (reason, _), count in region.routes.eager.items() if reason is Reason.FAILED]
    assert failed == [1]


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        (lambda loss: {'loss': loss.detach(), 'rate': 0.5}, "'rate' for the log is a float"),
        (lambda loss: {'loss': loss.detach(), 'both': torch.stack([loss, loss]).detach()}, None),
    ],
)
def test_values_for_the_log_of_any_shape_are_kept_and_other_objects_are_refused_by_name(captured, values, message):
    class Logs(Model):
        def compute(self, data, optim_wrapper):
            loss, _ = super().compute(data, optim_wrapper)
            return loss, values(loss)

    model = Logs().to(captured.device)
    region_of(captured, model)
    wrapper, (x,) = wrapped(model), batches(captured, 1)
    if message:
        with pytest.raises(RecordingError, match=message):
            model.step({'inputs': x}, wrapper)
    else:
        assert model.step({'inputs': x}, wrapper)['both'].shape == (2,)


def test_a_step_that_writes_into_its_batch_is_refused_by_name(captured):
    class Writes(Model):
        def loss(self, data):
            data['inputs'].mul_(2)
            return super().loss(data)

    model = Writes().to(captured.device)
    region_of(captured, model)
    with pytest.raises(RecordingError, match='writes into its batch in place'):
        model.step({'inputs': batches(captured, 1)[0]}, wrapped(model))


def test_a_model_without_trainable_parameters_is_refused_by_name(captured):
    model = Model().to(captured.device)
    wrapper = wrapped(model)
    model.requires_grad_(False)
    region_of(captured, model)
    (x,) = batches(captured, 1)
    with pytest.raises(CaptureError, match='reaches no parameter'):
        model.step({'inputs': x}, wrapper)


def test_a_kept_graph_with_second_derivatives_inside_a_window_adds_up_as_in_eager(graph):
    def run(model, look):
        wrapper = wrapped(model, accumulative_counts=2, optimizer=AdamW)
        for i, x in enumerate(batches(graph, 6)):
            if i == 3:
                model.loss({'inputs': x}).backward(create_graph=True)
            model.step({'inputs': x}, wrapper)
            look()

    both(graph, run)


@pytest.mark.cuda
@pytest.mark.parametrize('how', ['buffer', 'draw'])
def test_a_number_on_the_host_beside_a_card_is_refused_by_name(on_cuda, how):
    """A kernel takes its value when it is launched: a replay would keep the first."""

    class Gain(Model):
        def loss(self, data):
            gain = torch.ones(()) if how == 'buffer' else torch.rand(())
            return super().loss({'inputs': data['inputs'] * gain})

    model = Gain().to(on_cuda.device)
    region_of(on_cuda, model)
    with pytest.raises(HostReadError, match='uses a tensor on the CPU'):
        model.step({'inputs': batches(on_cuda, 1)[0]}, wrapped(model))
