"""Exact overlap of rotated boxes (cx, cy, w, h, theta); numpy and shapely, on the host.

Shape suffixes: D, N boxes, P pairs of them; a rotated box has 5 numbers.
"""

import numpy as np
import shapely
from numpy.typing import NDArray

from lucid.structures.rotated import exact_corners

Float64 = NDArray[np.float64]

SLACK = 1e-6
"""What the bound of an overlap may be wrong by, through rounding."""


def rotated_ious(rboxes_D5: NDArray[np.floating], others_N5: NDArray[np.floating], *, least: float = 0.0) -> Float64:
    """IoU of each of D boxes with each of N others, (D, N), from the intersections of the rectangles as polygons.

    In float64, each pair moved to the first box's centre, so that the precision is that of its size and not of its
    place. A box without area has IoU 0.

    Args:
        rboxes_D5: finite, sides not negative, in any convention.
        others_N5: likewise.
        least: an IoU below it may be given as 0: a bound without polygons spares the others.

    Returns:
        Fresh memory.
    """
    rboxes_D5, others_N5 = (np.asarray(boxes, dtype=np.float64).reshape(-1, 5) for boxes in (rboxes_D5, others_N5))
    bounds_DN = _bounds(rboxes_D5, others_N5)
    rows_P, columns_P = np.nonzero((bounds_DN >= least - SLACK) & (bounds_DN > 0))
    ious_DN = np.zeros(bounds_DN.shape)
    ious_DN[rows_P, columns_P] = _paired_ious(rboxes_D5[rows_P], others_N5[columns_P])
    return ious_DN


def _paired_ious(rboxes_P5: Float64, others_P5: Float64) -> Float64:
    centred_P5, shifted_P5 = rboxes_P5.copy(), others_P5.copy()
    centred_P5[:, :2], shifted_P5[:, :2] = 0.0, others_P5[:, :2] - rboxes_P5[:, :2]
    polygons = [shapely.polygons(exact_corners(boxes_P5)) for boxes_P5 in (centred_P5, shifted_P5)]
    return _ratio(shapely.area(shapely.intersection(*polygons)), _areas(rboxes_P5) + _areas(others_P5))


def _bounds(rboxes_D5: Float64, others_N5: Float64) -> Float64:
    """Numbers (D, N) that the IoU does not exceed, up to rounding.

    An intersection is no larger than either box, nor than the part of the first box that is inside the other's upright
    envelope in the first one's frame.
    """
    cos_D1, sin_D1 = np.cos(rboxes_D5[:, 4:]), np.sin(rboxes_D5[:, 4:])
    dx_DN, dy_DN = (others_N5[:, i] - rboxes_D5[:, i, None] for i in (0, 1))
    turn_DN = others_N5[:, 4] - rboxes_D5[:, 4:]
    cos_DN, sin_DN = np.abs(np.cos(turn_DN)), np.abs(np.sin(turn_DN))
    width_N, height_N = others_N5[:, 2], others_N5[:, 3]
    shared_DN = _shared(rboxes_D5[:, 2:3], dx_DN * cos_D1 + dy_DN * sin_D1, cos_DN * width_N + sin_DN * height_N)
    shared_DN *= _shared(rboxes_D5[:, 3:4], dy_DN * cos_D1 - dx_DN * sin_D1, sin_DN * width_N + cos_DN * height_N)
    areas_D1, areas_N = _areas(rboxes_D5)[:, None], _areas(others_N5)
    return _ratio(np.minimum(shared_DN, np.minimum(areas_D1, areas_N)), areas_D1 + areas_N)


def _shared(length: Float64, offset: Float64, other: Float64) -> Float64:
    """What an interval about 0 shares with one about ``offset``."""
    shared: Float64 = np.minimum(length / 2, offset + other / 2) - np.maximum(-length / 2, offset - other / 2)
    return shared.clip(min=0)


def _ratio(shared: Float64, areas: Float64) -> Float64:
    """Intersection over union, from the intersection and the sum of both areas."""
    union = areas - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def _areas(rboxes_N5: Float64) -> Float64:
    areas: Float64 = rboxes_N5[:, 2] * rboxes_N5[:, 3]
    return areas
