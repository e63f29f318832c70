"""The loss of oriented boxes, of both branches.

Shape suffixes: 2 branches (one-to-many, one-to-one), B images, A anchors; a rotated box has 5 numbers.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lucid.models.losses.branches import (
    ONE_TO_MANY,
    ONE_TO_ONE,
    Branches,
    assign_branches,
    blend,
    build_assigner,
    check_gains,
    class_sums,
)
from lucid.models.losses.regression import distance_loss, keep_foreground
from lucid.registry import LOSSES
from lucid.structures import AnchorGrid, OrientedOutputs, Targets
from lucid.structures.rotated_tensors import MIN_SIDE, compose_rboxes, hellinger_distance

ROTATED: Mapping[str, Any] = {'rotated': True}


@LOSSES.register_module()
class OrientedLoss(nn.Module):
    """Classification, Hellinger distance, L1 and angle of rotated boxes, of both branches, blended by branch weight.

    Per branch, with q the soft weights and W = max(sum of q over the batch, 1): cls as in ``DetectionLoss``;
    rbox = sum of q·H / W, H the Hellinger distance of ProbIoU; rl1 = sum of q·|cx, cy, w, h in pixels| / stride / W;
    angle = sum of q·o·sin²(2(theta - theta*)) / W, with o = exp(-ln²(w*/h*) / aspect_scale²). Theta is the angle that
    the head gives, not folded: half a turn more changes none of the terms.

    Each branch is assigned from its upright boxes and those around the rotated truth; only the candidates lie in the
    rotated rectangles. The upright boxes have no loss of their own, and none is logged: it would cost as much as the
    rotated one. All terms are computed for every anchor and masked: the bits do not depend on the capacity.

    Args:
        num_classes: the C that the logits must have.
        rbox_gain: of the Hellinger distance.
        rl1_gain: of the L1 term.
        angle_gain: of the angle term; 1 is reported to destabilise elongated boxes.
        cls_gain: of the classification term.
        aspect_scale: logarithm of the aspect at which the angle term has lost a factor of e.
        assigner_o2m: config of the one-to-many assigner; what it states changes the default, unless it is another type.
        assigner_o2o: config of the one-to-one assigner; likewise.

    Attributes:
        branch_weight: as of ``DetectionLoss``.

    Raises:
        ValueError: ``aspect_scale`` is not above 0, or a gain is below.

    Source: YOLO26 (arXiv:2606.03748) sec. 3.4.3 Eq. 13 to 15; ProbIoU (arXiv:2106.06072). The gain of the angle is
    nowhere published.
    """

    branch_weight: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        rbox_gain: float = 7.5,
        rl1_gain: float = 6.0,
        angle_gain: float = 0.25,
        cls_gain: float = 0.5,
        aspect_scale: float = 3.0,
        assigner_o2m: Mapping[str, Any] = ROTATED,
        assigner_o2o: Mapping[str, Any] = ROTATED,
    ) -> None:
        super().__init__()
        check_gains(rbox_gain=rbox_gain, rl1_gain=rl1_gain, angle_gain=angle_gain, cls_gain=cls_gain)
        if not aspect_scale > 0:
            raise ValueError(f'aspect_scale={aspect_scale} is not above 0; the published value is 3')
        self.num_classes = num_classes
        self.rbox_gain = rbox_gain
        self.rl1_gain = rl1_gain
        self.angle_gain = angle_gain
        self.cls_gain = cls_gain
        self.aspect_scale = aspect_scale
        self.assigner_o2m = build_assigner(assigner_o2m, {**ONE_TO_MANY, **ROTATED})
        self.assigner_o2o = build_assigner(assigner_o2o, {**ONE_TO_ONE, **ROTATED})
        self.register_buffer('branch_weight', torch.tensor(0.5), persistent=False)

    def forward(self, outputs: OrientedOutputs, targets: Targets, grid: AnchorGrid) -> dict[str, Tensor]:
        """The loss terms, 0-d, on the device of the outputs; computed in float32, or float64 if the boxes are.

        Args:
            outputs: raw outputs of the network, any floating dtype.
            targets: padded ground truth with rotated boxes; rows that are not valid may hold anything.
            grid: where the anchors are.

        Returns:
            ``loss_cls``, ``loss_rbox``, ``loss_rl1`` and ``loss_angle``, gains and branch weight applied, whose sum is
            the loss; and for the log, detached, ``o2m_`` and ``o2o_`` of each, gains applied, branch weight not.

        Raises:
            ValueError: the logits have another number of classes than ``num_classes``, or the targets have no rotated
                boxes.
        """
        if targets.rboxes_BM5 is None:
            raise ValueError(
                "OrientedLoss needs rotated boxes and the targets have none; give the data set targets=('boxes', "
                "'rboxes')"
            )
        branches = assign_branches(
            outputs,
            targets,
            grid,
            num_classes=self.num_classes,
            assigners=(self.assigner_o2m, self.assigner_o2o),
        )
        dtype = branches.boxes_2BA4.dtype
        angles_2BA1 = torch.stack((outputs.o2m_angles_BA1, outputs.o2o_angles_BA1)).to(dtype)
        rboxes_2BA5 = keep_foreground(compose_rboxes(branches.boxes_2BA4, angles_2BA1), branches.foreground_2BA)
        truth_2BA5 = _assigned(targets.rboxes_BM5.to(dtype), branches)

        weight_2BA, norm_2 = branches.weight_2BA, branches.norm_2
        cls_2 = class_sums(branches)
        rbox_2 = (weight_2BA * hellinger_distance(rboxes_2BA5, truth_2BA5)).sum(dim=(1, 2))
        rl1_2 = distance_loss(rboxes_2BA5[..., :4], truth_2BA5[..., :4], weight_2BA, grid.strides_A).sum(dim=(1, 2))
        angle_2 = (weight_2BA * angle_loss(rboxes_2BA5, truth_2BA5, aspect_scale=self.aspect_scale)).sum(dim=(1, 2))
        terms_2 = {
            'cls': self.cls_gain * cls_2 / norm_2,
            'rbox': self.rbox_gain * rbox_2 / norm_2,
            'rl1': self.rl1_gain * rl1_2 / norm_2,
            'angle': self.angle_gain * angle_2 / norm_2,
        }
        return blend(self.branch_weight, terms_2)


def angle_loss(rboxes_N5: Tensor, targets_N5: Tensor, *, aspect_scale: float) -> Tensor:
    """``sin²(2 · difference)`` weighted by the target's aspect, (..., N); a period is a quarter turn."""
    turn_N = rboxes_N5[..., 4] - targets_N5[..., 4]
    long_N, short_N = targets_N5[..., 2:4].clamp(min=MIN_SIDE).log().unbind(-1)
    weight_N = torch.exp(-((long_N - short_N) / aspect_scale).square())
    return weight_N * (2 * turn_N).sin().square()


def _assigned(rboxes_BM5: Tensor, branches: Branches) -> Tensor:
    """The rotated box of each anchor's row, (2, B, A, 5), zeros in the background."""
    # One more row stands for the background.
    padded_BM5 = F.pad(rboxes_BM5, (0, 0, 0, 1))
    background = rboxes_BM5.shape[1]
    rows_2BA = [torch.where(one.foreground_BA, one.index_BA, background) for one in branches.pair]
    return torch.stack([padded_BM5.gather(1, rows_BA.unsqueeze(-1).expand(-1, -1, 5)) for rows_BA in rows_2BA])
