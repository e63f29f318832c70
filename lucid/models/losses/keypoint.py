"""The keypoint loss of both branches.

Shape suffixes: 2 branches (one-to-many, one-to-one), B images, M boxes per image, P anchors that a box may keep,
of both branches together, A anchors, J keypoints.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
from lucid.models.losses.flow import RealNVP
from lucid.registry import LOSSES
from lucid.structures import AnchorGrid, Assignment, KeypointOutputs, Targets
from lucid.structures.anchors import gather_anchors
from lucid.structures.points import COCO_SIGMAS

UNIFORM_SIGMA = 0.072
"""Of each keypoint of a scheme that is not COCO's."""

MIN_SPREAD = 1e-6


class Pairs(NamedTuple):
    """Predicted and true points of the positives of both branches, the one-to-one's after the others along P.

    labelled_BMPJ: bool; what follows holds harmless numbers where it is False
    points_BMPJ2:  predicted, pixels
    truth_BMPJ2:   pixels
    spread_BMPJ2:  predicted, in units of the box's sides, above 0
    sides_BM2:     width and height of the true box, pixels
    """

    labelled_BMPJ: Tensor
    points_BMPJ2: Tensor
    truth_BMPJ2: Tensor
    spread_BMPJ2: Tensor
    sides_BM2: Tensor


@LOSSES.register_module()
class KeypointLoss(nn.Module):
    """The terms of ``DetectionLoss``, and the residual log-likelihood of the keypoints of both branches.

    A residual x is true minus predicted point, per axis in units of the true box's side (at least a pixel) and of the
    predicted spread s = sigmoid(raw). keypoint, per branch: mean over the labelled points (visibility above 0, hidden
    ones too) of the positives, at least 1, of |x| + ln 2 + ln s, summed over the axes, minus ln G(x), G a density that
    is learned with the model: ``flow``, the same for both branches, whose parameters belong to this module. Without
    it the distribution of x is Laplace's.

    oks, with a gain: mean over the positives that have a labelled point of 1 - OKS, the true box's area (at least a
    square pixel) for the object's.

    Points are those of the positives, at fixed capacity, so that nothing is read on the host and no shape depends on
    data. At equal capacity equal batches give equal bits; at another, the terms of points and their gradients differ
    by rounding. Boxes and classes have the same bits at every capacity.

    Args:
        num_classes: the C that the logits must have.
        num_keypoints: the J that outputs and targets must have.
        keypoint_gain: of the residual log-likelihood.
        oks_gain: of the OKS term; at 0 it is not computed.
        sigmas: J numbers above 0, of OKS; None is COCO's table for 17 points and 0.072 each for another number.
        flow: learn the density of the residuals; False is the Laplace control.
        box_gain: of the CIoU term.
        cls_gain: of the classification term.
        l1_gain: of the L1 term.
        assigner_o2m: config of the one-to-many assigner; what it states changes the default, unless it is another type.
        assigner_o2o: config of the one-to-one assigner; likewise.

    Attributes:
        branch_weight: as of ``DetectionLoss``.

    Raises:
        ValueError: ``num_keypoints`` is below 1, ``sigmas`` are not as many numbers above 0, or a gain is below 0.

    Source: YOLO26 (arXiv:2606.03748) sec. 3.4.2 Eq. 10, 11; residual log-likelihood estimation (arXiv:2107.11291)
    Eq. 8, in which ln s stands once. Units of the box's sides, and one flow for both branches, are open gaps.
    """

    branch_weight: Tensor
    sigmas_J: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        num_keypoints: int,
        keypoint_gain: float = 1.0,
        oks_gain: float = 0.0,
        sigmas: Sequence[float] | None = None,
        flow: bool = True,
        box_gain: float = 7.5,
        cls_gain: float = 0.5,
        l1_gain: float = 6.0,
        assigner_o2m: Mapping[str, Any] = ONE_TO_MANY,
        assigner_o2o: Mapping[str, Any] = ONE_TO_ONE,
    ) -> None:
        super().__init__()
        if num_keypoints < 1:
            raise ValueError(f'num_keypoints={num_keypoints} leaves nothing to learn; make it 1 or more')
        if sigmas is None:
            sigmas = COCO_SIGMAS if num_keypoints == len(COCO_SIGMAS) else (UNIFORM_SIGMA,) * num_keypoints
        if len(sigmas) != num_keypoints or not all(0 < sigma < math.inf for sigma in sigmas):
            raise ValueError(
                f'sigmas={tuple(sigmas)} are not num_keypoints={num_keypoints} numbers above 0; '
                'give one per keypoint, or None for the usual ones'
            )
        check_gains(
            keypoint_gain=keypoint_gain, oks_gain=oks_gain, box_gain=box_gain, cls_gain=cls_gain, l1_gain=l1_gain
        )
        self.num_classes = num_classes
        self.num_keypoints = num_keypoints
        self.keypoint_gain = keypoint_gain
        self.oks_gain = oks_gain
        self.box_gain = box_gain
        self.cls_gain = cls_gain
        self.l1_gain = l1_gain
        self.assigner_o2m = build_assigner(assigner_o2m, ONE_TO_MANY)
        self.assigner_o2o = build_assigner(assigner_o2o, ONE_TO_ONE)
        self.register_buffer('branch_weight', torch.tensor(0.5), persistent=False)
        self.register_buffer('sigmas_J', torch.tensor(sigmas), persistent=False)
        self.flow = RealNVP() if flow else None

    def forward(self, outputs: KeypointOutputs, targets: Targets, grid: AnchorGrid) -> dict[str, Tensor]:
        """The loss terms, 0-d, on the device of the outputs; computed in float32, or float64 if the boxes are.

        Args:
            outputs: raw outputs of the network, any floating dtype.
            targets: padded ground truth with keypoints; rows that are not valid, and points that are not labelled, may
                hold anything.
            grid: where the anchors are.

        Returns:
            ``loss_box``, ``loss_cls``, ``loss_l1``, ``loss_keypoint`` and, with a gain, ``loss_oks``, gains and branch
            weight applied, whose sum is the loss; and for the log, detached, ``o2m_`` and ``o2o_`` of each, gains
            applied, branch weight not.

        Raises:
            ValueError: the logits have another number of classes than ``num_classes``, outputs or targets another
                number of keypoints than ``num_keypoints``, or the targets have none.
        """
        keypoints_BMJ3 = self._keypoints(targets, outputs)
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
        pairs = _pair_points(outputs, branches.pair, keypoints_BMJ3.to(dtype), targets.boxes_BM4.to(dtype), grid)
        num_picks = [one.kept_BMP.shape[2] for one in branches.pair]

        negative_BMPJ = torch.where(pairs.labelled_BMPJ, self._negative_log_likelihood(pairs), 0.0)
        terms_2['keypoint'] = self.keypoint_gain * _means(negative_BMPJ, pairs.labelled_BMPJ, num_picks)
        if self.oks_gain:
            counted_BMP = pairs.labelled_BMPJ.any(dim=-1)
            missing_BMP = torch.where(counted_BMP, 1 - similarity(pairs, self.sigmas_J.to(dtype)), 0.0)
            terms_2['oks'] = self.oks_gain * _means(missing_BMP, counted_BMP, num_picks)
        return blend(self.branch_weight, terms_2)

    def _negative_log_likelihood(self, pairs: Pairs) -> Tensor:
        """Of each point, (B, M, P, J), in units of the box's sides."""
        units_BM112 = pairs.sides_BM2.clamp(min=1)[:, :, None, None]
        offset_BMPJ2 = (pairs.truth_BMPJ2 - pairs.points_BMPJ2) / units_BM112
        residual_BMPJ2 = offset_BMPJ2 / pairs.spread_BMPJ2
        negative_BMPJ = (residual_BMPJ2.abs() + math.log(2) + pairs.spread_BMPJ2.log()).sum(dim=-1)
        return negative_BMPJ if self.flow is None else negative_BMPJ - self.flow(residual_BMPJ2)

    def _keypoints(self, targets: Targets, outputs: KeypointOutputs) -> Tensor:
        """The keypoints of the targets; ValueError where there are none, or another number of them."""
        if targets.keypoints_BMJ3 is None:
            raise ValueError(
                "KeypointLoss needs keypoints and the targets have none; give the data set targets=('boxes', "
                "'keypoints')"
            )
        found = {'head': outputs.o2m_points_BAJ2.shape[2], 'data': targets.keypoints_BMJ3.shape[2]}
        if set(found.values()) != {self.num_keypoints}:
            raise ValueError(
                f'the head predicts {found["head"]} keypoints, the targets have {found["data"]} and the loss has '
                f'num_keypoints={self.num_keypoints}; give head and loss the number of the data'
            )
        return targets.keypoints_BMJ3


def similarity(pairs: Pairs, sigmas_J: Tensor) -> Tensor:
    """OKS of each positive over its labelled points, (B, M, P); 0 where it has none."""
    squares_BMPJ = (pairs.truth_BMPJ2 - pairs.points_BMPJ2).square().sum(dim=-1)
    area_BM11 = pairs.sides_BM2.prod(dim=-1).clamp(min=1)[:, :, None, None]
    each_BMPJ = torch.exp(-squares_BMPJ / (2 * area_BM11 * (2 * sigmas_J).square()))
    num_BMP = pairs.labelled_BMPJ.sum(dim=-1).clamp(min=1)
    return torch.where(pairs.labelled_BMPJ, each_BMPJ, 0.0).sum(dim=-1) / num_BMP


def _pair_points(
    outputs: KeypointOutputs, pair: Sequence[Assignment], keypoints_BMJ3: Tensor, boxes_BM4: Tensor, grid: AnchorGrid
) -> Pairs:
    dtype = boxes_BM4.dtype
    points_2, spreads_2 = [], []
    predicted = (
        (outputs.o2m_points_BAJ2, outputs.o2m_sigmas_BAJ2),
        (outputs.o2o_points_BAJ2, outputs.o2o_sigmas_BAJ2),
    )
    for one, (offsets_BAJ2, raw_BAJ2) in zip(pair, predicted, strict=True):
        picks_BN, shape = one.picks_BMP.flatten(1), one.picks_BMP.shape[1:]
        offsets_BNJ2 = gather_anchors(offsets_BAJ2, picks_BN).to(dtype)
        centers_BN12, strides_BN11 = grid.centers_A2[picks_BN].unsqueeze(2), grid.strides_A[picks_BN][..., None, None]
        points_2.append((centers_BN12 + offsets_BNJ2 * strides_BN11).unflatten(1, shape))
        spreads_2.append(gather_anchors(raw_BAJ2, picks_BN).to(dtype).unflatten(1, shape))

    kept_BMP = torch.cat([one.kept_BMP for one in pair], dim=2)
    labelled_BMPJ = kept_BMP.unsqueeze(-1) & (keypoints_BMJ3[:, :, None, :, 2] > 0)
    labelled_BMPJ1 = labelled_BMPJ.unsqueeze(-1)
    sides_BM2 = torch.where(kept_BMP.any(dim=2).unsqueeze(-1), boxes_BM4[..., 2:] - boxes_BM4[..., :2], 1.0)
    return Pairs(
        labelled_BMPJ=labelled_BMPJ,
        points_BMPJ2=torch.where(labelled_BMPJ1, torch.cat(points_2, dim=2), 0.0),
        truth_BMPJ2=torch.where(labelled_BMPJ1, keypoints_BMJ3[:, :, None, :, :2], 0.0),
        spread_BMPJ2=torch.where(labelled_BMPJ1, torch.cat(spreads_2, dim=2), 0.0).sigmoid().clamp(min=MIN_SPREAD),
        sides_BM2=sides_BM2,
    )


def _means(values_BMP: Tensor, counted_BMP: Tensor, num_picks: Sequence[int]) -> Tensor:
    """The mean of each branch over what is counted, (2,); the values are zero elsewhere."""
    sums_2, counts_2 = (
        torch.stack([part.sum() for part in tensor.split(tuple(num_picks), dim=2)])
        for tensor in (values_BMP, counted_BMP)
    )
    return sums_2 / counts_2.clamp(min=1)
