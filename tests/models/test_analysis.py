import pytest
import torch
from torch import nn

from lucid.models.analysis import analyze_network, count_layers
from lucid.models.detectors import YOLODetector
from lucid.models.layers import ConvUnit, SpatialAttention


@pytest.mark.parametrize(
    ('scale', 'gflops', 'deploy_params'),
    [
        ('n', 5.4270, 2_334_752),
        ('s', 21.0023, 9_251_680),
        ('m', 67.8884, 19_533_440),
        ('l', 90.0504, 23_765_120),
        ('x', 201.6605, 53_377_116),
    ],
)
def test_the_published_figures_of_the_deployed_view(scale, gflops, deploy_params):
    with torch.device('meta'):
        network = YOLODetector(scale=scale, num_classes=80, loss={'type': nn.Identity}).network
    cost = analyze_network(network, (640, 640))
    assert cost.gflops == pytest.approx(gflops, abs=1e-4)
    assert cost.deploy_params == deploy_params
    assert sum(layer.params for layer in cost.layers) == cost.params
    assert cost.training_gflops > cost.gflops
    if scale == 'n':
        assert sum(layer.elements for layer in cost.layers) == pytest.approx(47.4e6, rel=1e-3)
        assert cost.bytes_floor == pytest.approx(0.474e9, rel=1e-3)


def test_the_layers_of_a_small_network_by_hand():
    network = nn.Sequential(
        ConvUnit(3, out_channels=64, kernel_size=3, stride=2),
        SpatialAttention(64),
        nn.Upsample(scale_factor=2.0),
        nn.Conv2d(64, 2, kernel_size=1),
    ).train()
    layers = {layer.name: layer for layer in count_layers(network, (4, 8))}
    assert list(layers) == ['0', '1.qkv', '1.position', '1.projection', '1', '2', '3']

    stem = layers['0']
    assert (stem.kind, stem.output_shape) == ('ConvUnit', (64, 2, 4))
    assert stem.params == 3 * 64 * 9 + 2 * 64
    assert stem.macs == 64 * 8 * 3 * 9 + 2 * 64 * 8
    assert stem.elements == 3 * 32 + 64 * 8
    assert stem.bytes_floor() == (3 * 32 + 64 * 8) * 5 * 2
    assert stem.bytes_floor(passes=2, element_size=4) == (3 * 32 + 64 * 8) * 8

    assert layers['1.position'].macs == 64 * 8 * 9 + 2 * 64 * 8
    assert layers['1'].macs == 8 * 8 * (32 + 64)  # scores over 32 key channels, sums over 64 value channels
    assert layers['1'].params == 0
    assert layers['2'].macs == 64 * 4 * 8
    assert layers['3'].macs == 2 * 32 * 64
    assert layers['3'].params == 2 * 64 + 2


def test_counting_leaves_the_network_as_it_was():
    network = nn.Sequential(ConvUnit(3, out_channels=4)).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    count_layers(network, (8, 8))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(module.training and not module._forward_hooks for module in network.modules())


def test_the_words_for_speed_change_no_count():
    model = {'num_classes': 3, 'loss': {'type': nn.Identity}}
    with torch.device('meta'):
        plain = YOLODetector(**model).network
        fast = YOLODetector(**model, fused_norm=True, cast_together=True, head={'parallel': 'stems'}).network
    assert analyze_network(fast, (64, 64)) == analyze_network(plain, (64, 64))
