"""Exact overlap of rotated boxes (cx, cy, w, h, theta); numpy and shapely, on the host.

Shape suffixes: D, N boxes; P pairs of them; a rotated box has 5 numbers.
"""

import numpy as np
import shapely
from numpy.typing import NDArray

from lucid.structures.rotated import exact_corners

Float64 = NDArray[np.float64]

SLACK = 1e-6
"""What the bound of an overlap may be wrong by, through rounding."""
FEW = 2**10
"""Pairs of which all are looked at: finding those that are near each other would cost more."""


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
    rows_P, columns_P = _near(rboxes_D5, others_N5)
    bounds_P = _bounds(rboxes_D5[rows_P], others_N5[columns_P])
    possible_P = (bounds_P >= least - SLACK) & (bounds_P > 0)
    rows_P, columns_P = rows_P[possible_P], columns_P[possible_P]
    ious_DN = np.zeros((len(rboxes_D5), len(others_N5)))
    ious_DN[rows_P, columns_P] = _paired_ious(rboxes_D5[rows_P], others_N5[columns_P])
    return ious_DN


def _near(rboxes_D5: Float64, others_N5: Float64) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of both sides of pairs: all of them where they are few, else those whose upright envelopes overlap."""
    if len(rboxes_D5) * len(others_N5) <= FEW:
        rows_DN, columns_DN = np.indices((len(rboxes_D5), len(others_N5)))
        return rows_DN.ravel(), columns_DN.ravel()
    envelopes = [shapely.box(*_envelopes(boxes_N5).T) for boxes_N5 in (rboxes_D5, others_N5)]
    rows_P, columns_P = shapely.STRtree(envelopes[1]).query(envelopes[0])
    return rows_P, columns_P


def _paired_ious(rboxes_P5: Float64, others_P5: Float64) -> Float64:
    centred_P5, shifted_P5 = rboxes_P5.copy(), others_P5.copy()
    centred_P5[:, :2], shifted_P5[:, :2] = 0.0, others_P5[:, :2] - rboxes_P5[:, :2]
    polygons = [shapely.polygons(exact_corners(boxes_P5)) for boxes_P5 in (centred_P5, shifted_P5)]
    return _ratio(shapely.area(shapely.intersection(*polygons)), _areas(rboxes_P5) + _areas(others_P5))


def _bounds(rboxes_P5: Float64, others_P5: Float64) -> Float64:
    """Numbers (P,) that the IoU does not exceed, up to rounding.

    An intersection is no larger than either box, nor than the part of the first box that is inside the other's upright
    envelope in the first one's frame.
    """
    dx_P, dy_P, _, _, turn_P = (others_P5 - rboxes_P5).T
    cos_P, sin_P = np.cos(rboxes_P5[:, 4]), np.sin(rboxes_P5[:, 4])
    along_P, across_P = np.abs(np.cos(turn_P)), np.abs(np.sin(turn_P))
    width_P, height_P = others_P5[:, 2], others_P5[:, 3]
    shared_P = _shared(rboxes_P5[:, 2], dx_P * cos_P + dy_P * sin_P, along_P * width_P + across_P * height_P)
    shared_P *= _shared(rboxes_P5[:, 3], dy_P * cos_P - dx_P * sin_P, across_P * width_P + along_P * height_P)
    areas_P, others_P = _areas(rboxes_P5), _areas(others_P5)
    return _ratio(np.minimum(shared_P, np.minimum(areas_P, others_P)), areas_P + others_P)


def _envelopes(rboxes_N5: Float64) -> Float64:
    corners_N42 = exact_corners(rboxes_N5)
    return np.concatenate([corners_N42.min(axis=1), corners_N42.max(axis=1)], axis=1)


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
