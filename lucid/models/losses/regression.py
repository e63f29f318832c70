"""Box losses per anchor, weighted and masked.

Shape suffixes: A anchors; leading dimensions broadcast.
"""

import torch
from torch import Tensor

from lucid.structures.boxes import complete_iou


def overlap_loss(boxes_A4: Tensor, targets_A4: Tensor, weight_A: Tensor) -> Tensor:
    """``weight * (1 - CIoU)``, (..., A)."""
    return weight_A * (1 - complete_iou(boxes_A4, targets_A4))


def distance_loss(boxes_A4: Tensor, targets_A4: Tensor, weight_A: Tensor, strides_A: Tensor) -> Tensor:
    """``weight`` times the four absolute coordinate differences in units of the anchor's stride, (..., A).

    In pixels it would be 8 to 32 times larger and starve the classification.
    """
    return weight_A * ((boxes_A4 - targets_A4).abs().sum(dim=-1) / strides_A)


def keep_foreground(boxes_A4: Tensor, foreground_A: Tensor) -> Tensor:
    """The boxes, with zeros in the background, where the gradient is an exact zero.

    Masks what goes into the arithmetic, not what comes out: a masked result would still send NaN back.
    """
    return torch.where(foreground_A.unsqueeze(-1), boxes_A4, 0.0)
