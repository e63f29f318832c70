"""Rotated boxes (cx, cy, w, h, theta) on the device, in the convention of ``rotated``; leading dimensions broadcast.

Shape suffixes: N boxes, P points; a rotated box has 5 numbers.
"""

import torch
from torch import Tensor

MIN_SIDE = 1e-4
"""Pixels; a shorter side counts as this, so that a Gaussian has a width."""


def compose_rboxes(boxes_N4: Tensor, angles_N1: Tensor) -> Tensor:
    """Upright boxes, xyxy, turned about their centres by radians from +x towards +y.

    Nothing is clamped or folded: an inverted box has negative sides, and w may be below h. ``canonical`` folds.

    Source: YOLO26 (arXiv:2606.03748) sec. 3.4.3 Eq. 13; turning about the box's own centre is an open gap.
    """
    low_N2, high_N2 = boxes_N4.chunk(2, dim=-1)
    return torch.cat(((low_N2 + high_N2) / 2, high_N2 - low_N2, angles_N1), dim=-1)


@torch.no_grad()
def inside_rboxes(points_P2: Tensor, rboxes_N5: Tensor) -> Tensor:
    """True where a point lies in a box, edges included, (..., N, P) bool; no gradient.

    Never in a box with a negative side or a NaN. The bits of an element depend on its box and point only, not on N, P
    or the element's place.
    """
    cx, cy, w, h, theta = rboxes_N5.unsqueeze(-2).unbind(-1)
    # Rounded to what a float32 angle can tell apart: a quarter turn is upright again, with points on its edges, and
    # the last bit, which on a CPU depends on an element's place in its tensor, is gone.
    exact = theta.double()
    cos, sin = (exact.cos() * 2**22).round() / 2**22, (exact.sin() * 2**22).round() / 2**22
    cos, sin = cos.to(theta.dtype), sin.to(theta.dtype)
    x_P, y_P = points_P2.to(rboxes_N5.dtype).T.contiguous()
    x_NP, y_NP = x_P - cx, y_P - cy
    # In place: memory of this size costs more than the arithmetic.
    along_NP, across_NP = (x_NP * cos).add_(y_NP * sin), y_NP.mul_(cos).sub_(x_NP.mul_(sin))
    inside_NP: Tensor = (along_NP.abs_() <= w / 2) & (across_NP.abs_() <= h / 2)
    return inside_NP


def hellinger_distance(rboxes_N5: Tensor, targets_N5: Tensor) -> Tensor:
    """Distance 0..1 of each box from its target as Gaussians, (...,); 1 minus it is ProbIoU.

    A box is the Gaussian of the variances w²/12 along theta and h²/12 across. Sides below ``MIN_SIDE``, negative ones
    too, count as that and get no gradient. With B the Bhattacharyya distance the result is sqrt(1 - exp(-B)); at equal
    boxes, where it has a kink, value and gradient are exact zeros. Evaluated without the matrices, whose determinants
    cancel: every sum here is of terms that are not negative. In float32 the error is some 1e-7 at aspects up to
    1000:1, and 1e-4 where the angles are half a turn or more apart, of which float32 keeps fewer digits. Values and
    gradients are finite for sides and distances up to 1e7 pixels.

    Source: ProbIoU (arXiv:2106.06072); the evaluation without matrices follows from it.
    """
    w, h = rboxes_N5[..., 2:4].clamp(min=MIN_SIDE).unbind(-1)
    target_w, target_h = targets_N5[..., 2:4].clamp(min=MIN_SIDE).unbind(-1)
    theta, target_theta = rboxes_N5[..., 4], targets_N5[..., 4]
    scale = (w * h).sqrt() * (target_w * target_h).sqrt()

    # det(S1 + S2) / 4 sqrt(det S1 det S2) - 1, from products of sides. The first two differences are taken apart, so
    # that they stay exact where the boxes are almost equal.
    dw, dh, turn = w - target_w, h - target_h, theta - target_theta
    size = (dw * h + target_w * dh) / (2 * scale)
    aspect = (dw * h - w * dh) / (2 * scale)
    crossed = (w * target_w - h * target_h) / (2 * scale)
    excess = size.square() + (turn.cos() * aspect).square() + (turn.sin() * crossed).square()

    dx, dy = ((rboxes_N5[..., :2] - targets_N5[..., :2]) / scale.unsqueeze(-1)).unbind(-1)
    apart = torch.zeros_like(scale)
    for long, short, angle in ((w, h, theta), (target_w, target_h, target_theta)):
        cos, sin = angle.cos(), angle.sin()
        apart = apart + (short * (dx * cos + dy * sin)).square() + (long * (dy * cos - dx * sin)).square()

    distance = 0.75 * apart / (1 + excess) + excess.log1p() / 2
    squared = -torch.expm1(-distance)
    # The square root has no gradient at zero: NaN would come back from there. A NaN is not equal, and stays.
    equal = squared <= 1e-20
    return torch.where(equal, 0.0, torch.where(equal, 1.0, squared).sqrt())
