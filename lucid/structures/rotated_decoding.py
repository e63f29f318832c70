"""Rotated boxes of detections in pixels of the original image.

Shape suffixes: B images, K detections per image.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lucid.structures.affine import Float32, Matrix, keeps_axes, warp_points
from lucid.structures.detections import Prediction, place_boxes
from lucid.structures.rotated import canonical, rbox_envelopes, warp_rboxes
from lucid.structures.targets import Detections


def place_rboxes(detections: Detections, rboxes_BK5: Tensor, metas: Sequence[Mapping[str, Any]]) -> list[Prediction]:
    """Detections with rotated boxes in pixels of each original image, in one transfer from the device.

    ``boxes`` are the envelopes, clipped to the image, ``rboxes`` in the long-edge convention and unclipped. Padding
    rows are dropped, and so are boxes without area and those whose envelope is wholly outside the image.

    Args:
        detections: of the whole batch.
        rboxes_BK5: of its rows, pixels of the network input, in any convention.
        metas: as ``to_predictions`` wants them.

    Returns:
        One prediction per image; its tensors are the caller's.
    """
    scores_BK1, labels_BK1 = detections.scores_BK.float().unsqueeze(-1), detections.labels_BK.float().unsqueeze(-1)
    rows_BK7 = torch.cat((rboxes_BK5, scores_BK1, labels_BK1), dim=-1).cpu().numpy()
    return [_place(rows_K7, meta) for rows_K7, meta in zip(rows_BK7, metas, strict=True)]


def _place(rows_K7: Float32, meta: Mapping[str, Any]) -> Prediction:
    sides_K2 = rows_K7[:, 2:4]
    usable_K = (rows_K7[:, 5] > 0) & (sides_K2 > 0).all(axis=1) & np.isfinite(rows_K7).all(axis=1)
    rows_K7 = np.where(usable_K[:, None], rows_K7, np.float32(0))
    rboxes_K5 = unwarp_rboxes(np.asarray(meta['matrix'], dtype=np.float64), rows_K7[:, :5])
    prediction, rows_N = place_boxes(
        rbox_envelopes(rboxes_K5), rows_K7[:, 5], rows_K7[:, 6], usable_K=usable_K, meta=meta
    )
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
