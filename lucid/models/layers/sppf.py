"""Pooling at several sizes."""

import torch
from torch import Tensor, nn

from lucid.models.layers.conv import ConvUnit


class SPPF(nn.Module):
    """Three chained 5x5 max-pools beside their input, the block's input added; (B, in, H, W) -> (B, out, H, W).

    Source: arXiv:2602.14582 sec. 4; the papers do not settle the added input.
    """

    def __init__(self, in_channels: int, *, out_channels: int) -> None:
        super().__init__()
        hidden = in_channels // 2
        self.reduce = ConvUnit(in_channels, out_channels=hidden)
        self.pool = nn.MaxPool2d(kernel_size=5, stride=1, padding=2)
        self.merge = ConvUnit(4 * hidden, out_channels=out_channels)
        self.shortcut = in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Pool three times and merge the four maps."""
        maps = [self.reduce(x)]
        for _ in range(3):
            maps.append(self.pool(maps[-1]))
        merged = self.merge(torch.cat(maps, dim=1))
        return x + merged if self.shortcut else merged
