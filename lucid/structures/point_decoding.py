"""Keypoints of detections in pixels of the original image.

Shape suffixes: K rows of one image, C columns of a row, J keypoints.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lucid.structures.affine import Float32, warp_points
from lucid.structures.detections import Prediction, place_rows


def place_points(rows_KC: Float32, meta: Mapping[str, Any]) -> Prediction:
    """The detections of one image with ``keypoints``, unclipped, in pixels of the original image.

    Args:
        rows_KC: as ``pack_rows`` gives them, on the host; behind the label x and y of each point, pixels of the network
            input.
        meta: as ``place_rows`` wants it.

    Returns:
        The prediction, whose tensors are the caller's.
    """
    prediction, rows_N = place_rows(rows_KC, meta)
    points_NJ2 = rows_KC[rows_N, 6:].reshape(len(rows_N), rows_KC.shape[1] // 2 - 3, 2)
    inverse = np.linalg.inv(np.asarray(meta['matrix'], dtype=np.float64))
    prediction['keypoints'] = torch.from_numpy(warp_points(inverse, points_NJ2))
    return prediction
