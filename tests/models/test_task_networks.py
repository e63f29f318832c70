"""The networks of the three tasks beyond detection: what is counted, shared, deployed and captured."""

import copy
import pickle

import pytest
import torch
from torch import nn

from lucid.models.analysis import analyze_network
from lucid.models.detectors import YOLODetector

TASKS = {'segment': 'SegmentHead', 'oriented': 'OrientedHead', 'keypoint': 'KeypointHead'}


def make_network(task, scale='n', *, num_classes=4, num_keypoints=5, seed=0, **options):
    torch.manual_seed(seed)
    return YOLODetector(
        scale=scale,
        num_classes=num_classes,
        num_keypoints=num_keypoints if task == 'keypoint' else None,
        head={'type': TASKS.get(task, 'DetectHead')},
        loss={'type': nn.Identity},
        **options,
    ).network


# task, classes, side: per scale all, deployed, GFLOPs; convolution weights, norms, state entries.
FIGURES = {
    ('segment', 80, 640): {
        'n': (2_717_284, 2_559_394, 8.9974, 165, 143, 902),
        's': (10_665_440, 10_121_192, 34.9670, 165, 143, 902),
        'm': (23_374_848, 22_460_680, 122.7223, 165, 143, 902),
        'l': (27_606_528, 26_692_360, 144.8843, 193, 171, 1070),
        'x': (61_899_656, 59_932_636, 324.5766, 193, 171, 1070),
    },
    ('oriented', 15, 1024): {
        'n': (2_563_976, 2_397_964, 14.6771, 157, 139, 870),
        's': (10_120_782, 9_507_255, 55.9375, 157, 139, 870),
        'm': (21_009_774, 19_972_311, 178.3644, 157, 139, 870),
        'l': (25_241_454, 24_203_991, 235.5899, 185, 167, 1038),
        'x': (56_652_248, 54_367_132, 526.5584, 185, 167, 1038),
    },
    ('keypoint', 80, 640): {
        'n': (2_548_204, 2_390_078, 5.5508, 157, 139, 870),
        's': (9_983_184, 9_438_456, 21.3892, 157, 139, 870),
        'm': (20_752_880, 19_843_864, 68.9285, 157, 139, 870),
        'l': (24_984_560, 24_075_544, 91.0905, 185, 167, 1038),
        'x': (56_000_752, 54_041_384, 203.8568, 185, 167, 1038),
    },
    ('keypoint', 1, 640): {
        'n': (2_524_346, None, 5.5135, 157, 139, 870),
        's': (9_935_784, None, 21.3145, 157, 139, 870),
        'm': (20_685_256, None, 68.7888, 157, 139, 870),
        'l': (24_916_936, None, 90.9508, 185, 167, 1038),
        'x': (55_899_158, None, 203.6465, 185, 167, 1038),
    },
}


@pytest.mark.parametrize(('protocol', 'scale'), [(p, scale) for p, rows in FIGURES.items() for scale in rows])
def test_the_published_figures(protocol, scale):
    task, num_classes, side = protocol
    with torch.device('meta'):
        network = make_network(task, scale, num_classes=num_classes, num_keypoints=17)
    cost = analyze_network(network, (side, side))
    params, deploy_params, gflops, *counts = FIGURES[protocol][scale]
    assert cost.params == params
    assert deploy_params in (None, cost.deploy_params)
    assert cost.gflops == pytest.approx(gflops, abs=1e-4)
    assert counts == [
        sum(parameter.ndim >= 2 for parameter in network.parameters()),
        sum(isinstance(module, nn.BatchNorm2d) for module in network.modules()),
        len(network.state_dict()),
    ]
    # Layer by layer too, the semantic map of training included.
    assert sum(layer.params for layer in cost.layers) == params


@pytest.mark.parametrize('task', TASKS)
def test_the_same_seed_draws_what_a_detection_network_draws(task):
    plain, network = make_network('detect').state_dict(), make_network(task).state_dict()
    assert plain.keys() < network.keys()
    assert all(torch.equal(value, network[name]) for name, value in plain.items())
    # Control: another seed draws others.
    other = make_network(task, seed=1).state_dict()
    assert not all(torch.equal(value, other[name]) for name, value in plain.items())


@pytest.mark.parametrize('task', TASKS)
def test_every_parameter_gets_a_gradient(task, device):
    network = make_network(task).to(device)
    outputs = network(torch.rand(2, 3, 64, 96, device=device))
    assert all(output.isfinite().all() for output in outputs)
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    without = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == []


@pytest.mark.parametrize('task', TASKS)
def test_it_runs_under_bf16_autocast(task, device):
    network = make_network(task).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
        outputs = network(torch.rand(2, 3, 64, 64, device=device).contiguous(memory_format=torch.channels_last))
    assert {output.dtype for output in outputs} == {torch.bfloat16}
    sum(output.float().sum() for output in outputs).backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


@pytest.mark.parametrize('task', TASKS)
def test_channels_last_and_contiguous_agree(task, device):
    images = torch.rand(2, 3, 64, 96, device=device, dtype=torch.float64)  # training norms over few values amplify
    plain = make_network(task, channels_last=False).to(device).double()
    last = make_network(task, channels_last=True).to(device).double()
    images_last = images.contiguous(memory_format=torch.channels_last)
    for a, b in zip(plain(images), last(images_last), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_prototypes_keep_the_memory_format_of_the_images(device):
    """In float32: for float64 cuDNN has no kernels of that format."""
    network = make_network('segment', channels_last=True).to(device)
    images = torch.rand(2, 3, 64, 96, device=device).contiguous(memory_format=torch.channels_last)
    assert network(images).prototypes_BKHW.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize('task', TASKS)
def test_shapes_come_from_the_input_and_nothing_is_read_on_the_host(task):
    """The meta device has shapes but no values, and refuses to be read."""
    network = make_network(task).to('meta')
    outputs = network(torch.rand(2, 3, 64, 96, device='meta'))
    sum(output.sum() for output in outputs).backward()
    network.eval()(torch.rand(2, 3, 64, 96, device='meta'))


EXTRAS = {
    'segment': ('o2o_coefficients_BAK', 'prototypes_BKHW'),
    'oriented': ('o2o_angles_BA1',),
    'keypoint': ('o2o_points_BAJ2',),
}


@pytest.mark.parametrize('task', TASKS)
def test_the_deployed_view_owns_no_tensor_and_equals_the_one_to_one_branch(task):
    network = make_network(task)
    view = network.deployed()
    ours = {t.data_ptr() for t in [*network.parameters(), *network.buffers()]}
    assert all(t.data_ptr() in ours for t in [*view.parameters(), *view.buffers()])
    assert not any('one_to_many' in name or 'o2m' in name or 'semantic' in name for name in view.state_dict())

    images = torch.rand(1, 3, 64, 96)
    with torch.no_grad():  # training in place changes the view too
        network(images)
        for parameter in network.parameters():
            parameter.mul_(1.1)
    network.eval()
    full, (logits, boxes, *extras) = network(images), view.eval()(images)
    assert torch.equal(logits, full.o2o_logits_BAC)
    assert torch.equal(boxes, full.o2o_boxes_BA4)
    for extra, name in zip(extras, EXTRAS[task], strict=True):
        assert torch.equal(extra, getattr(full, name))
        if name.startswith('o2o'):
            assert not torch.equal(extra, getattr(full, name.replace('o2o', 'o2m')))


@pytest.mark.parametrize('task', TASKS)
def test_state_dict_and_copies_carry_everything(task):
    network, other = make_network(task), make_network(task, seed=1)
    images = torch.rand(1, 3, 64, 64)
    network(images)  # moves the statistics of the norms
    expected = [output for output in network.eval()(images) if output is not None]
    other.load_state_dict(network.state_dict())
    for twin in (other.eval(), copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        found = [output for output in twin(images) if output is not None]
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
