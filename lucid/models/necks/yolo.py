"""The neck of the YOLO26-style detectors."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lucid.models.layers import C3k2, ConvUnit, get_scale, weights_cast
from lucid.registry import MODELS


@MODELS.register_module()
class YOLONeck(nn.Module):
    """Path aggregation: three maps mixed from coarse to fine and back, the coarsest one with attention.

    Attribute ``out_channels`` describes the three maps; their strides are those of the input.

    Args:
        in_channels: of the maps at strides 8, 16 and 32.
        scale: size, ``'n'`` to ``'x'``.

    Source: arXiv:2606.03748 Fig. S1 and Table 2; arXiv:2602.14582 Fig. 1.
    """

    cast_together = False

    def __init__(self, in_channels: Sequence[int], *, scale: str) -> None:
        super().__init__()
        size = get_scale(scale)
        p3, p4, p5 = in_channels
        n3, n4, n5 = (size.channels(base) for base in (256, 512, 1024))
        repeats = size.repeats()
        self.out_channels = (n3, n4, n5)
        self.up = nn.Upsample(scale_factor=2.0, mode='nearest')
        self.top_t4 = C3k2(p5 + p4, out_channels=n4, num_units=repeats, unit='c3k')
        self.top_n3 = C3k2(n4 + p3, out_channels=n3, num_units=repeats)
        self.down_n3 = ConvUnit(n3, out_channels=n3, kernel_size=3, stride=2)
        self.bottom_n4 = C3k2(n3 + n4, out_channels=n4, num_units=repeats)
        self.down_n4 = ConvUnit(n4, out_channels=n4, kernel_size=3, stride=2)
        self.bottom_n5 = C3k2(n4 + p5, out_channels=n5, num_units=1, unit='attention')

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Maps at strides 8, 16, 32 to maps of ``out_channels`` at the same strides."""
        p3, p4, p5 = features
        # By what reaches the same outputs: whoever reads n3 alone gets no gradient of the rest.
        with weights_cast(self.top_t4, self.top_n3, together=self.cast_together):
            t4 = self.top_t4(torch.cat((self.up(p5), p4), dim=1))
            n3 = self.top_n3(torch.cat((self.up(t4), p3), dim=1))
        with weights_cast(self.down_n3, self.bottom_n4, together=self.cast_together):
            n4 = self.bottom_n4(torch.cat((self.down_n3(n3), t4), dim=1))
        with weights_cast(self.down_n4, self.bottom_n5, together=self.cast_together):
            n5 = self.bottom_n5(torch.cat((self.down_n4(n4), p5), dim=1))
        return n3, n4, n5
