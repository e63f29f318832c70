"""Rotated boxes of a branch that finds an object many times: the best stays, what overlaps it goes; on the host.

Shape suffixes: R ranked rows, C columns of a row, N candidates, K rows that stay, all of one image.
"""

import numpy as np
from numpy.typing import NDArray

from lucid.structures.affine import Float32
from lucid.structures.rotated import canonical
from lucid.structures.rotated_overlap import rotated_ious
from lucid.structures.suppression import AHEAD


def suppress_rotated(rows_RC: Float32, *, iou_threshold: float = 0.7, max_detections: int = 300) -> Float32:
    """Greedy NMS inside each class with the exact IoU of rotated boxes, best first.

    A box whose area is none, or does not fit float32, takes no part. At most ``max_detections`` rounds over the
    candidates of one class.

    Args:
        rows_RC: As ``pack_rows`` gives them, best first, a rotated box behind the label; rows without score are no
            candidates, and come last.
        iou_threshold: A box with exactly this IoU stays.
        max_detections: Rows kept, over all classes.

    Returns:
        The rows that stay, best first, not padded.

    Source: YOLO26 (arXiv:2606.03748) keeps the branch for NMS; exact overlap and threshold are this project's choice.
    """
    rows_NC = rows_RC[: int((rows_RC[:, 4] > 0).sum())]
    return rows_NC[_keep(rows_NC[:, 6:11], rows_NC[:, 5].astype(np.int64), iou_threshold, max_detections)]


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
