"""Rotated boxes of a branch that finds an object many times: the best stays, what overlaps it goes.

Shape suffixes: B images, A anchors, C classes, R ranked rows, N candidates of one image, K detections per image.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lucid.structures.affine import Float32
from lucid.structures.anchors import gather_anchors, without_broken
from lucid.structures.detections import decode_end_to_end
from lucid.structures.rotated import canonical
from lucid.structures.rotated_overlap import rotated_ious
from lucid.structures.rotated_tensors import compose_rboxes
from lucid.structures.suppression import AHEAD, take_rows
from lucid.structures.targets import AnchorGrid, Detections


def decode_with_rotated_nms(
    logits_BAC: Tensor,
    distances_BA4: Tensor,
    angles_BA1: Tensor,
    grid: AnchorGrid,
    *,
    max_detections: int = 300,
    score_threshold: float = 0.001,
    iou_threshold: float = 0.7,
) -> Detections:
    """The one-to-many branch as detections: one class per anchor, then greedy NMS with the exact IoU of rotated boxes.

    As in ``decode_with_nms``, equal scores go to the lowest anchor. Anchors below ``score_threshold`` and anchors whose
    box or angle is not finite, or whose box has no area, take no part. Reads the device; the work is the host's, at
    most ``max_detections`` rounds over the candidates of one class.

    Source: YOLO26 (arXiv:2606.03748) keeps the branch for NMS; exact overlap and thresholds are this project's choice.
    """
    ranked = decode_end_to_end(
        logits_BAC,
        without_broken(distances_BA4, angles_BA1),
        grid,
        max_detections=logits_BAC.shape[1],
        score_threshold=score_threshold,
    )
    counts_B = (ranked.scores_BK > 0).sum(dim=1).tolist()  # the candidates come first
    first = Detections(*(field[:, : max(counts_B)] for field in ranked))
    rboxes_BR5 = compose_rboxes(first.boxes_BK4, gather_anchors(angles_BA1.float(), first.anchors_BK)).cpu().numpy()
    kept = [
        _keep(rboxes_R5[:count], labels_R[:count], iou_threshold, max_detections)
        for count, rboxes_R5, labels_R in zip(counts_B, rboxes_BR5, first.labels_BK.cpu().numpy(), strict=True)
    ]
    rows = [torch.from_numpy(rows_N).to(ranked.anchors_BK.device) for rows_N in kept]
    return take_rows(ranked, rows, max_detections=max_detections)


def _keep(
    rboxes_R5: Float32, labels_R: NDArray[np.int64], iou_threshold: float, max_detections: int
) -> NDArray[np.int64]:
    """Rows of one image that stay, best first, at most ``max_detections``."""
    sides_R2 = rboxes_R5[:, 2:4]
    # A box whose area does not fit float32 has corners that cannot be relied on.
    has_area_R = (sides_R2 > 0).all(axis=1) & (sides_R2.astype(np.float64).prod(axis=1) <= np.finfo(np.float32).max)
    usable_R = has_area_R & np.isfinite(rboxes_R5).all(axis=1)
    rows_N = np.flatnonzero(usable_R)
    rboxes_N5, labels_N = canonical(rboxes_R5[rows_N]), labels_R[rows_N]
    count = AHEAD * max_detections
    while True:
        # What the best candidates keep, all of them keep too: nothing worse can remove it.
        kept = _greedy(rboxes_N5[:count], labels_N[:count], iou_threshold, max_detections)
        if len(kept) >= max_detections or count >= len(rows_N):
            return rows_N[kept]
        count *= AHEAD


def _greedy(rboxes_N5: Float32, labels_N: NDArray[np.int64], iou_threshold: float, max_detections: int) -> list[int]:
    # Of each class the candidates that are left, best first.
    left = {int(label): np.flatnonzero(labels_N == label) for label in np.unique(labels_N)}
    alive_N = np.ones(len(labels_N), dtype=np.bool_)
    kept: list[int] = []
    for i, label in enumerate(labels_N.tolist()):
        if not alive_N[i]:
            continue
        kept.append(i)
        if len(kept) == max_detections:
            break
        rivals = left[label][left[label] > i]
        ious_N = rotated_ious(rboxes_N5[i : i + 1], rboxes_N5[rivals], least=iou_threshold)[0]
        alive_N[rivals[ious_N > iou_threshold]] = False
        left[label] = rivals[alive_N[rivals]]
    return kept
