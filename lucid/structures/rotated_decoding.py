"""Rotated boxes of detections in pixels of the original image.

Shape suffixes: K rows of one image, C columns of a row.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lucid.structures.affine import Float32, Matrix, keeps_axes, warp_points
from lucid.structures.detections import Prediction, place_boxes
from lucid.structures.rotated import canonical, rbox_envelopes, warp_rboxes
from lucid.structures.rotated_suppression import suppress_rotated


def place_rboxes(
    rows_KC: Float32, meta: Mapping[str, Any], *, iou_threshold: float | None = None, max_detections: int = 300
) -> Prediction:
    """The detections of one image with rotated boxes, in pixels of the original image.

    ``boxes`` are the envelopes, clipped to the image, ``rboxes`` in the long-edge convention and unclipped. Padding
    rows are dropped, and so are boxes without area and those whose envelope is wholly outside the image.

    Args:
        rows_KC: as ``pack_rows`` gives them, on the host; behind the label a rotated box, pixels of the network input,
            in any convention.
        meta: as ``place_rows`` wants it.
        iou_threshold: of an NMS before that; None for rows that need none.
        max_detections: rows that the NMS keeps.

    Returns:
        The prediction, whose tensors are the caller's.
    """
    if iou_threshold is not None:
        rows_KC = suppress_rotated(rows_KC, iou_threshold=iou_threshold, max_detections=max_detections)
    scores_K, labels_K, rboxes_K5 = rows_KC[:, 4], rows_KC[:, 5], rows_KC[:, 6:11]
    usable_K = (scores_K > 0) & (rboxes_K5[:, 2:4] > 0).all(axis=1) & np.isfinite(rows_KC[:, 4:11]).all(axis=1)
    rboxes_K5 = np.where(usable_K[:, None], rboxes_K5, np.float32(0))
    rboxes_K5 = unwarp_rboxes(np.asarray(meta['matrix'], dtype=np.float64), rboxes_K5)
    prediction, rows_N = place_boxes(rbox_envelopes(rboxes_K5), scores_K, labels_K, usable_K=usable_K, meta=meta)
    prediction['rboxes'] = torch.from_numpy(rboxes_K5[rows_N])
    return prediction


def unwarp_rboxes(matrix: Matrix, rboxes_K5: Float32) -> Float32:
    """Map rotated boxes back through ``matrix``, to the long-edge convention.

    Through a letterbox the centre moves, the sides are divided by the ratio and the angle is the same; through any
    other map the mapped corners are refitted.
    """
    inverse: Matrix = np.linalg.inv(matrix).astype(np.float64)
    if not (keeps_axes(matrix) and matrix[0, 0] == matrix[1, 1] > 0):
        return warp_rboxes(inverse, canonical(rboxes_K5))
    sides_K2, theta_K1 = rboxes_K5[:, 2:4] / matrix[0, 0], rboxes_K5[:, 4:]
    return canonical(np.concatenate([warp_points(inverse, rboxes_K5[:, :2]), sides_K2, theta_K1], axis=1))
