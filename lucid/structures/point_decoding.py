"""Keypoints of detections in pixels of the original image.

Shape suffixes: B images, K detections per image, J keypoints, N kept detections of one image.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lucid.structures.affine import warp_points
from lucid.structures.detections import Placed, Prediction


def place_points(placed: Sequence[Placed], points_BKJ2: Tensor, metas: Sequence[Mapping[str, Any]]) -> list[Prediction]:
    """Give each prediction the points of its rows, in pixels of the original image, in one transfer from the device.

    Args:
        placed: of ``place_detections``; the predictions are changed.
        points_BKJ2: of all detections, pixels of the network input.
        metas: per image ``matrix`` (3x3, original pixels to input pixels).

    Returns:
        The predictions, which now have ``keypoints``.
    """
    for (prediction, rows_N), points_KJ2, meta in zip(placed, points_BKJ2.float().cpu().numpy(), metas, strict=True):
        inverse = np.linalg.inv(np.asarray(meta['matrix'], dtype=np.float64))
        prediction['keypoints'] = torch.from_numpy(warp_points(inverse, points_KJ2[rows_N]))
    return [prediction for prediction, _ in placed]
