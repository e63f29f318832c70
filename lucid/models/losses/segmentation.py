"""The segmentation loss of both branches.

Shape suffixes: 2 branches (one-to-many, one-to-one), B images, M boxes per image, P anchors that a box may keep,
A anchors, K prototypes, C classes, H, W cells of a map.
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
from lucid.models.losses.masks import class_map, mask_sum, semantic_loss
from lucid.registry import LOSSES
from lucid.structures import MASK_STRIDE, AnchorGrid, Assignment, SegmentOutputs, Targets
from lucid.structures.anchors import gather_anchors


@LOSSES.register_module()
class SegmentationLoss(nn.Module):
    """The terms of ``DetectionLoss``, masks of both branches, and the semantic map of training.

    mask, per branch: mean over the positives of the batch (at least 1) of the cross entropy of a mask inside its true
    box over the box's area in cells; the soft weights play no part. Blended with the branch weight.

    semantic, of neither branch: mean cross entropy plus Dice of each class's cells against the union of its masks.
    There is no such term where the outputs have no semantic map.

    Masks are those of the positives, at fixed capacity, so that nothing is read on the host and no shape depends on
    data. At equal capacity equal batches give equal bits; at another, the mask term and its gradients differ by
    rounding, because a matrix product over the boxes adds up in another order. Boxes, classes and the semantic map
    have the same bits at every capacity.

    Args:
        num_classes: the C that the logits must have.
        mask_gain: of the mask term.
        semantic_gain: of the semantic term.
        box_gain: of the CIoU term.
        cls_gain: of the classification term.
        l1_gain: of the L1 term.
        assigner_o2m: config of the one-to-many assigner; what it states changes the default, unless it is another type.
        assigner_o2o: config of the one-to-one assigner; likewise.

    Attributes:
        branch_weight: as of ``DetectionLoss``.

    Source: YOLO26 (arXiv:2606.03748) sec. 3.4.1 Eq. 7; YOLACT (arXiv:1904.02689) sec. 3.2, 3.3. Neither gain is
    published.
    """

    branch_weight: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        mask_gain: float = 2.5,
        semantic_gain: float = 0.5,
        box_gain: float = 7.5,
        cls_gain: float = 0.5,
        l1_gain: float = 6.0,
        assigner_o2m: Mapping[str, Any] = ONE_TO_MANY,
        assigner_o2o: Mapping[str, Any] = ONE_TO_ONE,
    ) -> None:
        super().__init__()
        check_gains(
            mask_gain=mask_gain, semantic_gain=semantic_gain, box_gain=box_gain, cls_gain=cls_gain, l1_gain=l1_gain
        )
        self.num_classes = num_classes
        self.mask_gain = mask_gain
        self.semantic_gain = semantic_gain
        self.box_gain = box_gain
        self.cls_gain = cls_gain
        self.l1_gain = l1_gain
        self.assigner_o2m = build_assigner(assigner_o2m, ONE_TO_MANY)
        self.assigner_o2o = build_assigner(assigner_o2o, ONE_TO_ONE)
        self.register_buffer('branch_weight', torch.tensor(0.5), persistent=False)

    def forward(self, outputs: SegmentOutputs, targets: Targets, grid: AnchorGrid) -> dict[str, Tensor]:
        """The loss terms, 0-d, on the device of the outputs; computed in float32, or float64 if the boxes are.

        Args:
            outputs: raw outputs of the network, any floating dtype.
            targets: padded ground truth with masks; rows that are not valid may hold anything.
            grid: where the anchors are.

        Returns:
            ``loss_box``, ``loss_cls``, ``loss_l1``, ``loss_mask`` and, with a semantic map, ``loss_semantic``, gains
            and branch weight applied, whose sum is the loss; and for the log, detached, ``o2m_`` and ``o2o_`` of the
            first four, gains applied, branch weight not, and ``semantic``.

        Raises:
            ValueError: the logits have another number of classes than ``num_classes``, the targets have no masks, or
                the maps of outputs and targets do not fit together.
        """
        masks_BMHW = _masks(targets, outputs)
        branches = assign_branches(
            outputs,
            targets,
            grid,
            num_classes=self.num_classes,
            assigners=(self.assigner_o2m, self.assigner_o2o),
            picks=True,
        )
        terms_2 = detection_terms(branches, grid, box_gain=self.box_gain, cls_gain=self.cls_gain, l1_gain=self.l1_gain)
        dtype = branches.boxes_2BA4.dtype
        prototypes_BKHW = outputs.prototypes_BKHW.to(dtype)
        cells_BM4 = targets.boxes_BM4.to(dtype) / MASK_STRIDE
        coefficients_2BAK = (outputs.o2m_coefficients_BAK.to(dtype), outputs.o2o_coefficients_BAK.to(dtype))
        mask_2 = torch.stack(
            [
                _mask_mean(coefficients_BAK, prototypes_BKHW, masks_BMHW, cells_BM4, one)
                for coefficients_BAK, one in zip(coefficients_2BAK, branches.pair, strict=True)
            ]
        )
        losses = blend(self.branch_weight, {**terms_2, 'mask': self.mask_gain * mask_2})
        if outputs.semantic_BCHW is None:
            return losses
        covered_BCHW = class_map(
            targets.labels_BM,
            masks_BMHW,
            targets.valid_BM,
            num_classes=self.num_classes,
            cells=masks_BMHW.shape[2] // outputs.semantic_BCHW.shape[2],
        )
        semantic = self.semantic_gain * semantic_loss(outputs.semantic_BCHW.to(dtype), covered_BCHW)
        return {**losses, 'loss_semantic': semantic, 'semantic': semantic.detach()}


def _mask_mean(
    coefficients_BAK: Tensor, prototypes_BKHW: Tensor, masks_BMHW: Tensor, cells_BM4: Tensor, assignment: Assignment
) -> Tensor:
    """The mask loss of a branch, 0-d, per positive."""
    picks_BMP, kept_BMP = assignment.picks_BMP, assignment.kept_BMP
    coefficients_BMPK = gather_anchors(coefficients_BAK, picks_BMP.flatten(1)).unflatten(1, picks_BMP.shape[1:])
    total = mask_sum(coefficients_BMPK, prototypes_BKHW, masks_BMHW, cells_BM4, kept_BMP)
    return total / kept_BMP.sum().clamp(min=1)


def _masks(targets: Targets, outputs: SegmentOutputs) -> Tensor:
    """The masks of the targets; ValueError where there are none, or a map has another size."""
    if targets.masks_BMHW is None:
        raise ValueError(
            "SegmentationLoss needs masks and the targets have none; give the data set targets=('boxes', 'masks') and "
            "the loader collate_fn=dict(type='detection_collate', masks=True)"
        )
    found, wanted = tuple(outputs.prototypes_BKHW.shape[2:]), tuple(targets.masks_BMHW.shape[2:])
    if found != wanted:
        raise ValueError(
            f'prototypes have {found} cells and the masks of the targets {wanted}; both need {MASK_STRIDE} pixels per '
            'cell: let the head make its prototypes at twice the resolution of a first level of stride 8'
        )
    if outputs.semantic_BCHW is not None:
        height, width = outputs.semantic_BCHW.shape[2:]
        if wanted[0] % height or wanted[1] % width or wanted[0] // height != wanted[1] // width:
            raise ValueError(
                f'the semantic map has {(height, width)} cells, of which the mask grid {wanted} is no whole multiple; '
                'let the head make it at the resolution of its first level'
            )
    return targets.masks_BMHW
