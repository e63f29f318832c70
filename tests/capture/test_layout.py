"""What crosses the border of a region keeps its strides, holes, overlap and alignment."""

import copy

import pytest
import torch
from torch import nn

from lucid.capture import BackwardError, LossRegion, ModuleRegion, Parts, Policy, Report
from lucid.capture import gradients as gradients_module
from lucid.capture import recording as recording_module
from lucid.capture import signature as signature_module
from lucid.capture.incoming import MAX_LEARNED, IncomingGradients
from lucid.capture.layout import Layout, layout_of, mirror
from lucid.capture.recording import Recording

AS_RECORDED = 'a gradient came in with other strides than recorded'
RELEARNED = 'the strides of the gradients that came in'


class Blind(IncomingGradients):
    """Takes every gradient for one in the recorded layout."""

    def fit(self, grads):
        return True


class Unchecked(Recording):
    def __init__(self, *args):
        super().__init__(*args)
        self.incoming = Blind()


def number_of(tensor):
    """A number that no other layout of the shape has, as far as a test goes."""
    shift = tensor.data_ptr() % 16 // tensor.element_size()
    return 1.0 + shift / 64 + sum((i + 1) * stride for i, stride in enumerate(tensor.stride())) / 1024


class Probe(torch.autograd.Function):
    """Multiplies values and gradients by the number of their layouts, as an order of sums would depend on them."""

    @staticmethod
    def forward(ctx, x):
        return x * number_of(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * number_of(grad)


class Probed(nn.Module):
    """A convolution with bias between two probes."""

    def __init__(self, channels=4):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x):
        return Probe.apply(self.conv(Probe.apply(x)))


class Overlapping(torch.autograd.Function):
    """A sum whose gradient has elements that share memory."""

    @staticmethod
    def forward(ctx, y):
        ctx.shape = y.shape
        return y.sum()

    @staticmethod
    def backward(ctx, grad):
        return torch.arange(1.0, 41.0, device=grad.device).mul_(grad).as_strided(ctx.shape, (1, 1, 1, 2))


# Losses of an output of 2x4x8x9, and the layouts of its gradients by hand.
LOSSES = {
    'as the output': (lambda y: y.square().sum(), Layout((288, 72, 9, 1), 0)),
    'expanded': (lambda y: y.sum(), Layout((0, 0, 0, 0), 0)),
    'expanded in part': (lambda y: y.sum((2, 3)).square().sum(), Layout((4, 1, 0, 0), 0)),
    'channels last': (lambda y: y.permute(0, 2, 3, 1).contiguous().square().sum(), Layout((288, 1, 36, 4), 0)),
    'transposed': (lambda y: y.transpose(2, 3).contiguous().square().sum(), Layout((288, 72, 1, 8), 0)),
    'with holes': (
        lambda y: torch.cat([y.flatten(2), y.new_ones(2, 4, 3)], 2).square().sum(),
        Layout((300, 75, 9, 1), 0),
    ),
    'misaligned': (lambda y: torch.cat([y.new_zeros(1), y.flatten()]).square().sum(), Layout((288, 72, 9, 1), 1)),
    'overlapping': (Overlapping.apply, Layout((1, 1, 1, 2), 0)),
}


def two(graph, make=Probed, target='network'):
    torch.manual_seed(0)
    reference = nn.ModuleDict({target: make()}).to(graph.device)
    return reference, copy.deepcopy(reference)


def step(model, x, loss):
    """Gradients of the parameters and of the input, and the layout in which the gradient of the output came."""
    x = x.detach().requires_grad_()
    model.zero_grad()
    y = model['network'](x)
    came = []
    y.register_hook(lambda grad: came.append(layout_of(grad)))
    loss(y).backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())], came


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def batches(graph, number=4, channels=4):
    return torch.randn(number, 2, channels, 8, 9, generator=torch.Generator().manual_seed(1)).to(graph.device)


@pytest.mark.parametrize('name', LOSSES)
def test_a_gradient_is_read_in_the_layout_in_which_it_comes(graph, name):
    loss, layout = LOSSES[name]
    reference, candidate = two(graph)
    region = graph.capture(candidate)
    for x in batches(graph):
        (expected, came), (found, _) = (step(model, x, loss) for model in (reference, candidate))
        assert came == [layout]
        assert same(expected, found)
    graph.replays(region, 4)
    if graph.captures:
        guessed = name == 'as the output'
        assert region.routes.eager_backwards == ({} if guessed else {AS_RECORDED: 1})
        assert region.routes.retired == ({} if guessed else {RELEARNED: 1})
        assert region.routes.captures == (1 if guessed else 2)
        assert region.routes.problems() == []
        assert [layout_of(buffer) for buffer in region._pool.recordings[0].incoming.buffers] == [layout]


@pytest.mark.parametrize('name', [name for name in LOSSES if name != 'as the output'])
def test_control_a_gradient_that_is_copied_into_the_layout_of_the_output_is_read_as_another(captured, name):
    reference, candidate = two(captured)
    captured.capture(candidate, parts={'recording': Unchecked})
    x = batches(captured)[0]
    assert not same(*(step(model, x, LOSSES[name][0])[0] for model in (reference, candidate)))


def run(graph, kit, *, make, **policy):
    """Two trainings of a detector in channels last; their first difference, and the region."""
    detector = make().to(memory_format=torch.channels_last)
    reference, candidate = kit.pair(graph, detector)
    parts, accumulate, dtype = (policy.pop(key, None) for key in ('parts', 'accumulate', 'dtype'))
    region = graph.capture(candidate, parts=parts, **policy)
    trainings = (kit.Training(model, accumulate=accumulate or 1, dtype=dtype) for model in (reference, candidate))
    return kit.difference(*(training.run(kit.images(6)) for training in trainings)), region


@pytest.mark.parametrize('dtype', [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(('accumulate', 'gradients'), [(1, 'clone'), (3, 'clone'), (3, 'adopt')])
def test_a_network_in_channels_last_under_a_loss_that_is_not_equals_eager(graph, kit, accumulate, gradients, dtype):
    """With dropout and BatchNorm: the backward that runs eager draws nothing and moves no statistics."""
    options = {'accumulate': accumulate, 'gradients': gradients, 'dtype': dtype}
    found, region = run(graph, kit, make=lambda: kit.Detector(dropout=0.3), **options)
    assert found is None, str(found)
    graph.replays(region, 6)


@pytest.mark.parametrize('captured', ['tape'], indirect=True)  # what the kernels of a card do is theirs
def test_control_without_the_check_its_biases_have_gradients_of_another_order(captured, kit):
    found, _ = run(captured, kit, make=kit.Detector, parts={'recording': Unchecked})
    assert found is not None
    assert found.step == 0
    assert found.key.startswith('grad.network.head.')
    assert found.key.endswith('.bias')


def follow(graph, names):
    """One step per name of a loss, each equal to eager; the region."""
    reference, candidate = two(graph)
    region = graph.capture(candidate)
    for name, x in zip(names, batches(graph, len(names)), strict=True):
        assert same(*(step(model, x, LOSSES[name][0])[0] for model in (reference, candidate)))
    graph.replays(region, len(names))
    return region


def test_an_odd_gradient_in_mid_run_runs_its_backward_eager_and_is_not_recorded(graph):
    region = follow(graph, ['as the output', 'as the output', 'expanded', 'as the output', 'channels last'])
    if graph.captures:
        assert region.routes.captures == 1
        assert region.routes.eager_backwards == {AS_RECORDED: 2}
        assert f'network  backward      2  eager: {AS_RECORDED}' in Report([region.routes]).table()


def test_a_layout_that_comes_twice_in_a_row_is_recorded(graph):
    region = follow(graph, ['as the output', 'expanded', 'expanded', 'expanded', 'expanded'])
    if graph.captures:
        assert region.routes.captures == 2
        assert region.routes.eager_backwards == {AS_RECORDED: 2}


def test_layouts_that_come_and_go_do_not_spend_the_run_on_capturing(graph):
    region = follow(graph, [name for _ in range(6) for name in ('as the output',) * 2 + ('transposed',) * 2])
    if graph.captures:
        assert region.routes.captures == 1 + MAX_LEARNED


class Shared(nn.Module):
    """Two outputs, one of which the other is made from, and a parameter whose gradient is what autograd saved."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.scale = nn.Parameter(torch.rand(2, 4, 8, 9))

    def forward(self, x):
        y = Probe.apply(self.conv(x))
        return y, Saved.apply(y, self.scale)


class Saved(torch.autograd.Function):
    """``x * y`` for a gradient of ones: its own are the saved tensors."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return y, x


@pytest.mark.parametrize('read', [(1,), (0, 1)])
@pytest.mark.parametrize('expanded', [(0, 1, 2, 3), (2,)])
def test_gradients_of_an_eager_backward_own_their_memory_and_follow_the_outputs_that_were_read(graph, read, expanded):
    results = []
    reference, candidate = two(graph, Shared)
    region = graph.capture(candidate)
    for model in (reference, candidate):
        kept = []
        for i, x in enumerate(batches(graph)):
            x = x.clone().requires_grad_()
            outputs = model['network'](x)
            ones = torch.ones(2, 4, 8, 9, device=graph.device)
            loss = sum((outputs[j] if i in expanded else outputs[j] * ones).sum() for j in read)
            kept += torch.autograd.grad(loss, [x, *model.parameters()])
        results.append(kept)
    graph.replays(region, 4)
    if graph.captures:
        assert region.routes.eager_backwards == {AS_RECORDED: 1}
    assert same(*results)


def test_what_gave_its_activations_up_for_another_recording_refuses_an_odd_gradient_by_name(captured):
    reference, candidate = two(captured)
    captured.capture(candidate, on_new_signature='capture')
    x = batches(captured)[0]
    for batch in (x, x[:1], x):
        assert same(*(step(model, batch, LOSSES['as the output'][0])[0] for model in (reference, candidate)))
    with pytest.raises(BackwardError, match=r"with other strides .*; .* on_new_signature='eager'"):
        step(candidate, x, LOSSES['expanded'][0])


def test_what_no_gradient_has_fitted_yet_keeps_its_activations(graph):
    reference, candidate = two(graph)
    graph.capture(candidate, on_new_signature='capture')
    x = batches(graph)[0]
    for batch in (x, x[:1]):
        candidate['network'](batch.detach().requires_grad_())
    for batch in (x, x[:1], x, x[:1]):
        assert same(*(step(model, batch, LOSSES['expanded'][0])[0] for model in (reference, candidate)))


class Around(nn.Module):
    """Probes before and after the target: they see what leaves it, and make what it sees."""

    def __init__(self, target, before):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4, 1, 1) + 0.5)
        self.network, self.before = target, before

    def forward(self, x):
        y = self.network(self.before(Probe.apply(x * self.scale)))
        return sum(Probe.apply(part).square().sum() for part in (y if isinstance(y, tuple) else (y,)))


class Joining(nn.Module):
    """Its gradient with respect to the input has holes."""

    def forward(self, x):
        return torch.cat([x.flatten(2), x.new_ones(2, x.shape[1], 3)], 2).square()


class Summing(nn.Module):
    """Its gradient with respect to the input is expanded."""

    def forward(self, x):
        return x.sum((2, 3))


class Shifting(nn.Module):
    """Its gradient with respect to the input is not aligned, its output neither."""

    def forward(self, x):
        return torch.cat([x.new_zeros(1), x.flatten()]).square()[2:]


class Parting(nn.Module):
    """Its outputs have holes, and one is expanded."""

    def forward(self, x):
        x = Probe.apply(x)
        return *x.split(2, 1), x[:, :1].sum((2, 3), keepdim=True).expand(-1, 5, 6, 7)


BEFORE = {
    'nothing': lambda x: x,
    'a slice': lambda x: x[:, :, 1:, :7],
    'an expansion': lambda x: x[:, :, :1].expand(-1, -1, 5, -1),
}


def around(graph, make, before):
    torch.manual_seed(0)
    reference = Around(make(), BEFORE[before]).to(graph.device)
    return reference, copy.deepcopy(reference)


def equal_around(graph, models):
    for x in batches(graph, 3):
        for model in models:
            model.zero_grad()
            model(x).backward()
        if not same(*([p.grad for p in model.parameters()] for model in models)):
            return False
    return True


@pytest.mark.parametrize('before', ['nothing', 'a slice', 'an expansion'])
@pytest.mark.parametrize('make', [Joining, Summing, Shifting, Parting])
def test_inputs_outputs_and_gradients_of_inputs_keep_their_layouts(graph, make, before):
    models = around(graph, make, before)
    region = graph.capture(models[1])
    assert equal_around(graph, models)
    graph.replays(region, 3)


@pytest.mark.parametrize('make', [Joining, Summing, Shifting])
def test_control_gradients_of_inputs_that_are_packed_dense_are_read_as_others(captured, make, monkeypatch):
    monkeypatch.setattr(gradients_module, 'is_plain', lambda _: True)
    models = around(captured, make, 'nothing')
    captured.capture(models[1])
    assert not equal_around(captured, models)


@pytest.mark.parametrize('before', ['a slice', 'an expansion'])
def test_control_inputs_that_are_copied_dense_are_read_as_others(captured, before, monkeypatch):
    monkeypatch.setattr(signature_module, 'mirror', lambda tensor: tensor.contiguous().clone())
    models = around(captured, Parting, before)
    captured.capture(models[1])
    assert not equal_around(captured, models)


def test_control_outputs_that_are_cloned_are_read_as_others(captured, monkeypatch):
    monkeypatch.setattr(recording_module, 'mirror', torch.clone)
    models = around(captured, Parting, 'nothing')
    captured.capture(models[1])
    assert not equal_around(captured, models)


def test_an_input_that_begins_elsewhere_in_a_vector_has_a_signature_of_its_own(captured):
    reference, candidate = two(captured)
    region = captured.capture(candidate, on_new_signature='capture')
    x = batches(captured)[0]
    memory = torch.cat([x.new_zeros(1), x.flatten()])
    for batch in (x, memory[1:].view_as(x), x):
        assert same(*(step(model, batch, LOSSES['as the output'][0])[0] for model in (reference, candidate)))
    assert region.routes.captures == 2


class Criterion(nn.Module):
    """A loss over joined outputs: their gradients come with holes, in eager and from the recorded loss."""

    def forward(self, outputs):
        joined = torch.cat([output.flatten(2) for output in outputs], 2)
        return {'loss': joined.square().mean(), 'count': joined.new_ones(())}


class WithCriterion(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network, self.criterion = network, Criterion()

    def forward(self, images, read):
        outputs = self.network(images)
        return self.criterion([Probe.apply(outputs[i]) for i in read])['loss']


@pytest.mark.parametrize('regions', [('network',), ('criterion',), ('network', 'criterion')])
def test_a_network_under_a_recorded_loss_sees_the_layouts_of_eager(graph, kit, regions):
    model = WithCriterion(kit.Network()).to(memory_format=torch.channels_last)
    reference, candidate = kit.pair(graph, model)
    captured = []
    for target in regions if graph.captures else ():
        region = LossRegion() if target == 'criterion' else ModuleRegion(target)
        region.activate(candidate, policy=Policy(), parts=Parts(memory=lambda _: graph.memory()))
        graph.regions.append(region)
        captured.append(region)
    images = kit.images(4)
    found = kit.difference(*(kit.Training(model).run(images) for model in (reference, candidate)))
    assert found is None, str(found)
    for region in captured:
        graph.replays(region, 4)
        if isinstance(region, LossRegion):
            assert not region.routes.eager_backwards  # the gradient of a scalar has one layout


def test_control_a_recorded_loss_that_packs_its_gradients_dense_changes_what_the_network_sees(
    captured, kit, monkeypatch
):
    monkeypatch.setattr(gradients_module, 'is_plain', lambda _: True)
    reference, candidate = kit.pair(captured, WithCriterion(kit.Network()).to(memory_format=torch.channels_last))
    region = LossRegion()
    region.activate(candidate, policy=Policy(), parts=Parts(memory=lambda _: captured.memory()))
    captured.regions.append(region)
    images = kit.images(1)
    assert kit.difference(*(kit.Training(model).run(images) for model in (reference, candidate))) is not None


class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(5, 1, 1))

    def forward(self, x):
        return x + self.bias


def test_compiled_code_reads_every_gradient_in_one_layout_so_that_its_recording_asks_for_none():
    torch.manual_seed(0)
    plain = Biased()
    compiled = torch.compile(plain, backend='aot_eager', fullgraph=True)
    x, grad = torch.randn(4, 5, 30, 30), torch.randn(4, 5, 30, 30)
    layouts = (grad, grad.contiguous(memory_format=torch.channels_last), grad.mT.contiguous().mT)

    def biases(module):
        return [torch.autograd.grad(module(x), plain.bias, layout)[0] for layout in layouts]

    first, *others = biases(compiled)
    assert all(torch.equal(first, other) for other in others)
    first, *others = biases(plain)
    assert not all(torch.equal(first, other) for other in others)  # eager does not


def test_a_copy_has_the_layout_of_its_source_and_memory_of_its_own():
    memory = torch.arange(60.0)
    for tensor in (memory[3:27].view(2, 3, 4), memory[5:6].expand(2, 3), memory.as_strided((4, 3), (2, 1), 1)):
        copied = mirror(tensor)
        assert torch.equal(copied, tensor)
        assert layout_of(copied) == layout_of(tensor)
        assert copied.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr()
