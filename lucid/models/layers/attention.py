"""Self-attention over the cells of a feature map.

Shape suffixes: B images, C channels, H rows, W columns, h heads, N cells (H * W), k key channels, d value channels.
"""

import torch
from torch import Tensor, nn

from lucid.models.layers.conv import ConvUnit


class SpatialAttention(nn.Module):
    """Multi-head attention between all cells, plus a depthwise 3x3 of the values as position; (B, C, H, W) to the same.

    Written as two matmuls and a softmax rather than ``scaled_dot_product_attention``, whose CUDA backward is not
    bitwise reproducible: an eager step could not be compared with a captured one. Contiguous and channels_last inputs
    both work; the result is channels_last.

    Args:
        channels: of input and output; about 64 per head.

    Source: arXiv:2405.14458; arXiv:2602.14582.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.num_heads = max(1, channels // 64)
        self.head_channels = channels // self.num_heads
        self.key_channels = self.head_channels // 2
        self.scale = self.key_channels**-0.5
        qkv_channels = channels + 2 * self.key_channels * self.num_heads
        self.qkv = ConvUnit(channels, out_channels=qkv_channels, activation=False)
        self.position = ConvUnit(channels, out_channels=channels, kernel_size=3, groups=channels, activation=False)
        self.projection = ConvUnit(channels, out_channels=channels, activation=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Attend; the channels of ``qkv`` lie head by head as query, key, value."""
        height, width = x_BCHW.shape[2:]
        # flatten and unflatten, not view: they take the strides of channels_last.
        qkv = self.qkv(x_BCHW).flatten(2).unflatten(1, (self.num_heads, -1))
        q_BhkN, k_BhkN, v_BhdN = qkv.split((self.key_channels, self.key_channels, self.head_channels), dim=2)
        weights_BhNN = ((q_BhkN * self.scale).transpose(2, 3) @ k_BhkN).softmax(dim=-1)
        attended_BhNd = weights_BhNN.to(v_BhdN.dtype) @ v_BhdN.transpose(2, 3)
        values_BCHW = _to_map(v_BhdN.transpose(2, 3), height, width)
        return self.projection(_to_map(attended_BhNd, height, width) + self.position(values_BCHW))


def _to_map(tokens_BhNd: Tensor, height: int, width: int) -> Tensor:
    """(B, heads, H * W, d) as (B, heads * d, H, W), channels_last."""
    return tokens_BhNd.transpose(1, 2).flatten(2).unflatten(1, (height, width)).permute(0, 3, 1, 2)


class PSABlock(nn.Module):
    """Attention and a feed-forward layer, each added to its input; (B, C, H, W) to the same.

    Source: arXiv:2405.14458 sec. 3.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attention = SpatialAttention(channels)
        self.feed_forward = nn.Sequential(
            ConvUnit(channels, out_channels=2 * channels),
            ConvUnit(2 * channels, out_channels=channels, activation=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then feed-forward."""
        x = x + self.attention(x)
        return x + self.feed_forward(x)


class C2PSA(nn.Module):
    """Half of the channels pass through ``num_blocks`` PSABlocks, the other half around them; (B, C, H, W) to the same.

    Source: arXiv:2602.14582.
    """

    def __init__(self, channels: int, *, num_blocks: int) -> None:
        super().__init__()
        hidden = channels // 2
        self.expand = ConvUnit(channels, out_channels=2 * hidden)
        self.blocks = nn.Sequential(*(PSABlock(hidden) for _ in range(num_blocks)))
        self.merge = ConvUnit(2 * hidden, out_channels=channels)

    def forward(self, x: Tensor) -> Tensor:
        """Split, attend on one half, merge."""
        around, through = self.expand(x).chunk(2, dim=1)
        # Dense: a convolution that reads a slice copies it, forward and backward.
        return self.merge(torch.cat((around, self.blocks(through.clone())), dim=1))
