"""Cases 8 and 12: what a recording baked in is watched, and a change is answered as the policy says."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lucid.capture import GuardError, Reason, TargetError
from lucid.capture.guards import Guards


def assign(model):
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


def swap_head(model):
    torch.manual_seed(3)
    device = next(model.parameters()).device
    model.network.head = type(model.network.head)((8, 16)).to(device)


def new_data(model):
    model.network.stem[0][0].weight.data = model.network.stem[0][0].weight.data.clone() * 0.5


def to_double_and_back(model):
    model.double().float()


def freeze(model):
    model.network.stem[0][0].weight.requires_grad_(False)


def unfreeze(model):
    model.network.level2[0].weight.requires_grad_(True)


def freeze_norm(model):
    model.network.level1[1].eval()


def change_gain(model):
    model.network.head.gain = 2.0


def change_momentum(model):
    model.network.stem[0][1].momentum = 0.5


def add_parameter(model):
    model.network.register_parameter('extra', nn.Parameter(torch.zeros(1, device=next(model.parameters()).device)))


def swap_counter(model):
    norm = model.network.stem[0][1]
    norm.num_batches_tracked = norm.num_batches_tracked.clone()  # one element, and equal


def lose_counter(model):
    model.network.stem[1][1].num_batches_tracked = None


def swap_statistics(model):
    norm = model.network.level1[1]
    norm.running_mean = norm.running_mean.clone()


def new_statistics_data(model):
    norm = model.network.level1[1]
    norm.running_var.data = norm.running_var.clone()


CHANGES = [
    assign,
    swap_head,
    new_data,
    to_double_and_back,
    freeze,
    unfreeze,
    freeze_norm,
    change_gain,
    change_momentum,
    add_parameter,
    swap_counter,
    lose_counter,
    swap_statistics,
    new_statistics_data,
]


class Blind(Guards):
    def changed(self):
        return None

    def hooked(self):
        return None


def run_with_change(kit, model, change):
    model.network.level2[0].weight.requires_grad_(False)
    training = kit.Training(model, accumulate=2)
    values = training.run(kit.images(4))
    change(model)
    training = kit.Training(model, accumulate=2)  # a new optimizer: the parameters may be new objects
    return values + training.run(kit.images(4, seed=2))


@pytest.mark.parametrize('change', CHANGES)
def test_a_change_retires_the_recording_and_the_next_one_equals_eager(graph, kit, change):
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate)
    found = kit.difference(run_with_change(kit, reference, change), run_with_change(kit, candidate, change))
    assert found is None, str(found)
    graph.replays(region, 8)
    if graph.captures:
        assert region.routes.captures == 2
        assert sum(region.routes.retired.values()) == 1


UNFELT = (add_parameter, to_double_and_back, freeze, lose_counter)  # none of them changes a value that is compared


@pytest.mark.parametrize('change', [c for c in CHANGES if c not in UNFELT])
def test_control_without_guards_the_change_goes_unseen(captured, kit, change):
    reference, candidate = kit.pair(captured)
    captured.capture(candidate, parts={'guards': Blind})
    try:
        found = kit.difference(run_with_change(kit, reference, change), run_with_change(kit, candidate, change))
    except RuntimeError:
        return  # the stale autograd edges do not even fit the new parameters
    assert found is not None


@pytest.mark.parametrize('change', [assign, freeze_norm])
def test_on_change_eager_stays_eager_and_equal(captured, kit, change):
    reference, candidate = kit.pair(captured)
    region = captured.capture(candidate, on_change='eager')
    found = kit.difference(run_with_change(kit, reference, change), run_with_change(kit, candidate, change))
    assert found is None, str(found)
    captured.replays(region, 4)
    assert any('a guard failed' in problem for problem in region.routes.problems())


@pytest.mark.parametrize('change', CHANGES)
def test_on_change_raise_names_what_changed(captured, kit, change):
    _, candidate = kit.pair(captured)
    captured.capture(candidate, on_change='raise')
    with pytest.raises(
        GuardError, match=r"(changed|another object|was added) after capture; set on_change='recapture'"
    ):
        run_with_change(kit, candidate, change)


def test_plain_load_state_dict_keeps_the_recording_and_uses_the_new_weights(graph, kit):
    reference, candidate = kit.pair(graph)
    state = kit.Detector().to(graph.device).state_dict()
    region = graph.capture(candidate)

    def change(model):
        model.load_state_dict(state)

    found = kit.difference(run_with_change(kit, reference, change), run_with_change(kit, candidate, change))
    assert found is None, str(found)
    graph.replays(region, 8)
    if graph.captures:
        assert region.routes.captures == 1


def test_assigned_weights_with_adopted_gradients_still_equal_eager(graph, kit):
    """The log's test: `load_state_dict(assign=True)` inside a window."""
    reference, candidate = kit.pair(graph)
    region = graph.capture(candidate, gradients='adopt')

    def run(model):
        training = kit.Training(model, accumulate=2)
        values = training.run(kit.images(3))
        grads = [p.grad for p in model.parameters()]
        assign(model)
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter.grad = grad
        training.optimizer.param_groups[0]['params'] = list(model.parameters())
        loss = training.forward(kit.images(1, seed=4)[0].to(graph.device))
        loss.backward()
        values.append({n: p.grad.clone() for n, p in model.named_parameters()})
        return values

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 4)


@pytest.mark.parametrize('where', ['network', 'network.stem.0.0'])
def test_a_module_hook_runs_the_region_eager_until_it_is_removed(captured, kit, where):
    reference, candidate = kit.pair(captured)
    region = captured.capture(candidate)
    seen = []

    def run(model):
        training = kit.Training(model)
        values = training.run(kit.images(2))
        handle = model.get_submodule(where).register_forward_hook(lambda *_: seen.append(1))
        values += training.run(kit.images(2, seed=2))
        handle.remove()
        return values + training.run(kit.images(2, seed=3))

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    assert len(seen) == 4  # two calls each: the hook really ran
    captured.replays(region, 4)
    assert region.routes.captures == 1
    assert any(
        (where.removeprefix('network.') if '.' in where else 'the target') in p for p in region.routes.problems()
    )


def test_control_without_guards_a_hook_does_not_run(captured, kit):
    _, candidate = kit.pair(captured)
    captured.capture(candidate, parts={'guards': Blind})
    training, seen = kit.Training(candidate), []
    training.run(kit.images(1))
    candidate.network.stem.register_forward_hook(lambda *_: seen.append(1))
    training.run(kit.images(1))
    assert not seen


def test_a_hook_raises_where_the_policy_says_so(captured, kit):
    _, candidate = kit.pair(captured)
    captured.capture(candidate, on_change='raise')
    candidate.network.register_forward_hook(lambda *_: None)
    with pytest.raises(GuardError, match='forward_hooks on the target would not run in a replay'):
        kit.Training(candidate).run(kit.images(1))


def test_invalidate_retires_for_what_no_guard_sees(graph, kit):
    class Settings:
        gain = 1.0

    def build():
        model = kit.Detector()
        settings = Settings()
        head = model.network.head
        head.settings = settings
        plain = type(head).forward
        head.__class__ = type(
            'Head', (type(head),), {'forward': lambda s, x: tuple(o * s.settings.gain for o in plain(s, x))}
        )
        return model

    torch.manual_seed(0)
    reference = build().to(graph.device)
    torch.manual_seed(0)
    candidate = build().to(graph.device)
    region = graph.capture(candidate)

    def run(model):
        def change(model):
            model.network.head.settings.gain = 3.0
            if model is candidate:
                region.invalidate('the gain')

        return run_with_change(kit, model, change)

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    graph.replays(region, 8)
    if graph.captures:
        assert region.routes.retired == {'the gain': 1}


def test_a_guard_that_fails_after_every_capture_ends_in_eager_with_a_problem(captured, kit):
    reference, candidate = kit.pair(captured)
    region = captured.capture(candidate)

    def run(model):
        training, values = kit.Training(model), []
        for i, batch in enumerate(kit.images(6)):
            model.network.head.gain = 1.0 + i
            values.append(training.micro_step(batch))
        return values

    found = kit.difference(run(reference), run(candidate))
    assert found is None, str(found)
    assert region.routes.captures == 3
    assert (
        region.routes.eager[Reason.CHANGED, 'the attribute head.gain changed, 3 times in a row right after a capture']
        == 3
    )


def test_compile_on_the_target_is_refused_by_name(captured, kit):
    _, candidate = kit.pair(captured)
    candidate.network.compile()
    with pytest.raises(TargetError, match=r'compiled with module.compile\(\)'):
        captured.capture(candidate)


def test_a_compile_after_activation_shows_as_inactive_and_survives_the_release(captured, kit):
    _, candidate = kit.pair(captured)
    region = captured.capture(candidate)
    assert region.active
    candidate.network.compile()
    assert not region.active
    taken = candidate.network._compiled_call_impl
    region.release()
    assert candidate.network._compiled_call_impl is taken
    assert any('module.compile() took its calls' in problem for problem in region.routes.problems())


def test_an_unknown_target_names_the_nearest(captured, kit):
    _, candidate = kit.pair(captured)
    with pytest.raises(TargetError, match="no module 'netwrok'; the nearest is 'network'"):
        captured.capture(candidate, 'netwrok')


def test_the_slot_that_capture_uses_is_the_one_that_torch_calls():
    module = nn.Linear(2, 2)
    module._compiled_call_impl = lambda x: 'routed'
    assert module(torch.zeros(1, 2)) == 'routed'
    assert '_compiled_call_impl' not in module.state_dict()
    assert '_compiled_call_impl' not in module.__getstate__()
    del module._compiled_call_impl
    assert module(torch.zeros(1, 2)).shape == (1, 2)


class Gridded(nn.Module):
    """Keeps a tensor that is registered nowhere."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.grid = torch.ones(3)

    def forward(self, x):
        return (self.linear(x) + self.grid.to(x.device)).square().mean()


def regrid(module, device):
    module.grid = torch.arange(3.0).to(device)


def move_grid(module, device):
    module.grid.data = torch.arange(3.0).to(device)


@pytest.mark.parametrize(('change', 'named'), [(regrid, 'grid is another object'), (move_grid, 'the memory of grid')])
def test_a_tensor_in_a_plain_attribute_is_watched_too(graph, kit, change, named):
    reference, candidate = kit.pair(graph, nn.ModuleDict({'network': Gridded()}))
    for model in (reference, candidate):
        model['network'].grid = model['network'].grid.to(graph.device)
    region = graph.capture(candidate)
    x = torch.randn(2, 3, device=graph.device)
    for step in range(3):
        losses = [model['network'](x) for model in (reference, candidate)]
        assert torch.equal(*losses)
        for loss, model in zip(losses, (reference, candidate), strict=True):
            loss.backward()
            if step == 0:
                change(model['network'], graph.device)
    graph.replays(region, 3)
    if graph.captures:
        assert [named in reason for reason in region.routes.retired] == [True]


@pytest.mark.parametrize('register', [
    nn.modules.module.register_module_forward_hook,
    nn.modules.module.register_module_forward_pre_hook,
    nn.modules.module.register_module_full_backward_hook,
    nn.modules.module.register_module_full_backward_pre_hook,
])  # fmt: skip
def test_a_hook_on_all_modules_runs_the_region_eager_until_it_is_removed(captured, register):
    model = nn.ModuleDict({'network': nn.Sequential(nn.Linear(3, 3), nn.Tanh())}).to(captured.device)
    region, seen = captured.capture(model), []
    x = torch.randn(2, 3, device=captured.device)
    model['network'](x).square().mean().backward()
    handle = register(lambda *_: seen.append(1) and None)
    try:
        model['network'](x.clone().requires_grad_()).square().mean().backward()
    finally:
        handle.remove()
    assert len(seen) == 3  # of the target and its two parts
    model['network'](x).square().mean().backward()
    captured.replays(region, 2)
    assert region.routes.eager == {(Reason.HOOK, 'a global module hook'): 1}


class Switched(nn.Module):
    """Reads what Python code changes in many ways."""

    use_l1 = False

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.weights = [1.0, 2.0]
        self.helper = SimpleNamespace(top=2)

    def forward(self, x):
        y = self.linear(x) * self.weights[0]
        return y.abs().mean() if self.use_l1 else y.square().mean() * self.helper.top


@pytest.mark.parametrize(
    ('change', 'named'),
    [
        (lambda m: setattr(m, 'use_l1', True), 'the number of attributes of the target'),
        (lambda m: m.weights.__setitem__(0, 3.0), 'the attribute weights'),
        (lambda m: setattr(m, 'weights', (3.0, 2.0)), 'the attribute weights'),
        (lambda m: setattr(m.helper, 'top', 5), 'the attribute helper.top'),
    ],
)
def test_class_attributes_containers_and_helpers_that_change_are_found(graph, kit, change, named):
    reference, candidate = kit.pair(graph, nn.ModuleDict({'network': Switched()}))
    region = graph.capture(candidate)
    x = torch.randn(2, 3, device=graph.device)
    for step in range(3):
        losses = [model['network'](x) for model in (reference, candidate)]
        assert torch.equal(*losses)
        for loss, model in zip(losses, (reference, candidate), strict=True):
            loss.backward()
            if step == 0:
                change(model['network'])
    graph.replays(region, 3)
    if graph.captures:
        assert any(named in reason for reason in region.routes.retired)


class Equal(nn.Module):
    """Equals any other of its kind, as a dataclass of equal fields does."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weight]))  # one element: two of them have a truth value

    def forward(self, x):
        return (x * self.weight).square().mean()

    def __eq__(self, other):
        return isinstance(other, Equal)

    __hash__ = nn.Module.__hash__


class EqualParameter(nn.Parameter):
    def __eq__(self, other):
        return True

    __hash__ = nn.Parameter.__hash__


@pytest.mark.parametrize(
    ('change', 'named'),
    [
        (lambda m: setattr(m, '0', Equal(2.0).to(m[0].weight.device)), '0 is another object'),
        (lambda m: setattr(m[0], 'weight', nn.Parameter(m[0].weight.detach().clone())), '0.weight is another object'),
        (lambda m: setattr(m[0], 'weight', EqualParameter(m[0].weight.detach() * 2)), '0.weight is another object'),
    ],
)
def test_what_compares_equal_to_what_it_replaces_is_found(graph, kit, change, named):
    reference, candidate = kit.pair(graph, nn.ModuleDict({'network': nn.Sequential(Equal(1.0))}))
    region = graph.capture(candidate)
    x = torch.randn(2, 3, device=graph.device)
    for step in range(3):
        for model in (reference, candidate):
            if step == 1:
                change(model['network'])
            model.zero_grad()
        losses = [model['network'](x) for model in (reference, candidate)]
        for loss in losses:
            loss.backward()
        assert torch.equal(*losses)
        assert torch.equal(*(model['network'][0].weight.grad for model in (reference, candidate)))
    graph.replays(region, 3)
    if graph.captures:
        assert region.routes.retired == {named: 1}


def test_submodules_that_change_places_are_found(graph, kit):
    """A Sequential calls them in the order in which it holds them."""
    reference, candidate = kit.pair(graph, nn.ModuleDict({'network': nn.Sequential(nn.Linear(3, 3), nn.SiLU())}))
    region = graph.capture(candidate)
    x = torch.randn(2, 3, device=graph.device)
    for step in range(3):
        if step == 1:
            for model in (reference, candidate):
                modules = model['network']._modules
                modules['0'] = modules.pop('0')
        losses = [model['network'](x).square().mean() for model in (reference, candidate)]
        for loss in losses:
            loss.backward()
        assert torch.equal(*losses)
    graph.replays(region, 3)
    if graph.captures:
        assert region.routes.retired == {'the order of parameters, buffers or submodules changed': 1}


def test_an_attribute_that_is_gone_and_a_name_that_is_another_are_found(kit):
    for change, named in [
        (lambda m: m._buffers.update(extra=None), 'a parameter, buffer or submodule was added'),
        (lambda m: delattr(m.head, 'gain'), 'gain was removed'),
        (lambda m: m._modules.update(neck=m._modules.pop('level2')), 'level2 was removed'),
        (lambda m: delattr(m.stem[0][0], 'weight'), 'stem.0.0.weight was removed'),
    ]:
        network = kit.Network()
        guards = Guards(network)
        assert guards.changed() is None
        change(network)
        assert guards.changed() == named


def test_a_submodule_that_is_compiled_in_mid_run_is_found(kit):
    network = kit.Network()
    network.level1.compile()
    guards = Guards(network)
    assert guards.changed() is None  # compiled before: its route is part of the target
    network.level1._compiled_call_impl = lambda x: x
    assert guards.changed() == 'a submodule was compiled'
    guards = Guards(network)
    vars(network.level2)['_compiled_call_impl'] = network.level2.__dict__.pop('training')  # as many attributes
    network.level2.training = True
    assert guards.changed() is not None


def test_checking_walks_no_modules(monkeypatch):
    model = nn.Sequential(*[nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.SiLU()) for _ in range(140)])
    guards = Guards(model)
    for name in ('named_modules', 'modules', 'parameters', 'buffers'):
        monkeypatch.setattr(nn.Module, name, None)  # a walk would fail
    assert guards.changed() is None
    assert guards.hooked() is None
