"""The detection loss of both branches.

Shape suffixes: 2 branches (one-to-many, one-to-one), B images, A anchors, C classes.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lucid.models.losses.classification import soft_cross_entropy
from lucid.models.losses.regression import distance_loss, keep_foreground, overlap_loss
from lucid.registry import LOSSES, TASK_UTILS
from lucid.structures import AnchorGrid, RawOutputs, Targets
from lucid.structures.anchors import decode_boxes

ONE_TO_MANY: Mapping[str, Any] = {'type': 'TaskAlignedAssigner', 'topk': 10}
ONE_TO_ONE: Mapping[str, Any] = {'type': 'TaskAlignedAssigner', 'topk': 7, 'topk_final': 1}


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
        assigner_o2m: config of the one-to-many assigner; without a type, what it states changes the default.
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
        self.num_classes = num_classes
        self.box_gain = box_gain
        self.cls_gain = cls_gain
        self.l1_gain = l1_gain
        self.assigner_o2m = TASK_UTILS.build(_completed(assigner_o2m, ONE_TO_MANY))
        self.assigner_o2o = TASK_UTILS.build(_completed(assigner_o2o, ONE_TO_ONE))
        self.register_buffer('branch_weight', torch.tensor(0.5), persistent=False)

    def forward(self, outputs: RawOutputs, targets: Targets, grid: AnchorGrid) -> dict[str, Tensor]:
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
        found = outputs.o2m_logits_BAC.shape[-1]
        if found != self.num_classes:
            raise ValueError(
                f'the head predicts {found} classes and the loss has num_classes={self.num_classes}; '
                'give both the number of classes of the data'
            )
        dtype = torch.promote_types(outputs.o2m_boxes_BA4.dtype, torch.float32)
        logits_2 = [outputs.o2m_logits_BAC.to(dtype), outputs.o2o_logits_BAC.to(dtype)]
        # Many small operations: both branches in one. The logits are too large to be worth a copy.
        raw_2BA4 = torch.stack((outputs.o2m_boxes_BA4, outputs.o2o_boxes_BA4)).to(dtype)
        boxes_2BA4 = decode_boxes(raw_2BA4, grid)

        pair = [
            assigner.assign(logits_BAC, boxes_BA4, targets, grid)
            for assigner, logits_BAC, boxes_BA4 in zip(
                (self.assigner_o2m, self.assigner_o2o), logits_2, boxes_2BA4, strict=True
            )
        ]
        foreground_2BA = torch.stack([one.foreground_BA for one in pair])
        truth_2BA4 = torch.stack([one.boxes_BA4 for one in pair])
        weight_2BA = torch.stack([one.weight_BA for one in pair])
        norm_2 = weight_2BA.sum(dim=(1, 2)).clamp(min=1)

        cls_2 = torch.stack(
            [
                soft_cross_entropy(logits_BAC, one.labels_BA, one.weight_BA)
                for logits_BAC, one in zip(logits_2, pair, strict=True)
            ]
        )
        boxes_2BA4 = keep_foreground(boxes_2BA4, foreground_2BA)
        box_2 = overlap_loss(boxes_2BA4, truth_2BA4, weight_2BA).sum(dim=(1, 2))
        l1_2 = distance_loss(boxes_2BA4, truth_2BA4, weight_2BA, grid.strides_A).sum(dim=(1, 2))
        return self._blend(
            box=self.box_gain * box_2 / norm_2, cls=self.cls_gain * cls_2 / norm_2, l1=self.l1_gain * l1_2 / norm_2
        )

    def _blend(self, **terms_2: Tensor) -> dict[str, Tensor]:
        """The branches of each term blended, and each branch's own for the log."""
        losses: dict[str, Tensor] = {}
        log: dict[str, Tensor] = {}
        for name, term_2 in terms_2.items():
            o2m, o2o = term_2
            weight = self.branch_weight.to(term_2.dtype)
            losses[f'loss_{name}'] = weight * o2m + (1 - weight) * o2o
            log |= {f'o2m_{name}': o2m.detach(), f'o2o_{name}': o2o.detach()}
        return losses | log


def _completed(assigner: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """What a config states about an assigner, over the default unless it states a type of its own."""
    return dict(assigner) if 'type' in assigner else {**default, **assigner}
