"""What the losses of all tasks share: branches assigned, the terms of detection, and the branches of a term blended.

Shape suffixes: 2 branches (one-to-many, one-to-one), B images, A anchors, C classes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lucid.models.assigners import TaskAlignedAssigner
from lucid.models.losses.classification import soft_cross_entropy
from lucid.models.losses.regression import distance_loss, keep_foreground, overlap_loss
from lucid.registry import TASK_UTILS
from lucid.structures import AnchorGrid, Assignment, DenseOutputs, Targets
from lucid.structures.anchors import decode_boxes

ONE_TO_MANY: Mapping[str, Any] = {'type': 'TaskAlignedAssigner', 'topk': 10}
ONE_TO_ONE: Mapping[str, Any] = {'type': 'TaskAlignedAssigner', 'topk': 7, 'topk_final': 1}


class Branches(NamedTuple):
    """Both branches, assigned; everything floating in the dtype of the loss.

    logits_2:      of each branch, (B, A, C)
    boxes_2BA4:    decoded, xyxy pixels
    pair:          what each branch is assigned
    foreground_2BA, truth_2BA4, weight_2BA: of the pair, stacked
    norm_2:        W, the sum of the soft weights over the batch, at least 1
    """

    logits_2: list[Tensor]
    boxes_2BA4: Tensor
    pair: list[Assignment]
    foreground_2BA: Tensor
    truth_2BA4: Tensor
    weight_2BA: Tensor
    norm_2: Tensor


def build_assigner(stated: Mapping[str, Any], default: Mapping[str, Any]) -> TaskAlignedAssigner:
    """The assigner of a config: what it states, over the default unless it states another type."""
    type_of = {'type': default['type'], **stated}['type']
    same = type_of in (default['type'], TASK_UTILS.get(default['type']))
    built: TaskAlignedAssigner = TASK_UTILS.build({**default, **stated} if same else dict(stated))
    return built


def check_gains(**gains: float) -> None:
    """Raise ``ValueError`` for a gain of a config that is negative or no finite number."""
    for name, gain in gains.items():
        if not 0 <= gain < math.inf:
            raise ValueError(f'model.loss.{name}={gain} is negative or not finite; make it 0 or more')


def loss_dtype(outputs: DenseOutputs) -> torch.dtype:
    """What a loss computes in: float32, or float64 if the boxes are."""
    return torch.promote_types(outputs.o2m_boxes_BA4.dtype, torch.float32)


def assign_branches(
    outputs: DenseOutputs,
    targets: Targets,
    grid: AnchorGrid,
    *,
    num_classes: int,
    assigners: Sequence[TaskAlignedAssigner],
    picks: bool = False,
) -> Branches:
    """Decode the boxes of both branches and assign each branch from its own predictions.

    Args:
        outputs: raw outputs of the network, any floating dtype.
        targets: padded ground truth; rows that are not valid may hold anything.
        grid: where the anchors are.
        num_classes: the C that the logits must have.
        assigners: of the one-to-many and of the one-to-one branch.
        picks: narrow the picks of each box to those that it may keep, for losses over picks.

    Returns:
        New tensors; gradients reach the outputs through ``logits_2`` and ``boxes_2BA4``.

    Raises:
        ValueError: the logits have another number of classes than ``num_classes``.
    """
    found = outputs.o2m_logits_BAC.shape[-1]
    if found != num_classes:
        raise ValueError(
            f'the head predicts {found} classes and the loss has num_classes={num_classes}; '
            'give both the number of classes of the data'
        )
    dtype = loss_dtype(outputs)
    logits_2 = [outputs.o2m_logits_BAC.to(dtype), outputs.o2o_logits_BAC.to(dtype)]
    # Many small operations: both branches in one. The logits are too large to be worth a copy.
    raw_2BA4 = torch.stack((outputs.o2m_boxes_BA4, outputs.o2o_boxes_BA4)).to(dtype)
    boxes_2BA4 = decode_boxes(raw_2BA4, grid)

    pair = [
        assigner.assign(logits_BAC, boxes_BA4, targets, grid)
        for assigner, logits_BAC, boxes_BA4 in zip(assigners, logits_2, boxes_2BA4, strict=True)
    ]
    if picks:
        pair = [assigner.narrowed(one) for assigner, one in zip(assigners, pair, strict=True)]
    weight_2BA = torch.stack([one.weight_BA for one in pair])
    return Branches(
        logits_2=logits_2,
        boxes_2BA4=boxes_2BA4,
        pair=pair,
        foreground_2BA=torch.stack([one.foreground_BA for one in pair]),
        truth_2BA4=torch.stack([one.boxes_BA4 for one in pair]),
        weight_2BA=weight_2BA,
        norm_2=weight_2BA.sum(dim=(1, 2)).clamp(min=1),
    )


def class_sums(branches: Branches) -> Tensor:
    """Binary cross entropy of each branch, summed over images, anchors and classes, (2,)."""
    return torch.stack(
        [
            soft_cross_entropy(logits_BAC, one.labels_BA, one.weight_BA)
            for logits_BAC, one in zip(branches.logits_2, branches.pair, strict=True)
        ]
    )


def detection_terms(
    branches: Branches, grid: AnchorGrid, *, box_gain: float, cls_gain: float, l1_gain: float
) -> dict[str, Tensor]:
    """``box``, ``cls`` and ``l1`` of each branch, (2,), gains applied, over the branch's norm."""
    boxes_2BA4 = keep_foreground(branches.boxes_2BA4, branches.foreground_2BA)
    weight_2BA, norm_2 = branches.weight_2BA, branches.norm_2
    cls_2 = class_sums(branches)
    box_2 = overlap_loss(boxes_2BA4, branches.truth_2BA4, weight_2BA).sum(dim=(1, 2))
    l1_2 = distance_loss(boxes_2BA4, branches.truth_2BA4, weight_2BA, grid.strides_A).sum(dim=(1, 2))
    return {'box': box_gain * box_2 / norm_2, 'cls': cls_gain * cls_2 / norm_2, 'l1': l1_gain * l1_2 / norm_2}


def blend(branch_weight: Tensor, terms_2: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The branches of each term blended, ``loss_<name>``, then for the log each branch's own, detached.

    The branch weight, 0-d, is that of one-to-many; one-to-one gets the rest.
    """
    losses: dict[str, Tensor] = {}
    log: dict[str, Tensor] = {}
    for name, term_2 in terms_2.items():
        o2m, o2o = term_2
        weight = branch_weight.to(term_2.dtype)
        losses[f'loss_{name}'] = weight * o2m + (1 - weight) * o2o
        log |= {f'o2m_{name}': o2m.detach(), f'o2o_{name}': o2o.detach()}
    return losses | log
