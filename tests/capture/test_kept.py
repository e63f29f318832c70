"""What autograd keeps for the backward beside trainable parameters: a write in between is refused, as in eager."""

import pytest
import torch
from torch import nn

from lucid.capture import BackwardError, leaves


class Shifted(nn.Module):
    """A line of a buffer that the backward reads and one that it does not, and one that the module writes itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer('scale', torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer('shift', torch.ones(3))
        self.register_buffer('count', torch.zeros(()))

    def forward(self, x):
        with torch.no_grad():
            self.count.add_(1)
        return self.linear(x) * self.scale + self.shift


def refusals(model, run):
    """What a write to each buffer and frozen parameter between ``run`` and its backward leads to, by name."""
    found = {}
    frozen = ((name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad)
    for name, tensor in (*model.named_buffers(), *frozen):
        kept = tensor.clone()
        loss = run(model)
        with torch.no_grad():
            tensor.add_(1)
        try:
            loss.backward()
            found[name] = {n: p.grad for n, p in model.named_parameters()}
        except RuntimeError:
            found[name] = 'refused'
        model.zero_grad()
        with torch.no_grad():
            tensor.copy_(kept)
    return found


def test_a_buffer_written_between_forward_and_backward_is_refused_where_eager_refuses_it(graph, kit):
    """The statistics of a normalisation in evaluation mode, which its backward reads, and weights that are frozen."""
    reference, candidate = kit.pair(graph)
    for model in (reference, candidate):
        for module in model.network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        model.network.level1[0].weight.requires_grad_(False)
    region = graph.capture(candidate)
    batch = kit.images(1)[0].to(graph.device)
    expected, found = (refusals(model, lambda model: model(batch)) for model in (reference, candidate))
    assert kit.difference([expected], [found]) is None
    refused = [name for name, value in expected.items() if value == 'refused']
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in reference.modules())
    assert len(refused) == 2 * norms + 1
    assert 'network.stem.0.1.running_mean' in refused
    assert 'network.level1.0.weight' in refused
    graph.replays(region, len(expected))


def test_statistics_of_a_normalisation_in_training_may_change_as_its_backward_does_not_read_them(captured, kit):
    """Eager refuses it; a replay has the gradients that it has without the write."""
    reference, candidate = kit.pair(captured)
    captured.capture(candidate)
    batch = kit.images(1)[0].to(captured.device)
    reference(batch).backward()
    expected = {name: parameter.grad for name, parameter in reference.named_parameters()}
    found = refusals(candidate, lambda model: model(batch))
    assert len(found) == 3 * sum(isinstance(module, nn.BatchNorm2d) for module in candidate.modules())
    for name, grads in found.items():
        assert kit.difference([expected], [grads]) is None, name


def test_of_the_buffers_those_that_the_backward_does_not_read_may_change(graph, kit):
    reference, candidate = kit.pair(graph, nn.ModuleDict({'network': Shifted()}))
    region = graph.capture(candidate)
    x = torch.randn(2, 3, device=graph.device)
    runs = [refusals(model, lambda model: model['network'](x).square().sum()) for model in (reference, candidate)]
    assert kit.difference(*([run] for run in runs)) is None
    assert [name for name, value in runs[0].items() if value == 'refused'] == ['network.scale']
    graph.replays(region, 3)


class Levelled(Shifted):
    """Writes ``count`` before its backward keeps it."""

    def forward(self, x):
        return super().forward(x) * self.count


def test_a_buffer_that_the_target_writes_and_its_backward_reads_is_refused_as_in_eager(graph, kit):
    reference, candidate = kit.pair(graph, nn.ModuleDict({'network': Levelled()}))
    region = graph.capture(candidate)
    x = torch.randn(2, 3, device=graph.device)
    runs = [refusals(model, lambda model: model['network'](x).square().sum()) for model in (reference, candidate)]
    assert kit.difference(*([run] for run in runs)) is None
    assert [name for name, value in runs[1].items() if value == 'refused'] == ['network.scale', 'network.count']
    graph.replays(region, 3)


def test_a_target_that_nobody_may_watch_keeps_all_buffers_that_it_does_not_write(captured, monkeypatch):
    monkeypatch.setattr(leaves, '_saved_by', lambda run, tensors: None)
    model = nn.ModuleDict({'network': Shifted()}).to(captured.device)
    captured.capture(model)
    x = torch.randn(2, 3, device=captured.device)
    found = refusals(model, lambda model: model['network'](x).square().sum())
    assert [name for name, value in found.items() if value == 'refused'] == ['network.scale', 'network.shift']
    loss = model['network'](x).sum()
    model['network'].shift.add_(1)
    with pytest.raises(BackwardError, match='parameter or buffer was written in place'):
        loss.backward()


def test_a_buffer_that_holds_nan_is_none_that_the_target_has_written(captured):
    """It differs from itself by value."""
    model = nn.ModuleDict({'network': Shifted()}).to(captured.device)
    network = model['network']
    network.scale[0] = network.shift[0] = float('nan')
    captured.capture(model)
    x = torch.ones(2, 3, device=captured.device)
    found = refusals(model, lambda model: model['network'](x).square().sum())
    assert [name for name, value in found.items() if value == 'refused'] == ['network.scale']


def test_only_what_is_watched_is_known_to_keep_less_than_everything():
    network = Shifted()
    x = torch.randn(2, 3)
    names = {id(tensor): name for name, tensor in (*network.named_parameters(), *network.named_buffers())}
    parameters, buffers = list(network.parameters()), list(network.buffers())
    kept = {
        watched: [
            names[id(tensor)] for tensor in leaves.kept_by(lambda: network(x), parameters, buffers, watched=watched)
        ]
        for watched in (True, False)
    }
    assert kept == {True: ['scale'], False: ['linear.weight', 'linear.bias', 'scale', 'shift']}
