"""The detection loss of both branches.

Shape suffixes: 2 branches (one-to-many, one-to-one), B images, A anchors, C classes.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lucid.models.losses.branches import (
    ONE_TO_MANY,
    ONE_TO_ONE,
    assign_branches,
    blend,
    build_assigner,
    check_gains,
    detection_terms,
)
from lucid.registry import LOSSES
from lucid.structures import AnchorGrid, DenseOutputs, Targets


@LOSSES.register_module()
class DetectionLoss(nn.Module):
    """Classification, CIoU and L1 of the one-to-many and the one-to-one branch, each assigned from its own predictions.

    Per branch, with q the soft weights and W = max(sum of q over the batch, 1): cls = sum of BCE / W,
    box = sum of q·(1 - CIoU) / W, l1 = sum of q·|pixels| / stride / W. The branches are blended with the branch weight.

    All terms are computed for every anchor and masked, so that nothing is read on the host and no shape depends on
    data; an image without boxes, or a batch without any, is no special case.

    Args:
        num_classes: the C that the logits must have.
        box_gain: of the CIoU term.
        cls_gain: of the classification term.
        l1_gain: of the L1 term.
        assigner_o2m: config of the one-to-many assigner; what it states changes the default, unless it is another type.
        assigner_o2o: config of the one-to-one assigner; likewise.

    Attributes:
        branch_weight: the weight of one-to-many, a 0-d float32 buffer outside the ``state_dict``; one-to-one gets the
            rest. Whoever schedules it fills it in place, because a recording reads this address.

    Source: YOLO26 (arXiv:2606.03748) Eq. 2 and 3, Table S2; TOOD (arXiv:2108.07755).
    """

    branch_weight: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        box_gain: float = 7.5,
        cls_gain: float = 0.5,
        l1_gain: float = 6.0,
        assigner_o2m: Mapping[str, Any] = ONE_TO_MANY,
        assigner_o2o: Mapping[str, Any] = ONE_TO_ONE,
    ) -> None:
        super().__init__()
        check_gains(box_gain=box_gain, cls_gain=cls_gain, l1_gain=l1_gain)
        self.num_classes = num_classes
        self.box_gain = box_gain
        self.cls_gain = cls_gain
        self.l1_gain = l1_gain
        self.assigner_o2m = build_assigner(assigner_o2m, ONE_TO_MANY)
        self.assigner_o2o = build_assigner(assigner_o2o, ONE_TO_ONE)
        self.register_buffer('branch_weight', torch.tensor(0.5), persistent=False)

    def forward(self, outputs: DenseOutputs, targets: Targets, grid: AnchorGrid) -> dict[str, Tensor]:
        """The loss terms, 0-d, on the device of the outputs; computed in float32, or float64 if the boxes are.

        Args:
            outputs: raw outputs of the network, any floating dtype.
            targets: padded ground truth; rows that are not valid may hold anything.
            grid: where the anchors are.

        Returns:
            ``loss_box``, ``loss_cls`` and ``loss_l1``, gains and branch weight applied, whose sum is the loss; and for
            the log, detached, ``o2m_`` and ``o2o_`` ``box``, ``cls`` and ``l1``, gains applied, branch weight not.

        Raises:
            ValueError: the logits have another number of classes than ``num_classes``.
        """
        branches = assign_branches(
            outputs,
            targets,
            grid,
            num_classes=self.num_classes,
            assigners=(self.assigner_o2m, self.assigner_o2o),
        )
        terms_2 = detection_terms(branches, grid, box_gain=self.box_gain, cls_gain=self.cls_gain, l1_gain=self.l1_gain)
        return blend(self.branch_weight, terms_2)
