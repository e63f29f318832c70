import copy
import pickle

import pytest
import torch
from torch import nn

from lucid.models.freezing import freeze, frozen_names
from lucid.registry import MODELS

PARTS = ('backbone.to_p3', 'neck.top_t4')


def detector(frozen=PARTS):
    torch.manual_seed(0)
    return MODELS.build({'type': 'YOLODetector', 'num_classes': 3, 'frozen': frozen})


def is_frozen(name):
    return any(name.startswith(f'network.{part}.') for part in PARTS)


@pytest.fixture(scope='module')
def model():
    return detector()


def test_parameters_of_the_parts_need_no_gradient_and_others_do(model):
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert flags == {name: not is_frozen(name) for name in flags}
    assert set(flags.values()) == {True, False}


def test_the_parts_stay_in_evaluation_mode_whoever_sets_the_mode(model):
    wrapper = nn.Sequential(model)  # as a distributed wrapper does
    for set_mode in (
        lambda: model.train(),
        lambda: model.eval().train(True),
        lambda: wrapper.eval() and wrapper.train(),
    ):
        set_mode()
        modes = {name: module.training for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
        assert modes == {name: not is_frozen(name) for name in modes}
    model.eval()
    assert not any(module.training for module in model.modules())


def test_nothing_of_them_changes_in_a_forward_in_training_mode(model):
    model.train()
    before = copy.deepcopy(model.state_dict())
    outputs = model(torch.rand(2, 3, 64, 64))
    sum(output.square().mean() for output in outputs).backward()
    after = model.state_dict()
    same = {name: torch.equal(before[name], after[name]) for name in before if 'running_mean' in name}
    assert same == {name: is_frozen(name) for name in same}
    assert {name for name, p in model.named_parameters() if p.grad is None} == {
        name for name, _ in model.named_parameters() if is_frozen(name)
    }


def test_the_names_of_what_stays_are_those_of_the_state(model):
    assert model.frozen_state == {name for name in model.state_dict() if is_frozen(name)}
    assert {name.rsplit('.')[-1] for name in model.frozen_state} >= {'weight', 'running_var', 'num_batches_tracked'}
    assert frozen_names(model.network, ()) == frozenset()


@pytest.mark.parametrize('copied', [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_frozen_too(model, copied):
    twin = copied(model).train()
    assert not twin.network.backbone.to_p3.training
    assert twin.network.backbone.to_p5.training
    assert not any(parameter.requires_grad for parameter in twin.network.backbone.to_p3.parameters())


def test_by_default_everything_trains():
    model = detector(()).train()
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(module.training for module in model.modules())
    assert model.frozen_state == frozenset()


@pytest.mark.parametrize(
    ('paths', 'message'),
    [
        (
            ['backbone.to_p6'],
            r"'backbone\.to_p6'.*the nearest is 'backbone\.to_p\d', and its parts are backbone, neck, head",
        ),
        (['bakcbone'], "the nearest is 'backbone'"),
        ([''], "names '', and the network has no such module"),
        (['network.backbone'], "the nearest is 'backbone"),
        (['backbone', 'neck', 'head'], 'leaves nothing to train; leave a part out'),
    ],
)
def test_a_path_that_is_not_there_is_an_error_with_the_nearest(paths, message):
    with pytest.raises(ValueError, match=message):
        detector(paths)


def test_any_module_can_be_frozen():
    network = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    freeze(network, ['1'])
    assert [parameter.requires_grad for parameter in network.parameters()] == [True, True, False, False]
