"""Blocks that send part of their channels through a chain of units and the rest around it."""

from typing import Literal

import torch
from torch import Tensor, nn

from lucid.models.layers.attention import PSABlock
from lucid.models.layers.conv import ConvUnit

UnitKind = Literal['bottleneck', 'c3k', 'attention']


class Bottleneck(nn.Module):
    """Two 3x3 ConvUnits, the input added where the channels agree; (B, in, H, W) -> (B, out, H, W).

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        shortcut: False never adds the input.
        expansion: channels between the two convolutions, as a factor on ``out_channels``.
    """

    def __init__(self, in_channels: int, *, out_channels: int, shortcut: bool = True, expansion: float = 1.0) -> None:
        super().__init__()
        hidden = int(out_channels * expansion)
        self.convs = nn.Sequential(
            ConvUnit(in_channels, out_channels=hidden, kernel_size=3),
            ConvUnit(hidden, out_channels=out_channels, kernel_size=3),
        )
        self.shortcut = shortcut and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Convolve and add."""
        return x + self.convs(x) if self.shortcut else self.convs(x)


class C3k(nn.Module):
    """Two parallel 1x1 streams, one through ``num_units`` Bottlenecks, merged; (B, in, H, W) -> (B, out, H, W).

    Source: arXiv:2602.14582.
    """

    def __init__(self, in_channels: int, *, out_channels: int, num_units: int, expansion: float = 0.5) -> None:
        super().__init__()
        hidden = int(out_channels * expansion)
        self.through = ConvUnit(in_channels, out_channels=hidden)
        self.around = ConvUnit(in_channels, out_channels=hidden)
        self.units = nn.Sequential(*(Bottleneck(hidden, out_channels=hidden) for _ in range(num_units)))
        self.merge = ConvUnit(2 * hidden, out_channels=out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Both streams, then merge."""
        return self.merge(torch.cat((self.units(self.through(x)), self.around(x)), dim=1))


class C3k2(nn.Module):
    """Two halves, the last one through a chain of units of which every result is kept; (B, in, H, W) -> (B, out, H, W).

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        num_units: length of the chain.
        expansion: channels of a half, as a factor on ``out_channels``.
        unit: a Bottleneck, a C3k of one Bottleneck, or a C3k of two Bottlenecks followed by a PSABlock.

    Source: arXiv:2602.14582; arXiv:2606.03748 Table 2 (the attention unit).
    """

    def __init__(
        self,
        in_channels: int,
        *,
        out_channels: int,
        num_units: int,
        expansion: float = 0.5,
        unit: UnitKind = 'bottleneck',
    ) -> None:
        super().__init__()
        hidden = int(out_channels * expansion)
        self.expand = ConvUnit(in_channels, out_channels=2 * hidden)
        self.units = nn.ModuleList(_make_unit(unit, hidden) for _ in range(num_units))
        self.merge = ConvUnit((2 + num_units) * hidden, out_channels=out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Split, chain, merge everything."""
        around, through = self.expand(x).chunk(2, dim=1)
        # Dense: each convolution that reads a slice would copy it for itself, forward and backward.
        parts = [around, through.clone()]
        for unit in self.units:
            parts.append(unit(parts[-1]))
        return self.merge(torch.cat(parts, dim=1))


def _make_unit(kind: UnitKind, channels: int) -> nn.Module:
    match kind:
        case 'bottleneck':
            return Bottleneck(channels, out_channels=channels)
        case 'c3k':
            return C3k(channels, out_channels=channels, num_units=1)
        case 'attention':
            return nn.Sequential(C3k(channels, out_channels=channels, num_units=2), PSABlock(channels))
    raise ValueError(f"unit={kind!r} does not exist; use 'bottleneck', 'c3k' or 'attention'")
