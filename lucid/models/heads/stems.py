"""Functions that the heads of all tasks share.

Shape suffixes: B images, A anchors, C channels.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from lucid.models.layers import ConvUnit, Stage
from lucid.streams import side_by_side

Parallel = Literal['branches', 'stems']
"""What a head runs on streams of its own: branches and kinds of output, or the stem of each level too."""


def check_parallel(parallel: str | None) -> None:
    """Raise ``ValueError`` for a word that no head knows."""
    if parallel not in (None, 'branches', 'stems'):
        raise ValueError(f"model.head.parallel={parallel!r}; choose None, 'branches' or 'stems'")


def lanes_of(parallel: Parallel | None) -> int | None:
    """How many lanes a head or a branch gives to what it calls: one, or one for each."""
    return 1 if parallel is None else None


def make_stems(in_channels: Sequence[int], *, out_channels: int, divisor: int = 3) -> nn.ModuleList:
    """One stem per level: depthwise 3x3, 1x1, depthwise 3x3, 1x1, and a plain 1x1 with bias to ``out_channels``.

    Args:
        in_channels: of each level.
        out_channels: numbers per cell.
        divisor: the hidden layers have ``max(16, channels // divisor)`` channels.

    Returns:
        Stems from (B, in, H, W) to (B, out, H, W).

    Source: arXiv:2606.03748 sec. 3.2.
    """
    return nn.ModuleList(
        _make_stem(channels, hidden=max(16, channels // divisor), out_channels=out_channels) for channels in in_channels
    )


def _make_stem(channels: int, *, hidden: int, out_channels: int) -> Stage:
    return Stage(
        ConvUnit(channels, out_channels=channels, kernel_size=3, groups=channels),
        ConvUnit(channels, out_channels=hidden),
        ConvUnit(hidden, out_channels=hidden, kernel_size=3, groups=hidden),
        ConvUnit(hidden, out_channels=hidden),
        nn.Conv2d(hidden, out_channels, kernel_size=1),
    )


def init_class_prior(stems: nn.ModuleList, *, prior: float = 0.01) -> None:
    """Set the final biases so that every class starts at probability ``prior``.

    Without it the first class loss is about 1.8 million, and the first step ends in a network that predicts nothing.

    Source: arXiv:1708.02002 sec. 5.1.
    """
    for stem in stems:
        *_, final = stem.children()
        init_prior(final, prior=prior)


def init_prior(classifier: nn.Module, *, prior: float = 0.01) -> None:
    """Set the bias of one layer so that every class starts at probability ``prior``."""
    nn.init.constant_(classifier.get_parameter('bias'), -math.log((1 - prior) / prior))


def init_box_start(stems: nn.ModuleList, *, distance: float) -> None:
    """Set the final biases so that every anchor starts with a box of ``distance`` strides to each side.

    From zero, half of the boxes start inverted and get no gradient from their overlap. This project's own option.
    """
    for stem in stems:
        *_, final = stem.children()
        nn.init.constant_(final.get_parameter('bias'), distance)


def apply_stems(stems: nn.ModuleList, features: Sequence[Tensor], *, parallel: Parallel | None = None) -> Tensor:
    """Each stem on its level, as one (B, A, out_channels) in anchor order: level by level, row-major inside a level."""
    calls = [partial(_apply_stem, stem, feature) for stem, feature in zip(stems, features, strict=True)]
    return torch.cat(side_by_side(calls, lanes=None if parallel == 'stems' else 1), dim=1)


def _apply_stem(stem: nn.Module, feature: Tensor) -> Tensor:
    # NHWC before flattening: a view when the map is channels_last.
    rows: Tensor = stem(feature).permute(0, 2, 3, 1).flatten(1, 2)
    return rows
