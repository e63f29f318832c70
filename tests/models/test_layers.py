import pytest
import torch
from torch import nn

from lucid.models.layers import C2PSA, SPPF, Bottleneck, C3k, C3k2, ConvUnit, PSABlock, SpatialAttention, get_scale
from lucid.models.layers.conv import ConvUnit as Unit


def randomise_norms(module):
    """Give every BatchNorm statistics and weights that are not the identity."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.running_mean, -0.2, 0.2)
            nn.init.uniform_(norm.running_var, 0.5, 2)
            nn.init.uniform_(norm.weight, 0.5, 2)
            nn.init.uniform_(norm.bias, -0.2, 0.2)
    return module.eval()


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ('name', 'channels', 'repeats'),
    [
        ('n', [16, 32, 64, 128, 256], 1),
        ('s', [32, 64, 128, 256, 512], 1),
        ('m', [64, 128, 256, 512, 512], 1),
        ('l', [64, 128, 256, 512, 512], 2),
        ('x', [96, 192, 384, 768, 768], 2),
    ],
)
def test_channels_and_repeats_of_every_scale(name, channels, repeats):
    scale = get_scale(name)
    assert [scale.channels(base) for base in (64, 128, 256, 512, 1024)] == channels
    assert scale.repeats() == repeats


def test_an_unknown_scale_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"scale='t' does not exist; use one of 'n', 's', 'm', 'l', 'x'"):
        get_scale('t')


def test_a_conv_unit_is_convolution_batch_norm_and_silu_with_six_state_entries():
    unit = randomise_norms(ConvUnit(3, out_channels=5, kernel_size=3, stride=2))
    x = torch.randn(2, 3, 8, 8)
    y = nn.functional.conv2d(x, unit.conv.weight, stride=2, padding=1)
    norm = unit.norm
    y = (y - norm.running_mean[:, None, None]) / (norm.running_var[:, None, None] + 1e-5).sqrt()
    y = y * norm.weight[:, None, None] + norm.bias[:, None, None]
    torch.testing.assert_close(unit(x), y * y.sigmoid())
    assert len(unit.state_dict()) == 6


def test_without_activation_a_conv_unit_can_be_negative():
    unit = ConvUnit(3, out_channels=64, activation=False).eval()
    assert unit(torch.randn(1, 3, 8, 8)).min() < -0.5  # SiLU ends at -0.28


def test_a_bottleneck_adds_its_input_only_where_channels_agree():
    x = torch.randn(1, 8, 4, 4)
    for block, expected in [
        (Bottleneck(8, out_channels=8), x),
        (Bottleneck(8, out_channels=8, shortcut=False), torch.zeros_like(x)),
        (Bottleneck(8, out_channels=4), torch.zeros(1, 4, 4, 4)),
    ]:
        nn.init.zeros_(block.convs[-1].norm.weight)
        assert torch.equal(block.eval()(x), expected)


def test_the_hidden_channels_of_a_bottleneck_are_truncated():
    assert Bottleneck(8, out_channels=7, expansion=0.5).convs[0].conv.out_channels == 3


def test_c3k_merges_the_chain_and_the_stream_around_it():
    block = randomise_norms(C3k(8, out_channels=6, num_units=2))
    x = torch.randn(1, 8, 4, 4)
    chained = block.units[1](block.units[0](block.through(x)))
    assert torch.equal(block(x), block.merge(torch.cat((chained, block.around(x)), dim=1)))
    assert chained.shape[1] == 3


def test_c3k2_merges_both_halves_and_every_unit_of_the_chain():
    block = randomise_norms(C3k2(8, out_channels=12, num_units=2))
    x = torch.randn(1, 8, 4, 4)
    expanded = block.expand(x)
    first = block.units[0](expanded[:, 6:])
    second = block.units[1](first)
    torch.testing.assert_close(block(x), block.merge(torch.cat((expanded, first, second), dim=1)))


def test_the_units_of_c3k2():
    plain, c3k, attention = (C3k2(64, out_channels=64, num_units=1, unit=u) for u in ('bottleneck', 'c3k', 'attention'))
    assert isinstance(plain.units[0], Bottleneck)
    assert plain.units[0].convs[0].conv.out_channels == 32  # expansion 1 inside
    assert isinstance(c3k.units[0], C3k)
    assert len(c3k.units[0].units) == 1
    assert isinstance(attention.units[0][0], C3k)
    assert len(attention.units[0][0].units) == 2
    assert isinstance(attention.units[0][1], PSABlock)
    with pytest.raises(ValueError, match="unit='c4' does not exist"):
        C3k2(64, out_channels=64, num_units=1, unit='c4')


def test_sppf_merges_windows_of_1_5_9_and_13_cells_and_adds_its_input():
    block = randomise_norms(SPPF(8, out_channels=8))
    x = torch.randn(1, 8, 16, 16)
    reduced = block.reduce(x)
    maps = [nn.functional.max_pool2d(reduced, size, stride=1, padding=size // 2) for size in (1, 5, 9, 13)]
    torch.testing.assert_close(block(x), x + block.merge(torch.cat(maps, dim=1)))


def test_sppf_adds_nothing_where_channels_differ():
    block = SPPF(8, out_channels=4).eval()
    nn.init.zeros_(block.merge.norm.weight)
    assert block(torch.randn(1, 8, 4, 4)).eq(0).all()


def attention_by_loops(attention, x):
    """Head by head, cell by cell."""
    batch, channels, height, width = x.shape
    size = channels // attention.num_heads
    qkv = attention.qkv(x).reshape(batch, attention.num_heads, 2 * size, height * width)
    out = torch.zeros(batch, attention.num_heads, size, height * width)
    values = torch.zeros_like(out)
    for image in range(batch):
        for head in range(attention.num_heads):
            q, k, v = qkv[image, head].split((size // 2, size // 2, size))
            values[image, head] = v
            for cell in range(height * width):
                weights = ((q[:, cell : cell + 1] * k).sum(0) / (size // 2) ** 0.5).softmax(0)
                out[image, head, :, cell] = (v * weights).sum(1)
    position = attention.position(values.reshape(batch, channels, height, width))
    return attention.projection(out.reshape(batch, channels, height, width) + position)


@pytest.mark.parametrize('memory_format', [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize('channels', [128, 32])
def test_attention_equals_a_loop_over_heads_and_cells(channels, memory_format):
    attention = randomise_norms(SpatialAttention(channels))
    x = torch.randn(2, channels, 2, 3)
    assert attention.num_heads == max(1, channels // 64)
    expected = attention_by_loops(attention, x)
    torch.testing.assert_close(attention(x.to(memory_format=memory_format)), expected)


def test_attention_has_no_activation():
    attention = SpatialAttention(64)
    units = [unit for unit in attention.modules() if isinstance(unit, Unit)]
    assert len(units) == 3
    assert not any(isinstance(module, nn.SiLU) for module in attention.modules())
    assert parameters(attention) == 64 * 128 + 2 * 128 + 64 * 9 + 2 * 64 + 64 * 64 + 2 * 64


def test_a_psa_block_whose_last_norms_are_zero_is_the_identity():
    block = PSABlock(64).eval()
    x = torch.randn(1, 64, 3, 3)
    assert not torch.allclose(block(x), x)
    nn.init.zeros_(block.attention.projection.norm.weight)
    nn.init.zeros_(block.feed_forward[-1].norm.weight)
    assert torch.equal(block(x), x)


def test_c2psa_attends_on_its_last_half():
    block = randomise_norms(C2PSA(128, num_blocks=2))
    x = torch.randn(1, 128, 3, 3)
    expanded = block.expand(x)
    attended = block.blocks[1](block.blocks[0](expanded[:, 64:]))
    torch.testing.assert_close(block(x), block.merge(torch.cat((expanded[:, :64], attended), dim=1)))


@pytest.mark.parametrize('unit', ['bottleneck', 'c3k', 'attention', 'c2psa'])
def test_no_convolution_reads_a_slice_and_the_bits_are_those_of_slices(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    block = C2PSA(256, num_blocks=1) if unit == 'c2psa' else C3k2(256, out_channels=256, num_units=2, unit=unit)
    block.to(memory_format=torch.channels_last).train()
    dense: list[bool] = []
    for module in block.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(
                lambda _, args: dense.append(args[0].is_contiguous(memory_format=torch.channels_last))
            )
    x = torch.randn(2, 256, 8, 8).to(memory_format=torch.channels_last)
    results = []
    for clones in (True, False):
        if not clones:
            monkeypatch.setattr(torch.Tensor, 'clone', lambda tensor: tensor)
        leaf = x.detach().requires_grad_()
        block.zero_grad()
        y = block(leaf)
        y.backward(torch.sin(torch.arange(y.numel())).view_as(y))
        results.append([y, leaf.grad, *(parameter.grad for parameter in block.parameters())])
        assert all(dense) == clones
        dense.clear()
    assert all(map(torch.equal, *results))
