"""A normalizing flow on the plane.

Shape suffixes: N points.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Coupling(nn.Module):
    """Moves and scales one coordinate by what a small network makes of the other; towards the latent space.

    The logarithm of the scale is a learned number times a tanh, so that a point far away cannot blow up the loss.
    """

    def __init__(self, *, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(1, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 2)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, given_N1: Tensor, moved_N1: Tensor) -> tuple[Tensor, Tensor]:
        """The moved coordinate, and the logarithm of how much it was stretched; both (N, 1)."""
        features = given_N1
        for layer in (self.first, self.second, self.last):
            weight, bias = layer.weight.to(given_N1.dtype), layer.bias.to(given_N1.dtype)
            # In place: a linear layer does not need what it gave, and these are the largest tensors here.
            features = F.leaky_relu_(F.linear(features, weight, bias))
        raw_N1, shift_N1 = features.chunk(2, dim=-1)
        stretch_N1 = -self.scale.to(given_N1.dtype) * raw_N1.tanh()
        return (moved_N1 - shift_N1) * stretch_N1.exp(), stretch_N1


class RealNVP(nn.Module):
    """Logarithm of a learned density of points (..., 2) in the plane, (...,); the latent one is the standard normal.

    Couplings alternate between the coordinates; the first one moves y. With 6 of them of width 64 there are
    6 · (2·64 + 65·64 + 65·2 + 1) = 26,514 parameters.

    Args:
        num_couplings: at least 1.
        hidden: width of the networks in the couplings.

    Source: RealNVP (arXiv:1605.08803); residual log-likelihood estimation (arXiv:2107.11291). The activation after a
    coupling's last layer, and which coordinate begins, are open gaps.
    """

    def __init__(self, *, num_couplings: int = 6, hidden: int = 64) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(hidden=hidden) for _ in range(num_couplings))

    def forward(self, points_N2: Tensor) -> Tensor:
        """``log G`` at every point, in the dtype of the points whatever that of the parameters is."""
        given_N1, moved_N1 = points_N2.chunk(2, dim=-1)
        stretch_N1 = torch.zeros_like(given_N1)
        for coupling in self.couplings:
            moved_N1, stretched_N1 = coupling(given_N1, moved_N1)
            stretch_N1 = stretch_N1 + stretched_N1
            given_N1, moved_N1 = moved_N1, given_N1
        squares_N1 = given_N1.square() + moved_N1.square()
        return (stretch_N1 - squares_N1 / 2 - math.log(2 * math.pi)).squeeze(-1)
