"""Task-aligned assignment.

Shape suffixes: B images, M boxes per image (capacity), A anchors, C classes, K anchors picked per box,
P picks per image (M · K); of an ``Assignment`` P picks per box.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lucid.models.assigners.candidates import anchors_inside, anchors_inside_rotated
from lucid.models.assigners.ranking import take_largest
from lucid.registry import TASK_UTILS
from lucid.structures import AnchorGrid, Assignment, Targets
from lucid.structures.boxes import pairwise_iou

# Pairs of a box and an anchor that are looked at together; at most 4.3 float32 tensors of this many are alive at once.
MAX_PAIRS = 2**27


@TASK_UTILS.register_module()
class TaskAlignedAssigner:
    """Gives each box its best anchors by t = s^alpha * u^beta, s the probability of its class and u the IoU.

    Masked and without branches: no host read, no shape that depends on data. The result has the same bits for every
    capacity M, whatever the padding rows hold. More than ``MAX_PAIRS`` pairs of a box and an anchor, as of images with
    thousands of boxes, are looked at in parts, a number of boxes after the other, with the same bits: memory grows with
    the picks of the boxes, not with their pairs. Equal metrics go to the lowest anchor, an anchor that several boxes
    want to the largest metric, then to the lowest box.

    Args:
        topk: anchors that a box picks among those inside it.
        topk_final: anchors that it keeps, counted after conflicts between boxes are resolved, so that a box that lost
            its first anchor falls back to its next; None keeps all.
        alpha: exponent of the probability.
        beta: exponent of the IoU, a whole number: powers are then products, whose bits do not depend on M.
        small_side: pixels; a shorter side of a box is widened for the inside test.
        small_reference: pixels; what it is widened to.
        rotated: candidates are the anchors inside the rotated boxes, ``targets.rboxes_BM5``; all else, the IoU above
            all, goes by the upright boxes around them.

    Raises:
        ValueError: an argument is out of its range.

    Source: TOOD (arXiv:2108.07755); YOLO26 (arXiv:2606.03748) sec. 3.2.1 and 3.3.3; YOLOv10 (arXiv:2405.14458).
    """

    def __init__(
        self,
        *,
        topk: int,
        topk_final: int | None = None,
        alpha: float = 1.0,
        beta: float = 6.0,
        small_side: float = 8.0,
        small_reference: float = 16.0,
        rotated: bool = False,
    ) -> None:
        if topk < 1:
            raise ValueError(f'topk={topk}: a box needs at least one anchor; use 10 (one-to-many) or 7 (one-to-one)')
        if topk_final is not None and not 1 <= topk_final <= topk:
            raise ValueError(f'topk_final={topk_final} is not between 1 and topk={topk}; use None to keep all picks')
        if not (math.isfinite(alpha) and alpha > 0):
            raise ValueError(f'alpha={alpha} is not finite and above 0; the published value is 1')
        if not (float(beta).is_integer() and beta >= 1):
            raise ValueError(f'beta={beta} is no whole number of at least 1; the published value is 6')
        if not 0 < small_side <= small_reference < math.inf:
            raise ValueError(
                f'small_side={small_side} and small_reference={small_reference} do not fit '
                '0 < small_side <= small_reference < inf; use 8 and 16'
            )
        self.topk = topk
        self.topk_final = topk_final
        self.alpha = alpha
        self.beta = int(beta)
        self.small_side = small_side
        self.small_reference = small_reference
        self.rotated = rotated

    @torch.no_grad()
    def assign(self, logits_BAC: Tensor, boxes_BA4: Tensor, targets: Targets, grid: AnchorGrid) -> Assignment:
        """Assign the boxes of each image to anchors, from what one branch predicts.

        Computes in float32, or float64 if a prediction is. A NaN metric counts as zero, so that NaN predictions reach
        the loss. Valid labels must be in 0..C-1; this is not checked here.

        Args:
            logits_BAC: class logits.
            boxes_BA4: decoded boxes, xyxy pixels; may be inverted.
            targets: padded ground truth; rows that are not valid may hold anything.
            grid: where the anchors are.

        Returns:
            New tensors; box coordinates and weights in the dtype of the computation.

        Raises:
            ValueError: rotated boxes are needed and the targets have none.
        """
        dtype = torch.promote_types(torch.promote_types(logits_BAC.dtype, boxes_BA4.dtype), torch.float32)
        truth_BM4 = targets.boxes_BM4.to(dtype)
        # A label of the padding may be no class at all; its box needs no care, because it has no candidates.
        labels_BM = torch.where(targets.valid_BM, targets.labels_BM, 0)

        scores_BCA = self._scores(logits_BAC.to(dtype))
        boxes_BA4 = boxes_BA4.to(dtype)
        step = max(1, MAX_PAIRS // (boxes_BA4.shape[0] * boxes_BA4.shape[1]))
        parts = [slice(first, first + step) for first in range(0, truth_BM4.shape[1], step)] or [slice(0, 0)]
        picks = [
            self._pick(truth_BM4[:, part], labels_BM[:, part], _boxes_of(targets, part), scores_BCA, boxes_BA4, grid)
            for part in parts
        ]
        metric_BMK, anchors_BMK, overlap_BMK = picks[0] if len(picks) == 1 else map(_join, zip(*picks, strict=True))
        kept_BMK, owner_BA = self._resolve(metric_BMK, anchors_BMK, num_anchors=boxes_BA4.shape[1])

        weight_BMK = torch.where(kept_BMK, _soft_weight(metric_BMK, overlap_BMK, kept_BMK), 0.0)
        weight_BA = weight_BMK.new_zeros(owner_BA.shape).scatter_reduce_(
            1, anchors_BMK.flatten(1), weight_BMK.flatten(1), 'amax'
        )

        # One more row stands for the background.
        num_boxes = labels_BM.shape[1]
        foreground_BA = owner_BA < num_boxes
        truth_BA4 = F.pad(truth_BM4, (0, 0, 0, 1)).gather(1, owner_BA.unsqueeze(-1).expand(-1, -1, 4))
        return Assignment(
            foreground_BA=foreground_BA,
            index_BA=torch.where(foreground_BA, owner_BA, -1),
            labels_BA=F.pad(labels_BM, (0, 1), value=-1).gather(1, owner_BA),
            boxes_BA4=truth_BA4,
            weight_BA=weight_BA,
            picks_BMP=anchors_BMK,
            kept_BMP=kept_BMK,
        )

    def narrowed(self, assignment: Assignment) -> Assignment:
        """An assignment of this assigner with as many picks per box as it may keep, the kept ones first."""
        if self.topk_final is None:
            return assignment
        picks_BMK, kept_BMK = assignment.picks_BMP, assignment.kept_BMP
        first_BMP = (~kept_BMK).byte().argsort(dim=-1, stable=True)[..., : self.topk_final]
        return assignment._replace(picks_BMP=picks_BMK.gather(2, first_BMP), kept_BMP=kept_BMK.gather(2, first_BMP))

    def _pick(
        self,
        truth_BM4: Tensor,
        labels_BM: Tensor,
        targets: Targets,
        scores_BCA: Tensor,
        boxes_BA4: Tensor,
        grid: AnchorGrid,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best anchors of each box in falling order: metric, anchor and overlap, (B, M, K)."""
        candidate_BMA = self._candidates(targets, grid, truth_BM4.dtype)
        overlap_BMA = pairwise_iou(truth_BM4, boxes_BA4)
        index_BMA = labels_BM.unsqueeze(-1).expand(-1, -1, boxes_BA4.shape[1])
        metric_BMA = _power(overlap_BMA, self.beta) * scores_BCA.gather(1, index_BMA)

        # Below zero, so that a box of c candidates gets min(topk, c) anchors even where every metric is zero.
        ranked_BMA = torch.where(candidate_BMA, metric_BMA, -1.0).nan_to_num_(nan=0.0)
        metric_BMK, anchors_BMK = take_largest(ranked_BMA, num=self.topk)
        return metric_BMK, anchors_BMK, overlap_BMA.gather(2, anchors_BMK).nan_to_num_(nan=0.0)

    def _candidates(self, targets: Targets, grid: AnchorGrid, dtype: torch.dtype) -> Tensor:
        inside, boxes = (
            (anchors_inside_rotated, targets.rboxes_BM5) if self.rotated else (anchors_inside, targets.boxes_BM4)
        )
        if boxes is None:
            raise ValueError(
                'the assigner has rotated=True and the targets have no rotated boxes; '
                "give the data set targets=('boxes', 'rboxes')"
            )
        return inside(
            boxes.to(dtype),
            targets.valid_BM,
            grid,
            small_side=self.small_side,
            small_reference=self.small_reference,
        )

    def _scores(self, logits_BAC: Tensor) -> Tensor:
        # Transcendental functions before the gather: on a CPU their bits depend on an element's place in its tensor,
        # and a place in (B, M, A) moves with the capacity.
        scores_BAC = logits_BAC.sigmoid()
        if self.alpha != 1:
            scores_BAC = scores_BAC.pow_(self.alpha)
        return scores_BAC.transpose(1, 2)

    def _resolve(self, metric_BMK: Tensor, anchors_BMK: Tensor, *, num_anchors: int) -> tuple[Tensor, Tensor]:
        """Which picks are kept, (B, M, K) bool, and the box that each anchor goes to, (B, A) int64, M for none."""
        batch, num_boxes, num_picks = anchors_BMK.shape
        anchors_BP = anchors_BMK.flatten(1)
        slots_M1 = torch.arange(num_boxes, device=anchors_BMK.device).unsqueeze(-1)

        def lowest_box(picks_BMK: Tensor) -> Tensor:
            slots_BP = torch.where(picks_BMK, slots_M1, num_boxes).flatten(1)
            return slots_BP.new_full((batch, num_anchors), num_boxes).scatter_reduce_(1, anchors_BP, slots_BP, 'amin')

        def at_picks(values_BA: Tensor) -> Tensor:
            return values_BA.gather(1, anchors_BP).view(batch, num_boxes, num_picks)

        best_BA = metric_BMK.new_full((batch, num_anchors), -1.0)
        best_BA.scatter_reduce_(1, anchors_BP, metric_BMK.flatten(1), 'amax')
        kept_BMK = (metric_BMK >= 0) & (metric_BMK == at_picks(best_BA))
        owner_BA = lowest_box(kept_BMK)
        kept_BMK &= slots_M1 == at_picks(owner_BA)
        if self.topk_final is not None:
            kept_BMK &= kept_BMK.cumsum(dim=-1) <= self.topk_final  # picks are in falling order
            owner_BA = lowest_box(kept_BMK)
        return kept_BMK, owner_BA


def _boxes_of(targets: Targets, part: slice) -> Targets:
    """Some of the boxes of each image, of all that an assignment reads."""
    rboxes_BM5 = targets.rboxes_BM5
    return Targets(
        targets.boxes_BM4[:, part],
        targets.labels_BM[:, part],
        targets.valid_BM[:, part],
        rboxes_BM5=None if rboxes_BM5 is None else rboxes_BM5[:, part],
    )


def _join(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(tuple(parts), dim=1)


def _power(base: Tensor, exponent: int) -> Tensor:
    """``base ** exponent`` by products alone, exponent >= 1."""
    if exponent == 1:
        return base
    half = _power(base, exponent // 2)
    square = half * half
    return square * base if exponent % 2 else square


def _soft_weight(metric_BMK: Tensor, overlap_BMK: Tensor, kept_BMK: Tensor) -> Tensor:
    """Weight q = t * (largest u / largest t), both over the anchors that a box keeps; finite where t is."""
    overlap_BM1 = torch.where(kept_BMK, overlap_BMK, 0.0).amax(dim=-1, keepdim=True)
    metric_BM1 = torch.where(kept_BMK, metric_BMK, 0.0).amax(dim=-1, keepdim=True)
    # t falls as u^beta: an absolute floor such as 1e-9 would silence boxes of low IoU.
    return metric_BMK * (overlap_BM1 / metric_BM1.clamp_(min=torch.finfo(metric_BM1.dtype).tiny))
