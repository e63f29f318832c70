"""Which anchors may learn which box.

Shape suffixes: B images, M boxes per image, A anchors.
"""

import torch
from torch import Tensor

from lucid.structures import AnchorGrid
from lucid.structures.rotated_tensors import inside_rboxes


def anchors_inside(
    boxes_BM4: Tensor, valid_BM: Tensor, grid: AnchorGrid, *, small_side: float, small_reference: float
) -> Tensor:
    """True where the anchor's centre lies in the box, edges included, (B, M, A) bool; nowhere in a row not valid.

    A side shorter than ``small_side`` pixels counts as ``small_reference`` pixels about the same centre, each side by
    itself, so that no box falls between the anchors. Rows that are not valid may hold anything.

    Source: small-target-aware assignment, YOLO26 (arXiv:2606.03748) sec. 3.3.3 Eq. 4 to 6.
    """
    low_BM2, high_BM2 = boxes_BM4.chunk(2, dim=-1)
    small_BM2 = high_BM2 - low_BM2 < small_side
    center_BM2 = (low_BM2 + high_BM2) / 2
    low_BM2 = torch.where(small_BM2, center_BM2 - small_reference / 2, low_BM2)
    high_BM2 = torch.where(small_BM2, center_BM2 + small_reference / 2, high_BM2)
    # An empty interval instead of a mask over all anchors.
    low_BM2 = torch.where(valid_BM.unsqueeze(-1), low_BM2, float('inf'))

    x1_BM1, y1_BM1 = low_BM2.unsqueeze(-2).unbind(-1)
    x2_BM1, y2_BM1 = high_BM2.unsqueeze(-2).unbind(-1)
    x_A, y_A = grid.centers_A2.to(boxes_BM4.dtype).T.contiguous()
    return (x_A >= x1_BM1) & (x_A <= x2_BM1) & (y_A >= y1_BM1) & (y_A <= y2_BM1)


def anchors_inside_rotated(
    rboxes_BM5: Tensor, valid_BM: Tensor, grid: AnchorGrid, *, small_side: float, small_reference: float
) -> Tensor:
    """As ``anchors_inside``, for rotated boxes whose own two sides are widened; the angle stays.

    A box whose sides change order by that is the same rectangle in the long-edge convention, so it is not folded anew.

    Source: the same, of the rotated sides, which is this project's reading.
    """
    sides_BM2 = rboxes_BM5[..., 2:4]
    sides_BM2 = torch.where(sides_BM2 < small_side, small_reference, sides_BM2)
    # A negative side holds nothing.
    sides_BM2 = torch.where(valid_BM.unsqueeze(-1), sides_BM2, -1.0)
    widened_BM5 = torch.cat((rboxes_BM5[..., :2], sides_BM2, rboxes_BM5[..., 4:]), dim=-1)
    return inside_rboxes(grid.centers_A2, widened_BM5)
