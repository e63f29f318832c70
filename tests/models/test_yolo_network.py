import copy
import pickle

import pytest
import torch
from torch import nn

from lucid.models.detectors import YOLODetector


def make_network(scale='n', *, num_classes=4, channels_last=True, seed=0):
    torch.manual_seed(seed)
    detector = YOLODetector(
        scale=scale, num_classes=num_classes, channels_last=channels_last, loss={'type': nn.Identity}
    )
    return detector.network


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


COUNTS = {  # all, backbone, neck, head, deployed; convolution weights, norms, state entries, shapes of weights
    'n': (2_437_552, 1_284_496, 947_456, 205_600, 2_334_752, 127, 115, 714, 41),
    's': (9_609_632, 5_118_752, 3_774_976, 715_904, 9_251_680, 127, 115, 714, 41),
    'm': (20_132_032, 9_903_936, 9_030_912, 1_197_184, 19_533_440, 127, 115, 714, 30),
    'l': (24_363_712, 11_937_088, 11_229_440, 1_197_184, 23_765_120, 155, 143, 882, 27),
    'x': (54_672_216, 26_832_864, 25_249_152, 2_590_200, 53_377_116, 155, 143, 882, 27),
}


@pytest.mark.parametrize('scale', COUNTS)
def test_the_counts_of_the_published_description(scale):
    with torch.device('meta'):
        network = make_network(scale, num_classes=80)
    weights = [parameter for parameter in network.parameters() if parameter.ndim >= 2]
    assert (
        count(network),
        count(network.backbone),
        count(network.neck),
        count(network.head),
        count(network.deployed()),
        len(weights),
        sum(isinstance(module, nn.BatchNorm2d) for module in network.modules()),
        len(network.state_dict()),
        len({weight.shape for weight in weights}),
    ) == COUNTS[scale]


def test_an_input_that_is_not_square(device):
    network = make_network().to(device)
    outputs = network(torch.rand(2, 3, 64, 96, device=device))
    assert [tuple(output.shape) for output in outputs] == [(2, 126, 4), (2, 126, 4)] * 2
    assert all(output.isfinite().all() for output in outputs)


def test_every_parameter_gets_a_gradient(device):
    network = make_network().to(device)
    outputs = network(torch.rand(2, 3, 64, 96, device=device))
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    without = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == []


def test_it_runs_under_bf16_autocast(device):
    network = make_network().to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
        outputs = network(torch.rand(2, 3, 64, 64, device=device).contiguous(memory_format=torch.channels_last))
    assert outputs.o2o_logits_BAC.dtype == torch.bfloat16
    sum(output.float().sum() for output in outputs).backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


def test_channels_last_and_contiguous_agree(device):
    images = torch.rand(2, 3, 64, 96, device=device, dtype=torch.float64)  # training norms over few values amplify
    plain = make_network(channels_last=False).to(device).double()
    last = make_network(channels_last=True).to(device).double()
    weight = last.backbone.to_p3[0].conv.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert plain.backbone.to_p3[0].conv.weight.is_contiguous()
    for a, b in zip(plain(images), last(images.contiguous(memory_format=torch.channels_last)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_state_dict_and_copies_carry_everything():
    network, other = make_network(), make_network(seed=1)
    images = torch.rand(1, 3, 64, 64)
    network(images)  # moves the statistics of the norms
    network.eval()
    expected = network(images)
    other.load_state_dict(network.state_dict())
    for twin in (other.eval(), copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert all(torch.equal(a, b) for a, b in zip(expected, twin(images), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(expected, make_network(seed=1).eval()(images), strict=True))


def test_the_deployed_view_owns_no_tensor_and_equals_the_one_to_one_branch():
    network = make_network()
    view = network.deployed()
    ours = {t.data_ptr() for t in [*network.parameters(), *network.buffers()]}
    assert all(t.data_ptr() in ours for t in [*view.parameters(), *view.buffers()])
    assert not any('one_to_many' in name for name in view.state_dict())

    images = torch.rand(1, 3, 64, 96)
    with torch.no_grad():  # training in place changes the view too
        network(images)
        for parameter in network.parameters():
            parameter.mul_(1.1)
    network.eval()
    view.eval()
    full, (logits, boxes) = network(images), view(images)
    assert torch.equal(logits, full.o2o_logits_BAC)
    assert torch.equal(boxes, full.o2o_boxes_BA4)
    assert not torch.equal(boxes, full.o2m_boxes_BA4)


def test_eval_on_the_deployed_view_leaves_the_network_in_training():
    network = make_network()
    network.deployed().eval()
    assert all(module.training for module in network.modules())


def test_the_same_seed_draws_the_same_weights():
    first, second = make_network(), make_network()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
