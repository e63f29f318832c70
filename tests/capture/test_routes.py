"""Cases 13 and 16, policies, and what a region may return."""

import json
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from lucid.capture import (
    AccumulationTable,
    CaptureError,
    ModuleRegion,
    Policy,
    Reason,
    RecordingError,
    Report,
    SignatureError,
)
from lucid.capture.signature import ambient


def sizes(kit, *batches):
    return [kit.images(1, batch=batch, seed=i)[0] for i, batch in enumerate(batches)]


@pytest.mark.parametrize('gradients', ['clone', 'adopt'])
@pytest.mark.parametrize('accumulate', [1, 3])
@pytest.mark.parametrize(
    ('order', 'replays'),
    [
        ((4, 4, 1, 4, 4, 4), 5),  # between full ones
        ((4, 4, 4, 4, 4, 1), 5),  # last
        ((4, 4, 1, 4, 4, 1), 4),
        ((4, 1, 4, 4, 1, 4), 4),  # in the middle of a window of three
        ((1, 4, 4, 4, 4, 4), 5),  # first: gives way to the signature that is seen twice in a row
        ((2, 4, 4, 2, 4, 4), 4),
    ],
)
def test_a_partial_batch_runs_eager_and_replay_resumes(graph, kit, order, replays, accumulate, gradients):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate, gradients=gradients)
    batches = sizes(kit, *order)
    expected = kit.Training(reference, accumulate=accumulate).run(batches)
    found = kit.difference(expected, kit.Training(candidate, accumulate=accumulate).run(batches))
    assert found is None, str(found)
    graph.replays(region, replays)
    if graph.captures:
        assert region.routes.problems() == []
        assert sum(region.routes.eager.values()) == len(order) - replays
        assert all(reason is Reason.NEW_SIGNATURE for reason, _ in region.routes.eager)


def test_new_signatures_are_captured_up_to_the_limit(captured, kit):
    reference, candidate = kit.pair(captured)
    region = captured.capture(candidate, on_new_signature='capture', max_signatures=2)
    batches = sizes(kit, 4, 1, 2, 4, 1, 2)
    found = kit.difference(kit.Training(reference).run(batches), kit.Training(candidate).run(batches))
    assert found is None, str(found)
    captured.replays(region, 4)
    assert region.routes.captures == 2
    assert region.routes.eager == {(Reason.TOO_MANY, '2x3x64x64 float32'): 2}
    assert len(region.routes.problems()) == 1


def test_a_new_signature_raises_where_the_policy_says_so(captured, kit):
    _, candidate = kit.pair(captured)
    captured.capture(candidate, on_new_signature='raise')
    with pytest.raises(SignatureError, match='1x3x64x64 float32, which has no recording; drop the partial batch'):
        kit.Training(candidate).run(sizes(kit, 4, 1))


def test_strides_dtype_and_ambient_state_are_part_of_the_signature(captured, kit):
    _, candidate = kit.pair(captured)
    region = captured.capture(candidate, on_new_signature='capture', max_signatures=9)
    batch = kit.images(1)[0].to(captured.device)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)  # the first call sets more than it says
    candidate(batch)
    candidate(batch.to(memory_format=torch.channels_last))
    assert region.routes.captures == 2
    with torch.autocast(captured.device.type, dtype=torch.bfloat16, cache_enabled=False):
        candidate(batch)
    assert region.routes.captures == 3
    torch.set_float32_matmul_precision('high' if precision == 'highest' else 'highest')
    candidate(batch)
    torch.set_float32_matmul_precision(precision)
    assert region.routes.captures == 4
    candidate(batch)
    assert region.routes.captures == 4


def test_whether_an_input_wants_a_gradient_is_part_of_the_signature(graph, kit):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate, on_new_signature='capture')
    batch, grads = kit.images(1)[0].to(graph.device), []
    for model in (reference, candidate):
        model(batch).backward()
        leaf = batch.clone().requires_grad_()
        model(leaf).backward()
        grads.append(leaf.grad)
        model(batch).backward()
    assert grads[0].abs().sum() > 0
    assert torch.equal(*grads)
    graph.replays(region, 3)
    if graph.captures:
        assert region.routes.captures == 2


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('watch', ['anomaly', 'tracer'])
def test_who_watches_a_call_sees_the_target_itself(captured, kit, watch):
    _, candidate = kit.pair(captured)
    region = captured.capture(candidate)
    batch = kit.images(1)[0].to(captured.device)
    candidate(batch).backward()
    if watch == 'anomaly':
        with torch.autograd.detect_anomaly(check_nan=False):
            candidate(batch).backward()
    else:
        traced = torch.jit.trace(candidate.network, batch, check_trace=False)
        assert 'batch_norm' in str(traced.inlined_graph)
    assert region.routes.replays == 1
    assert {reason for reason, _ in region.routes.eager} == {Reason.WATCHED}


def flip(owner, name):
    setattr(owner, name, not getattr(owner, name))


@pytest.mark.parametrize(
    'toggle',
    [
        lambda: flip(torch.backends.cudnn, 'deterministic'),
        lambda: flip(torch.backends.cudnn, 'benchmark'),
        lambda: flip(torch.backends.cudnn, 'allow_tf32'),
        lambda: flip(torch.backends.cuda.matmul, 'allow_tf32'),
        lambda: torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled()),
        lambda: torch.set_default_dtype({torch.float32: torch.float64}.get(torch.get_default_dtype(), torch.float32)),
        lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
        lambda: torch.set_autocast_enabled('cpu', not torch.is_autocast_enabled('cpu')),
    ],
)
def test_every_flag_of_torch_that_decides_kernels_is_ambient_state(toggle):
    flip(torch.backends.cuda.matmul, 'allow_tf32')  # the first write of each sets more than it says
    flip(torch.backends.cuda.matmul, 'allow_tf32')
    before = ambient('cpu')
    toggle()
    during = ambient('cpu')
    toggle()
    assert during != before
    assert ambient('cpu') == before


def test_eval_and_no_grad_calls_run_eager_as_expected(captured, kit):
    _, candidate = kit.pair(captured)
    region = captured.capture(candidate)
    batch = kit.images(1)[0].to(captured.device)
    candidate(batch).backward()
    with torch.no_grad():
        candidate(batch)
    candidate.eval()
    candidate(batch)
    assert region.routes.eager == {(Reason.NO_GRAD, ''): 1, (Reason.EVAL, ''): 1}
    assert region.routes.problems() == []


def test_without_cuda_the_region_runs_eager_and_says_so(kit):
    model = kit.Detector()
    model.network.register_forward_hook(lambda *_: None)  # would be unexpected where there is something to capture
    region = ModuleRegion('network')
    region.activate(model)
    kit.Training(model).run(kit.images(2))
    region.release()
    assert region.routes.eager == {(Reason.NO_CUDA, ''): 2}
    assert region.routes.problems() == []
    assert 'there is no CUDA card' in Report([region.routes]).table()


def test_without_cuda_windows_that_the_table_runs_eager_say_so_too(kit):
    model = kit.Detector()
    region = ModuleRegion('network')
    region.activate(model, accumulation=AccumulationTable({(None, 'network'): 'eager'}))
    region.micro_batches = 2
    kit.Training(model).run(kit.images(2))
    region.release()
    assert region.routes.eager == {(Reason.NO_CUDA, ''): 2}


def test_a_target_that_is_never_called_is_a_problem_that_names_it(captured, kit):
    _, candidate = kit.pair(captured)
    region = captured.capture(candidate)
    candidate.network.forward(kit.images(1)[0].to(captured.device))
    (problem,) = region.routes.problems()
    assert problem.startswith('network: never called; ')
    assert '.forward()' in problem


def test_a_target_that_never_replayed_is_a_problem(captured, kit):
    _, candidate = kit.pair(captured)
    region = captured.capture(candidate.eval())
    candidate(kit.images(1)[0].to(captured.device))
    assert region.routes.problems() == ['network: never replayed in 1 calls']


def test_the_report_is_plain_json_and_a_table(captured, kit):
    _, candidate = kit.pair(captured)
    region = captured.capture(candidate)
    kit.Training(candidate).run(sizes(kit, 4, 4, 1))
    report = Report([region.routes])
    data = json.loads(json.dumps(report.as_dict()))
    assert data['problems'] == []
    network = data['regions']['network']
    assert (network['calls'], network['replays'], network['captures']) == (3, 2, 1)
    assert network['bytes'] > 0
    assert network['eager'] == [
        {
            'reason': 'new_signature',
            'text': 'a signature without recording',
            'detail': '1x3x64x64 float32',
            'expected': True,
            'calls': 1,
        }
    ]
    lines = report.table().splitlines()
    assert lines[0].split() == ['region', 'route', 'calls', 'reason']
    assert lines[1].split()[:3] == ['network', 'replay', '2']
    assert lines[2].split(maxsplit=3) == [
        'network', 'eager', '1', 'a signature without recording: 1x3x64x64 float32'
    ]  # fmt: skip


def test_an_eager_row_of_the_table_applies_to_windows_of_several_micro_batches_only(captured, kit):
    _, candidate = kit.pair(captured)
    region = captured.capture(candidate)
    region.release()
    region.activate(
        candidate,
        accumulation=AccumulationTable({(None, 'network'): 'eager'}),
        parts=region._parts,
    )
    training = kit.Training(candidate)
    training.run(kit.images(2))
    region.micro_batches = 2
    training.run(kit.images(2))
    region.micro_batches = 1
    training.run(kit.images(1))
    captured.replays(region, 3)
    assert region.routes.eager == {(Reason.ACCUMULATION, ''): 2}


class Reading(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x)
        return y if y.sum().item() > -1e9 else -y


def test_on_error_eager_trains_on_with_a_problem(captured, kit):
    model = nn.ModuleDict({'network': Reading()}).to(captured.device)
    region = captured.capture(model, on_error='eager')
    x = torch.randn(2, 3, device=captured.device)
    for _ in range(3):
        model['network'](x).sum().backward()
    assert sum(region.routes.eager.values()) == 3
    ((reason, detail),) = region.routes.eager
    assert reason is Reason.FAILED
    assert '_local_scalar_dense' in detail or 'item' in detail


class Levels(NamedTuple):
    boxes: Tensor
    logits: dict[str, Tensor]


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer('anchors', torch.arange(4))

    def forward(self, pair, *, offset=None, scale=1):
        a, b = pair['a'], pair['b']
        y = self.linear(a) * scale + (0 if offset is None else offset)
        return Levels(y, {'x': y + b.sum(), 'anchors': self.anchors + 1, 'stride': 8}), [b.detach(), None]


def test_nested_inputs_and_outputs_keep_their_types_and_gradients(graph):
    torch.manual_seed(0)
    modules = [nn.ModuleDict({'network': Nested()}).to(graph.device) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    region = graph.capture(modules[1], on_new_signature='capture')
    for seed in range(3):
        results = []
        for model in modules:
            torch.manual_seed(seed)
            a, b, offset = (torch.randn(2, n, device=graph.device, requires_grad=True) for n in (3, 4, 4))
            levels, (plain, nothing) = model['network']({'a': a, 'b': b}, offset=offset, scale=2)
            assert isinstance(levels, Levels)
            assert nothing is None
            assert levels.logits['stride'] == 8
            assert not plain.requires_grad
            assert not levels.logits['anchors'].requires_grad
            (levels.boxes.square().sum() + levels.logits['x'].sum()).backward()
            tensors = (levels.boxes, levels.logits['x'], levels.logits['anchors'], plain, a.grad, b.grad, offset.grad)
            results.append([*tensors, *(p.grad for p in model.parameters())])
        assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))
    graph.replays(region, 3)
    with_constant = modules[1]['network']({'a': a, 'b': b}, scale=3)[0].boxes
    assert torch.equal(with_constant, modules[0]['network']({'a': a, 'b': b}, scale=3)[0].boxes)
    if graph.captures:
        assert region.routes.captures == 3  # one for the gradient of sum(), which comes in expanded


def test_an_input_without_static_buffer_runs_eager_with_a_problem(captured):
    model = nn.ModuleDict({'network': Nested()}).to(captured.device)
    region = captured.capture(model)
    a, b = torch.randn(2, 3, device=captured.device), torch.randn(2, 4, device=captured.device)
    model['network']({'a': a, 'b': b}, scale=range(2)[1])
    with pytest.raises(TypeError):
        model['network']({'a': a, 'b': b}, scale=object())
    assert [reason for reason, _ in region.routes.eager] == [Reason.INPUT]


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x):
        return self.linear(x).relu()


def test_a_region_without_anything_to_differentiate_replays_its_forward(graph):
    model = nn.ModuleDict({'network': Frozen()}).to(graph.device)
    region = graph.capture(model)
    kept = []
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(2, 3, device=graph.device)
        y = model['network'](x)
        assert not y.requires_grad
        kept.append((y, model['network'].linear(x).relu()))
    assert all(torch.equal(a, b) for a, b in kept)
    graph.replays(region, 3)


class Outside(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.hidden = [weight]

    def forward(self, x):
        return self.linear(x) @ self.hidden[0]


def test_a_trainable_tensor_outside_the_target_is_refused_by_name(captured):
    weight = nn.Parameter(torch.randn(3, 3, device=captured.device))
    model = nn.ModuleDict({'network': Outside(weight)}).to(captured.device)
    captured.capture(model)
    with pytest.raises(RecordingError, match=r'neither an input nor a parameter .*; register it'):
        model['network'](torch.randn(2, 3, device=captured.device))


def test_a_module_used_twice_under_the_weight_cache_of_autocast_is_refused(captured):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(self.linear(x))

    model = nn.ModuleDict({'network': Twice()}).to(captured.device)
    region = captured.capture(model)
    x = torch.randn(2, 3, device=captured.device)
    kind = captured.device.type
    with torch.autocast(kind, dtype=torch.bfloat16), pytest.raises(RecordingError, match='cache_enabled=False'):
        model['network'](x)
    with torch.autocast(kind, dtype=torch.bfloat16, cache_enabled=False):
        model['network'](x)
    captured.replays(region, 1)


def test_regions_inside_each_other_record_the_outer_one(captured, kit):
    reference, candidate = kit.pair(captured)
    outer, inner = captured.capture(candidate), captured.capture(candidate, 'network.head')
    batches = sizes(kit, 4, 4, 2, 4)
    found = kit.difference(kit.Training(reference).run(batches), kit.Training(candidate).run(batches))
    assert found is None, str(found)
    captured.replays(outer, 3)
    captured.replays(inner, 1)  # in the call that the outer region ran eager


@pytest.mark.parametrize(
    'wrong',
    [
        {'on_new_signature': 'replay'},
        {'on_change': 'ignore'},
        {'on_error': 'skip'},
        {'gradients': 'own'},
        {'max_signatures': 0},
    ],
)
def test_an_unknown_policy_is_refused_at_build_time(wrong):
    with pytest.raises(ValueError, match='use'):
        Policy(**wrong)


def test_every_error_ends_with_its_remedy():
    error = CaptureError('what is wrong', 'what to do')
    assert str(error) == 'what is wrong; what to do'
