"""A recording has autograd leaves of its own: graphs outside that wait for their backward do not meet it."""

import pytest
import torch
from torch import nn

from lucid.capture import RecordingError
from lucid.capture.leaves import StandIns
from lucid.capture.recording import Recording


def accumulators(outputs):
    """The AccumulateGrad nodes that a backward from ``outputs`` reaches."""
    nodes, found = [output.grad_fn for output in outputs], set()
    for node in nodes:
        if type(node).__name__ == 'AccumulateGrad':
            found.add(node)
        nodes.extend(n for n, _ in node.next_functions if n is not None and n not in nodes)
    return found


class Watched(Recording):
    """Keeps which autograd nodes a warm-up and a recording use, and which tensors they are of."""

    def _grad(self, outputs, wanted, grad_outputs):
        nodes = accumulators(outputs)
        self.watched = [*getattr(self, 'watched', []), (nodes, [node.variable for node in nodes])]
        return super()._grad(outputs, wanted, grad_outputs)


class OnParameters(StandIns):
    """Records on the parameters themselves."""

    def __init__(self, module):
        super().__init__(module)
        self.pairs = [(original, original) for _, original in self.pairs]
        self._by_id = {id(original): original for _, original in self.pairs}
        self._tables = [(path, table, originals, originals) for path, table, originals, _ in self._tables]


class WatchedOnParameters(Watched):
    def __init__(self, module, *args):
        super().__init__(module, *args)
        self._stand_ins = OnParameters(module)


def recorded(captured, candidate, recording):
    """What a capture used, while an eager graph that waits for its backward holds the parameters' own nodes."""
    held = accumulators([parameter.expand_as(parameter) for parameter in candidate.parameters()])
    region = captured.capture(candidate, parts={'recording': recording})
    candidate(torch.randn(2, 3, 64, 64, device=captured.device))
    return held, region._pool.recordings[0]


def test_no_autograd_node_of_a_parameter_takes_part_in_a_recording(captured, kit):
    _, candidate = kit.pair(captured)
    parameters = list(candidate.parameters())
    addresses = {parameter.data_ptr() for parameter in parameters}
    held, recording = recorded(captured, candidate, Watched)
    assert len(held) == len(parameters)
    assert len(recording.watched) == recording.pool.memory.num_warm_ups + 1
    for nodes, leaves in recording.watched:
        assert not nodes & held
        assert not any(leaf is parameter for leaf in leaves for parameter in parameters)
        assert {leaf.data_ptr() for leaf in leaves} == addresses  # the memory is the parameters' own
    assert all(a is b for a, b in zip(candidate.parameters(), parameters, strict=True))
    assert all(a is b for a, b in zip(recording.parameters, candidate.network.parameters(), strict=True))


@pytest.mark.parametrize('captured', ['tape'], indirect=True)  # on the card this capture fails
def test_control_a_recording_on_the_parameters_shares_their_autograd_nodes(captured, kit):
    held, recording = recorded(captured, kit.pair(captured)[1], WatchedOnParameters)
    assert all(nodes == held for nodes, _ in recording.watched)


@pytest.mark.cuda
def test_control_a_recording_on_the_parameters_fails_while_an_eager_graph_waits(on_cuda, kit):
    with pytest.raises(RecordingError, match='legacy stream'):
        recorded(on_cuda, kit.pair(on_cuda)[1], WatchedOnParameters)


def test_captures_while_eager_and_replayed_losses_wait_equal_eager(graph, kit):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate, on_new_signature='capture')

    def run(model):
        training, values, kept = kit.Training(model), [], []
        waiting = model.eval()(kit.images(1)[0].to(graph.device))  # eager, before anything is recorded
        model.train()
        for step, batch in enumerate((4, 2, 3)):  # each is a capture
            loss = training.forward(kit.images(1, batch=batch, seed=step)[0].to(graph.device))
            (loss if step else loss + waiting).backward()
            values.append(training.finish(loss))
            kept.append(loss)  # holds the nodes of the parameters
        return values

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 3)
    if graph.captures:
        assert region.routes.captures == 3


def test_a_capture_leaves_the_versions_of_parameters_that_the_target_writes(captured):
    class Clamped(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            with torch.no_grad():
                self.linear.weight.clamp_(-0.1, 0.1)
            return self.linear(x)

    model = nn.ModuleDict({'network': Clamped()}).to(captured.device)
    weight = model['network'].linear.weight
    waiting = (weight * weight).sum()
    version = weight._version
    captured.capture(model)
    model['network'](torch.randn(2, 3, device=captured.device))
    captured.replays(captured.regions[0], 1)
    assert weight._version == version
    waiting.backward()  # its saved tensor is weight


def test_tied_parameters_have_one_stand_in_and_everything_is_back(kit):
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=False))
    module[1].weight = module[0].weight
    module[0].weight.label = 'tied'
    before = [dict(m._parameters) for m in module.modules()]
    stand_ins = StandIns(module)

    def body():
        weight = module[1].weight
        assert weight is module[0].weight
        assert weight is not before[1]['weight']
        assert weight.data_ptr() == before[1]['weight'].data_ptr()
        assert weight.label == 'tied'
        assert len(list(module.parameters())) == len(stand_ins.pairs) == 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), stand_ins.in_place():
        body()
    for m, parameters in zip(module.modules(), before, strict=True):
        assert list(m._parameters) == list(parameters)
        assert all(m._parameters[key] is value for key, value in parameters.items())


class InList(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.kept = [self.linear.weight]

    def forward(self, x):
        return self.linear(x) @ self.kept[0]


class InClosure(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        weight = self.linear.weight
        self.penalty = lambda: weight.square().sum()

    def forward(self, x):
        return self.linear(x) + self.penalty()


class Rebinding(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        self.linear.weight = nn.Parameter(self.linear.weight.detach().clone())
        return self.linear(x)


class Adding(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        self.last = self.linear.weight
        return self.linear(x)


class Moving(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        self.linear.weight.data = self.linear.weight.data.clone()
        return self.linear(x)


class Freezing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        self.linear.weight.requires_grad_(False)
        return self.linear(x)


@pytest.mark.parametrize(
    ('module', 'message'),
    [
        (InList, r'reads its parameter linear\.weight through a reference of its own .*; read it as an attribute'),
        (InClosure, r'reads its parameter linear\.weight through a reference of its own'),
        (Rebinding, r'rebinds its parameter linear\.weight in forward'),
        (Adding, r'rebinds its parameter last in forward'),
        (Moving, r'moves its parameter linear\.weight'),
        (Freezing, r'changes its requires_grad'),
    ],
)
def test_what_would_reach_a_stand_in_alone_is_refused_by_name(captured, module, message):
    torch.manual_seed(0)
    model = nn.ModuleDict({'network': module()})
    # `to` swaps .data in place: the references that the module keeps stay those of its parameters.
    model = model.to(captured.device)
    parameters, values = dict(model.named_parameters()), [p.detach().clone() for p in model.parameters()]
    captured.capture(model)
    with pytest.raises(RecordingError, match=message):
        model['network'](torch.randn(2, 3, device=captured.device))
    now = dict(model.named_parameters())
    assert now.keys() == parameters.keys()
    assert all(now[name] is parameter and parameter.requires_grad for name, parameter in parameters.items())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), values, strict=True))
