"""Compiled modules: the same function in eager and replayed calls, and errors that name the remedy."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from lucid.capture import (
    BackwardError,
    CaptureError,
    CompiledModules,
    ModuleRegion,
    Parts,
    Policy,
    StepRegion,
    TapeMemory,
    TargetError,
    compiling,
    first_difference,
    training_values,
)
from lucid.capture.compiling import SLOT
from lucid.engine.optim_wrappers import OptimWrapper
from lucid.engine.optimizers import SGD


@pytest.fixture
def counted(monkeypatch):
    """Compiles with a backend that counts the runs of its graphs, on the CPU in no time."""
    runs = []
    compile_with = torch.compile

    def backend(graph, inputs):
        def run(*args):
            runs.append(len(graph.graph.nodes))
            return graph(*args)

        return run

    monkeypatch.setattr(compiling.torch, 'compile', lambda f, **options: compile_with(f, backend=backend, **options))
    torch._dynamo.reset()
    yield runs
    torch._dynamo.reset()


def test_training_calls_are_compiled_and_others_are_not(counted):
    model = nn.ModuleDict({'net': nn.Sequential(nn.Linear(3, 3), nn.ReLU())})
    x = torch.randn(2, 3)
    expected = model['net'](x)
    modules = CompiledModules(model, ['net'])
    assert torch.equal(model['net'](x), expected)
    assert len(counted) == 1
    with torch.no_grad():
        model['net'](x)
    model['net'].eval()(x)
    assert len(counted) == 1
    assert SLOT not in vars(copy.deepcopy(model)['net'])
    modules.release()
    model['net'].train()(x)
    assert len(counted) == 1
    assert SLOT not in vars(model['net'])


def test_what_is_compiled_or_captured_already_is_refused(counted):
    model = nn.ModuleDict({'net': nn.Linear(3, 3)})
    model['net'].compile()
    with pytest.raises(TargetError, match='net is compiled'):
        CompiledModules(model, ['net'])


def test_a_graph_break_is_an_error_with_its_remedy_and_not_a_slower_run(counted):
    class Breaks(nn.Module):
        def forward(self, x):
            torch._dynamo.graph_break()
            return x * 2

    model = nn.ModuleDict({'net': Breaks()})
    modules = CompiledModules(model, ['net'])
    with pytest.raises(CaptureError, match=r'(?s)compiling net failed: .*; take compile=True from the region'):
        model['net'](torch.randn(2, requires_grad=True))
    modules.release()


def test_an_error_of_the_module_itself_stays_its_own(counted):
    model = nn.ModuleDict({'net': nn.Linear(3, 3)})
    modules = CompiledModules(model, ['net'])
    with pytest.raises(Exception, match=r'shape|size|mat1') as raised:
        model['net'](torch.randn(2, 5))
    assert raised.value is not None
    modules.release()


def test_eager_calls_of_a_compiled_region_are_compiled_too(counted, kit):
    """A partial batch must not be computed by other kernels than the full ones."""
    model = nn.ModuleDict({'net': nn.Sequential(nn.Linear(3, 3), nn.ReLU())})
    region = ModuleRegion('net', compile=True)
    region.activate(model, parts=Parts(memory=lambda _: None))
    model['net'](torch.randn(2, 3))
    assert len(counted) == 1
    region.release()
    assert SLOT not in vars(model['net'])


def test_a_compiled_recording_lets_no_parameter_change_between_forward_and_backward(counted):
    """Compiled code may keep for its backward what plain code does not."""
    for compiled, refused in ((False, False), (True, True)):
        model = nn.ModuleDict({'net': nn.Sequential(nn.Linear(3, 3))})
        region = ModuleRegion('net', compile=compiled)
        region.activate(model, parts=Parts(memory=lambda _: TapeMemory()))
        loss = model['net'](torch.randn(2, 3)).square().mean()
        with torch.no_grad():
            model['net'][0].bias.mul_(0.5)
        with pytest.raises(BackwardError, match='written in place') if refused else nullcontext():
            loss.backward()
        region.release()


class Stepped(nn.Module):
    """A model that says what can be compiled."""

    branch_free = ('network',)

    def __init__(self, detector):
        super().__init__()
        self.network = detector.network

    def compute(self, data, optim_wrapper):
        with optim_wrapper.optim_context(self):
            loss = sum(output.float().square().mean() for output in self.network(data['inputs']))
        return loss, {'loss': loss.detach()}

    def step(self, data, optim_wrapper):
        loss, values = self.compute(data, optim_wrapper)
        optim_wrapper.update_params(loss)
        return values


def test_a_step_region_compiles_what_the_model_names_and_leaves_it_plain(counted, kit):
    model = Stepped(kit.Detector())
    region = StepRegion(compile=True)
    region.activate(model, parts=Parts(memory=lambda _: None))  # no card: compiled, and eager
    assert SLOT in vars(model.network)
    model.step({'inputs': kit.images(1)[0]}, OptimWrapper(SGD(model.parameters(), lr=0.01)))
    assert counted
    region.release()
    assert SLOT not in vars(model.network)
    assert 'step' not in vars(model)
    with pytest.raises(TargetError, match='Plain does not say what can be compiled'):
        StepRegion(compile=True).activate(Plain(kit.Detector()))


class Plain(Stepped):
    branch_free = ()


class Twofold(Stepped):
    branch_free = ('network', 'network.head')


def test_a_step_region_compiles_those_that_it_names_alone(counted, kit):
    model = Twofold(kit.Detector())
    region = StepRegion(compile=['network.head'])
    assert region.compiled_paths(model) == ('network.head',)
    region.activate(model, parts=Parts(memory=lambda _: None))
    assert SLOT in vars(model.network.head)
    assert SLOT not in vars(model.network)
    model.step({'inputs': kit.images(1)[0]}, OptimWrapper(SGD(model.parameters(), lr=0.01)))
    assert counted
    region.release()
    assert SLOT not in vars(model.network.head)
    assert StepRegion(compile=True).compiled_paths(model) == Twofold.branch_free
    assert StepRegion(compile=[]).compiled_paths(model) == ()
    assert StepRegion(compile='network.head').compiled_paths(model) == ('network.head',)  # not its letters
    with pytest.raises(TargetError, match=r"compile names 'network.neck', which Twofold .*; choose among 'network', "):
        StepRegion(compile=['network.neck']).activate(model)


@pytest.mark.cuda
@pytest.mark.parametrize('accumulate', [1, 2])
def test_a_captured_and_compiled_step_equals_an_eager_and_compiled_one(on_cuda, kit, accumulate):
    reference, candidate = kit.pair(on_cuda, Stepped(kit.Detector()))
    wrappers = [
        OptimWrapper(SGD(m.parameters(), lr=0.01, momentum=0.9), accumulative_counts=accumulate)
        for m in (reference, candidate)
    ]
    compiled = CompiledModules(reference, ['network'])
    region = StepRegion(compile=True)
    region.activate(candidate, parts=Parts(memory=lambda _: on_cuda.memory()))
    on_cuda.regions.append(region)
    for images in kit.images(6):
        for model, wrapper in zip((reference, candidate), wrappers, strict=True):
            model.step({'inputs': images.cuda()}, wrapper)
        values = [training_values(m, w.optimizer) for m, w in zip((reference, candidate), wrappers, strict=True)]
        found = first_difference(*values)
        assert found is None, str(found)
    compiled.release()
    on_cuda.replays(region, 6)


@pytest.mark.cuda
@pytest.mark.parametrize('accumulate', [1, 2])
def test_captured_and_compiled_equals_eager_and_compiled(on_cuda, kit, accumulate):
    reference, candidate = kit.pair(on_cuda)
    batches = kit.images(6)
    compiled = CompiledModules(reference, ['network'])
    expected = kit.Training(reference, accumulate=accumulate).run(batches)
    compiled.release()
    region = ModuleRegion('network', compile=True)
    region.activate(candidate, policy=Policy(), parts=Parts(memory=lambda _: on_cuda.memory()))
    on_cuda.regions.append(region)
    found = kit.difference(expected, kit.Training(candidate, accumulate=accumulate).run(batches))
    assert found is None, str(found)
    on_cuda.replays(region, 6)
