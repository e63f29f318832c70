"""Rotated boxes (cx, cy, w, h, theta) in the long-edge convention; numpy, on the host.

w >= h, and theta, in radians from +x towards +y (y points down), is the direction of the long edge, in [-pi/4, 3pi/4).
A square has no long edge: its theta is in [-pi/4, pi/4).

Source: MMRotate, arXiv:2204.13317 (long-edge convention).

Shape suffixes: N boxes; a rotated box has 5 numbers, its 4 corners 2 each.
"""

import numpy as np
from numpy.typing import NDArray

from lucid.structures.affine import Float32, Matrix, envelopes, warp_points

QUARTER = np.pi / 4


def canonical(rboxes_N5: NDArray[np.floating]) -> Float32:
    """The same rectangles in the long-edge convention, as float32."""
    cx, cy, w, h, theta = rboxes_N5.astype(np.float64).T
    # Rounded first: sides that differ by less are those of a square, whose theta has a range of its own.
    w, h = w.astype(np.float32), h.astype(np.float32)
    theta = np.where(w < h, theta + np.pi / 2, theta)
    # A period of theta is half a turn, for a square a quarter turn.
    period = np.where(w == h, np.pi / 2, np.pi)
    theta = (theta + QUARTER) % period - QUARTER
    result_N5 = np.stack([cx, cy, np.maximum(w, h), np.minimum(w, h), theta], axis=1).astype(np.float32)
    # Rounding to float32 may step onto the excluded upper end.
    over_N = result_N5[:, 4] >= np.float32(period - QUARTER)
    result_N5[over_N, 4] -= period[over_N]
    return result_N5


def corners(rboxes_N5: NDArray[np.floating]) -> Float32:
    """The corners (N, 4, 2) in turn, starting at (-w/2, -h/2) of the box's own frame."""
    return exact_corners(rboxes_N5).astype(np.float32)


def exact_corners(rboxes_N5: NDArray[np.floating]) -> NDArray[np.float64]:
    """What ``corners`` gives, before it is rounded."""
    cx, cy, w, h, theta = rboxes_N5.astype(np.float64).T
    x_N4 = w[:, None] / 2 * np.array([-1, 1, 1, -1])
    y_N4 = h[:, None] / 2 * np.array([-1, -1, 1, 1])
    cos, sin = np.cos(theta)[:, None], np.sin(theta)[:, None]
    return np.stack([cx[:, None] + x_N4 * cos - y_N4 * sin, cy[:, None] + x_N4 * sin + y_N4 * cos], 2)


def from_corners(corners_N42: NDArray[np.floating]) -> Float32:
    """The rectangles that fit four corners each, given in turn.

    Centre: mean of the corners. Sides: means of opposite edges. Direction: mean of the two long edges. Exact for
    rectangles, a fit for what a shear or a hand-drawn ring makes of them.
    """
    corners_N42 = corners_N42.astype(np.float64)
    edges_N42 = np.roll(corners_N42, -1, axis=1) - corners_N42
    lengths_N4 = np.linalg.norm(edges_N42, axis=2)
    first_N, second_N = lengths_N4[:, 0::2].mean(1), lengths_N4[:, 1::2].mean(1)
    # Opposite edges of a ring point in opposite directions.
    along_N2 = np.where(
        (first_N >= second_N)[:, None], edges_N42[:, 0] - edges_N42[:, 2], edges_N42[:, 1] - edges_N42[:, 3]
    )
    theta_N = np.arctan2(along_N2[:, 1], along_N2[:, 0])
    long_N, short_N = np.maximum(first_N, second_N), np.minimum(first_N, second_N)
    return canonical(np.column_stack([corners_N42.mean(axis=1), long_N, short_N, theta_N]))


def warp_rboxes(matrix: Matrix, rboxes_N5: Float32) -> Float32:
    """Map rotated boxes: their mapped corners, refitted where the map shears."""
    return from_corners(warp_points(matrix, corners(rboxes_N5)))


def rbox_envelopes(rboxes_N5: Float32) -> Float32:
    """The upright xyxy boxes (N, 4) around rotated ones."""
    return envelopes(corners(rboxes_N5))
