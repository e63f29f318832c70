"""The backbone of the YOLO26-style detectors."""

from torch import Tensor, nn

from lucid.models.layers import C2PSA, SPPF, C3k2, ConvUnit, Stage, get_scale
from lucid.registry import MODELS


@MODELS.register_module()
class YOLOBackbone(nn.Module):
    """Images to feature maps at strides 8, 16 and 32.

    Attributes ``out_channels`` and ``strides`` describe the three maps.

    Args:
        scale: size, ``'n'`` to ``'x'``.

    Source: arXiv:2606.03748 Fig. S1; arXiv:2602.14582 Fig. 1.
    """

    def __init__(self, *, scale: str) -> None:
        super().__init__()
        size = get_scale(scale)
        c64, c128, c256, c512, c1024 = (size.channels(base) for base in (64, 128, 256, 512, 1024))
        repeats = size.repeats()
        self.out_channels = (c512, c512, c1024)
        self.strides = (8, 16, 32)
        self.to_p3 = Stage(
            ConvUnit(3, out_channels=c64, kernel_size=3, stride=2),
            ConvUnit(c64, out_channels=c128, kernel_size=3, stride=2),
            C3k2(c128, out_channels=c256, num_units=repeats, expansion=0.25),
            ConvUnit(c256, out_channels=c256, kernel_size=3, stride=2),
            C3k2(c256, out_channels=c512, num_units=repeats, expansion=0.25),
        )
        self.to_p4 = Stage(
            ConvUnit(c512, out_channels=c512, kernel_size=3, stride=2),
            C3k2(c512, out_channels=c512, num_units=repeats, unit='c3k'),
        )
        self.to_p5 = Stage(
            ConvUnit(c512, out_channels=c1024, kernel_size=3, stride=2),
            C3k2(c1024, out_channels=c1024, num_units=repeats, unit='c3k'),
            SPPF(c1024, out_channels=c1024),
            C2PSA(c1024, num_blocks=repeats),
        )

    def forward(self, images_B3HW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images (B, 3, H, W), sides a multiple of 32, to (B, C, H / s, W / s) for s in 8, 16, 32."""
        p3 = self.to_p3(images_B3HW)
        p4 = self.to_p4(p3)
        return p3, p4, self.to_p5(p4)
