"""Convolution, BatchNorm and SiLU as one layer."""

from torch import Tensor, nn

from lucid.models.layers.norm import can_fuse, fused_norm


class ConvUnit(nn.Module):
    """Conv2d without bias, BatchNorm2d, SiLU; (B, in, H, W) -> (B, out, H / stride, W / stride).

    Initialised as torch does: ``mmcv.cnn.ConvModule`` would draw other weights.

    Attributes: ``fused``, whether norm and activation are one operator (``fused_norm``), which does not call the two
    modules, nor their hooks; parameters, buffers and their names are the same. A norm that ``fused_norm`` does not
    know, and another activation, are called as they are.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: odd, so that padding keeps the size.
        stride: of the convolution.
        groups: of the convolution; ``in_channels`` makes it depthwise.
        activation: False leaves SiLU out.

    Source: arXiv:2501.13400.
    """

    fused = False

    def __init__(
        self,
        in_channels: int,
        *,
        out_channels: int,
        kernel_size: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels,
            out_channels,
            kernel_size=kernel_size,
            stride=stride,
            padding=kernel_size // 2,
            groups=groups,
            bias=False,
        )
        self.norm = nn.BatchNorm2d(out_channels)
        self.activation = nn.SiLU() if activation else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the three."""
        x = self.conv(x)
        if self.fused and can_fuse(self.norm):
            silu = type(self.activation) is nn.SiLU
            x = fused_norm(x, self.norm, silu=silu)
            return x if silu else self.activation(x)
        return self.activation(self.norm(x))


def fuse_norms(network: nn.Module, *, fused: bool = True) -> None:
    """Let all ``ConvUnit`` of ``network`` compute norm and activation as one operator, or as two modules again."""
    for module in network.modules():
        if isinstance(module, ConvUnit):
            module.fused = fused
