"""Mask terms: binary cross entropy of linear combinations of prototypes, and of a map of classes.

Shape suffixes: B images, M boxes per image, P anchors that a box may keep, K prototypes, C classes, H, W cells of the
mask grid, h, w cells of a coarser one.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function


def mask_sum(
    coefficients_BMPK: Tensor, prototypes_BKHW: Tensor, masks_BMHW: Tensor, boxes_BM4: Tensor, kept_BMP: Tensor
) -> Tensor:
    """Mask loss summed over what is kept, 0-d: cross entropy over the cells of each box, over the box's area.

    A mask's logits are the prototypes times its coefficients. A cell belongs to a box if its centre does, the lower
    edges included and the upper ones not; an area below one cell counts as one. What is not kept may hold anything.

    The logits of all P would be P times as large as the masks in floating point, 1 GB for 16 images of 64 boxes and 10
    anchors on a grid of 160 x 160. One anchor of each box is computed at a time, and its gradient together with its
    value, so that what exists at once is a few times the masks and nothing of it is kept for the backward. There is no
    second derivative: ``create_graph`` raises ``RuntimeError``.

    Args:
        coefficients_BMPK: floating dtype, that of the result.
        prototypes_BKHW: the same dtype.
        masks_BMHW: bool.
        boxes_BM4: xyxy in cells, the same dtype.
        kept_BMP: bool.

    Returns:
        A new tensor; gradients reach coefficients and prototypes.

    Source: YOLACT (arXiv:1904.02689) sec. 3.2 and 3.3.
    """
    kept_BMP1 = kept_BMP.unsqueeze(-1)
    valid_BM = kept_BMP.any(dim=-1)
    boxes_BM4 = torch.where(valid_BM.unsqueeze(-1), boxes_BM4, 0.0)
    x1, y1, x2, y2 = boxes_BM4.unsqueeze(-1).unbind(-2)
    area_BM1 = ((x2 - x1) * (y2 - y1)).clamp(min=1)
    height, width = masks_BMHW.shape[2:]
    x_W, y_H = (torch.arange(size, device=boxes_BM4.device, dtype=boxes_BM4.dtype) + 0.5 for size in (width, height))
    columns_BM1W = ((x_W >= x1) & (x_W < x2)).unsqueeze(-2)
    rows_BMH1 = ((y_H >= y1) & (y_H < y2)).unsqueeze(-1)
    inside_BMN = (rows_BMH1 & columns_BM1W).flatten(2)
    result: Tensor = _MaskSum.apply(
        torch.where(kept_BMP1, coefficients_BMPK, 0.0),
        prototypes_BKHW.flatten(2),
        masks_BMHW.flatten(2),
        inside_BMN,
        kept_BMP / area_BM1,
    )
    return result


class _MaskSum(Function):
    """Sum over B, M, P of weight times the cross entropy over the cells inside; N = H · W.

    -x at a cell of the mask and x at the others has the cross entropy softplus(-x) and softplus(x), and minus infinity,
    outside of the box, has the loss and the gradient zero.
    """

    @staticmethod
    def forward(
        ctx: Any,
        coefficients_BMPK: Tensor,
        prototypes_BKN: Tensor,
        masks_BMN: Tensor,
        inside_BMN: Tensor,
        weight_BMP: Tensor,
    ) -> Tensor:
        sign_BMN = masks_BMN.to(prototypes_BKN.dtype).mul_(-2).add_(1)
        total = prototypes_BKN.new_zeros(())
        slices_BMK = []
        prototypes_grad_BKN = torch.zeros_like(prototypes_BKN)
        for pick in range(coefficients_BMPK.shape[2]):
            coefficients_BMK, weight_BM1 = coefficients_BMPK[:, :, pick], weight_BMP[:, :, pick].unsqueeze(-1)
            signed_BMN = torch.bmm(coefficients_BMK, prototypes_BKN).mul_(sign_BMN)
            # Also where there is no weight: a prototype that is not finite must not reach what is not kept.
            signed_BMN.masked_fill_(~(inside_BMN & (weight_BM1 != 0)), float('-inf'))
            # From 40 on softplus(x) is x even in float64.
            loss_BM1 = F.softplus(signed_BMN, threshold=40.0).sum(dim=-1, keepdim=True)
            total = total + (weight_BM1 * loss_BM1).sum()
            slope_BMN = signed_BMN.sigmoid_().mul_(sign_BMN).mul_(weight_BM1)
            slices_BMK.append(torch.bmm(slope_BMN, prototypes_BKN.transpose(1, 2)))
            prototypes_grad_BKN.baddbmm_(coefficients_BMK.transpose(1, 2), slope_BMN)
        ctx.save_for_backward(torch.stack(slices_BMK, dim=2), prototypes_grad_BKN)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # torch's own once_differentiable lets a graph of the whole loss pass, whose second derivative lacks this term.
        if torch.is_grad_enabled():
            raise RuntimeError('the mask loss has no second derivative; take its gradient without create_graph')
        coefficients_grad_BMPK, prototypes_grad_BKN = ctx.saved_tensors
        return grad * coefficients_grad_BMPK, grad * prototypes_grad_BKN, None, None, None


def class_map(labels_BM: Tensor, masks_BMHW: Tensor, valid_BM: Tensor, *, num_classes: int, cells: int) -> Tensor:
    """The union of the masks of each class, (B, C, h, w) bool, on a grid whose cells are ``cells`` of theirs wide.

    A cell is covered if any of the cells that it is made of is. Rows that are not valid may hold anything.
    """
    height, width = (size // cells for size in masks_BMHW.shape[2:])
    split_BMhnwn = masks_BMHW.view(*masks_BMHW.shape[:2], height, cells, width, cells)
    coarse_BMN = split_BMhnwn.any(dim=5).any(dim=3).flatten(2).float()
    classes_C1 = torch.arange(num_classes, device=labels_BM.device).unsqueeze(-1)
    of_class_BCM = (labels_BM.unsqueeze(1) == classes_C1) & valid_BM.unsqueeze(1)
    # Counts of ones: exact in any precision, as far as zero is concerned.
    return (torch.bmm(of_class_BCM.float(), coarse_BMN) > 0).unflatten(-1, (height, width))


def semantic_loss(logits_BCHW: Tensor, covered_BCHW: Tensor) -> Tensor:
    """Mean binary cross entropy plus soft Dice, 0-d.

    Dice is 1 - (2·sum of p·t + 1) / (sum of p + sum of t + 1) over the cells of each image and class, averaged.

    Source: YOLO26 (arXiv:2606.03748) sec. 3.4.1; equal weights of the two and the ones are this project's choice.
    """
    signed_BCHW = torch.where(covered_BCHW, -logits_BCHW, logits_BCHW)
    entropy = F.softplus(signed_BCHW, threshold=40.0).mean()
    probability_BCN = logits_BCHW.sigmoid().flatten(2)
    covered_BCN = covered_BCHW.flatten(2)
    shared_BC = torch.where(covered_BCN, probability_BCN, 0.0).sum(dim=-1)
    both_BC = probability_BCN.sum(dim=-1) + covered_BCN.sum(dim=-1)
    return entropy + (1 - (2 * shared_BC + 1) / (both_BC + 1)).mean()
