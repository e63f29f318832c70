"""Overlap of axis-aligned boxes, xyxy, in any unit.

Sides are clamped at zero: an inverted box is empty and overlaps nothing. torchvision's functions leave them signed (two
inverted sides make a positive area), and its complete IoU selects rows by a mask and divides by a height that may be
zero.

Shape suffixes: N, M boxes; leading dimensions broadcast.
"""

import math

import torch
from torch import Tensor


@torch.no_grad()
def pairwise_iou(boxes_N4: Tensor, others_M4: Tensor, *, eps: float = 1e-9) -> Tensor:
    """IoU of each of N boxes with each of M others, (..., N, M), without gradient.

    ``eps`` is added to the union, so that two empty boxes have IoU 0. Each operation is correctly rounded: the bits of
    an element depend on its two boxes only, not on N, M or the element's place. Where M is the larger number, its
    elements lie next to each other in memory.

    Source: YOLO26 (arXiv:2606.03748) sec. 3.3.3 ranks anchors by it; the epsilon is this project's choice.
    """
    x1, y1, x2, y2 = boxes_N4.unsqueeze(-1).unbind(-2)
    left, top, right, bottom = others_M4.transpose(-1, -2).contiguous().unsqueeze(-3).unbind(-2)
    # In place: on a CPU, fresh memory of this size costs more than the arithmetic.
    inter_NM = torch.minimum(x2, right).sub_(torch.maximum(x1, left)).clamp_(min=0)
    inter_NM.mul_(torch.minimum(y2, bottom).sub_(torch.maximum(y1, top)).clamp_(min=0))
    union_NM = _area(x1, y1, x2, y2) + _area(left, top, right, bottom)
    return inter_NM.div_(union_NM.sub_(inter_NM).add_(eps))


def complete_iou(boxes_N4: Tensor, targets_N4: Tensor, *, eps: float = 1e-7) -> Tensor:
    """CIoU of each box with its target, (..., N), at most 1: IoU - distance² / diagonal² - a·v.

    v compares the aspects by ``atan2``, whose gradient stays finite on a box with one collapsed side, and is zero in
    torch on a box with two; its weight a is a constant for the gradient. ``eps`` is added to the union, the squared
    diagonal and the denominator of a. The gradient reaches ``boxes_N4`` and is finite for inverted, collapsed,
    coincident and disjoint boxes, in float32 up to coordinates of 1e15. An inverted box gets a gradient from the
    distance of the centres alone: nothing here turns it round.

    Source: DIoU/CIoU (arXiv:1911.08287).
    """
    low, high = boxes_N4.chunk(2, dim=-1)
    target_low, target_high = targets_N4.chunk(2, dim=-1)
    width, height = (high - low).clamp(min=0).unbind(-1)
    target_width, target_height = (target_high - target_low).clamp(min=0).unbind(-1)
    inter_width, inter_height = (
        (torch.minimum(high, target_high) - torch.maximum(low, target_low)).clamp(min=0).unbind(-1)
    )

    inter = inter_width * inter_height
    iou = inter / (width * height + target_width * target_height - inter + eps)

    diagonal = (torch.maximum(high, target_high) - torch.minimum(low, target_low)).square().sum(dim=-1) + eps
    distance = (low + high - target_low - target_high).square().sum(dim=-1) / 4

    angle = torch.atan2(target_width, target_height) - torch.atan2(width, height)
    aspect = 4 / math.pi**2 * angle.square()
    with torch.no_grad():
        weight = aspect / (1 - iou + aspect + eps)
    return iou - distance / diagonal - weight * aspect


def _area(x1: Tensor, y1: Tensor, x2: Tensor, y2: Tensor) -> Tensor:
    return (x2 - x1).clamp_(min=0) * (y2 - y1).clamp_(min=0)
