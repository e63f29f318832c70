"""Detections of a branch that finds an object many times: the best stays, what overlaps it goes.

Shape suffixes: B images, R ranked rows, N candidates of one image, K detections per image.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import batched_nms

from lucid.structures.targets import Detections

AHEAD = 4
"""How many times ``max_detections`` candidates are tried before all are."""


def suppress(ranked: Detections, *, iou_threshold: float = 0.7, max_detections: int = 300) -> Detections:
    """Greedy NMS inside each class of each image, best first: what overlaps a kept box by more than the IoU goes.

    Reads the device.

    Args:
        ranked: All anchors by ``decode_end_to_end``, best first; rows without score or area are no candidates.
        iou_threshold: A box with exactly this IoU stays.
        max_detections: Rows kept per image, over all classes.

    Returns:
        Best first, padded to (B, ``max_detections``) with zero rows; memory of its own.

    Source: YOLO26 (arXiv:2606.03748) keeps the one-to-many branch for NMS; the threshold is the usual one.
    """
    boxes_BR4 = ranked.boxes_BK4
    has_area_BR = (boxes_BR4[..., 2:] > boxes_BR4[..., :2]).all(dim=-1)
    kept = [
        _keep(boxes_R4, scores_R, labels_R, (scores_R > 0) & area_R, iou_threshold, max_detections)
        for boxes_R4, scores_R, labels_R, area_R in zip(
            boxes_BR4, ranked.scores_BK, ranked.labels_BK, has_area_BR, strict=True
        )
    ]
    return _take_rows(ranked, kept, max_detections=max_detections)


def _take_rows(ranked: Detections, kept: Sequence[Tensor], *, max_detections: int) -> Detections:
    """Some rows of each image, as they come, padded to (B, ``max_detections``) with zero rows; memory of its own."""
    # Padding rows read row 0 and are overwritten below; -1 marks them.
    rows_BK = torch.stack([F.pad(rows, (0, max_detections - len(rows)), value=-1) for rows in kept])
    found_BK, rows_BK = rows_BK >= 0, rows_BK.clamp(min=0)
    boxes_BK4 = ranked.boxes_BK4.gather(1, rows_BK.unsqueeze(-1).expand(-1, -1, 4))
    return Detections(
        boxes_BK4=torch.where(found_BK.unsqueeze(-1), boxes_BK4, 0.0),
        scores_BK=torch.where(found_BK, ranked.scores_BK.gather(1, rows_BK), 0.0),
        labels_BK=torch.where(found_BK, ranked.labels_BK.gather(1, rows_BK), 0),
        anchors_BK=torch.where(found_BK, ranked.anchors_BK.gather(1, rows_BK), -1),
    )


def _keep(
    boxes_R4: Tensor,
    scores_R: Tensor,
    labels_R: Tensor,
    candidate_R: Tensor,
    iou_threshold: float,
    max_detections: int,
) -> Tensor:
    """Rows of one image that stay, best first, at most ``max_detections``."""
    rows_N = candidate_R.nonzero().squeeze(1)
    if not len(rows_N):
        return rows_N
    # batched_nms moves the classes apart by offsets. In float64, or coordinates lose their last bits by them; from
    # zero on, or a box left of the image reaches into the class before its own.
    boxes_N4 = boxes_R4[rows_N].double()
    boxes_N4 = boxes_N4 - boxes_N4.min()
    scores_N, labels_N = scores_R[rows_N].double(), labels_R[rows_N]
    for count in (AHEAD * max_detections, len(rows_N)):
        # What the best candidates keep, all of them keep too: nothing worse can remove it.
        kept = batched_nms(boxes_N4[:count], scores_N[:count], labels_N[:count], iou_threshold)
        if len(kept) >= max_detections or count >= len(rows_N):
            break
    # Sorted by row, which is by score with ties in their order; torchvision's own order of ties is any.
    return rows_N[kept.sort().values[:max_detections]]
