"""The maps that masks are sums of.

Shape suffixes: B images, C channels, K prototypes, H, W cells of the first level.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from lucid.models.layers import ConvUnit, weights_cast


class ProtoFusion(nn.Module):
    """All levels as one map of the first: it, unchanged, plus each further one projected to its width and enlarged.

    Levels (B, C_i, H / 2**i, W / 2**i) to (B, C_0, H, W).

    Source: arXiv:2606.03748 Eq. 8, which leaves the form of the projections open: bare 1x1 convolutions here, before
    the enlargement.
    """

    def __init__(self, in_channels: Sequence[int]) -> None:
        super().__init__()
        width, *others = in_channels
        self.projections = nn.ModuleList(nn.Conv2d(channels, width, kernel_size=1) for channels in others)
        self.enlargements = nn.ModuleList(nn.Upsample(scale_factor=2.0**i) for i in range(1, len(in_channels)))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Sum of the levels."""
        fused, *others = features
        for project, enlarge, feature in zip(self.projections, self.enlargements, others, strict=True):
            fused = fused + enlarge(project(feature))
        return fused


class ProtoNet(nn.Module):
    """Prototypes, without activation, on a grid twice as fine: (B, C, H, W) to (B, K, 2 * H, 2 * W).

    Source: arXiv:2606.03748 Eq. 9; YOLACT (arXiv:1904.02689) sec. 3.1.
    """

    cast_together = False

    def __init__(self, channels: int, *, num_prototypes: int) -> None:
        super().__init__()
        self.coarse = nn.Sequential(*(ConvUnit(channels, out_channels=channels, kernel_size=3) for _ in range(3)))
        self.enlarge = nn.Upsample(scale_factor=2.0)
        self.fine = ConvUnit(channels, out_channels=channels, kernel_size=3)
        self.final = nn.Conv2d(channels, num_prototypes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """Three units, enlarge, one unit, project."""
        with weights_cast(self, together=self.cast_together):
            result: Tensor = self.final(self.fine(self.enlarge(self.coarse(x))))
            return result
