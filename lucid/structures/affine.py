"""Affine maps of the image plane, and what they do to points and boxes; numpy, on the host.

A map is a float64 (3, 3) matrix over continuous pixel coordinates (x, y, 1), where pixel i covers [i, i + 1): a box
over a whole image is (0, 0, W, H).

Shape suffixes: N boxes, P points.
"""

import math

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Matrix = NDArray[np.float64]


IDENTITY: Matrix = np.eye(3)
"""The map that leaves everything where it is; nobody writes to it."""
IDENTITY.setflags(write=False)


def translation(x: float, y: float) -> Matrix:
    """The map that adds (x, y) pixels."""
    return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])


def scaling(x: float, y: float) -> Matrix:
    """The map that multiplies both axes about the origin."""
    return np.array([[x, 0.0, 0.0], [0.0, y, 0.0], [0.0, 0.0, 1.0]])


def rotation(degrees: float) -> Matrix:
    """The map that turns about the origin from +x towards +y: clockwise as seen, because y points down."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])


def shearing(x_degrees: float, y_degrees: float) -> Matrix:
    """The map that slants the axes about the origin."""
    x, y = math.tan(math.radians(x_degrees)), math.tan(math.radians(y_degrees))
    return np.array([[1.0, x, 0.0], [y, 1.0, 0.0], [0.0, 0.0, 1.0]])


def mirroring(width: float) -> Matrix:
    """The map that swaps left and right of an image ``width`` pixels wide."""
    return np.array([[-1.0, 0.0, width], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def letterboxing(window: tuple[float, float, float, float], size: tuple[int, int]) -> Matrix:
    """The map that fits a window (x1, y1, x2, y2) into a canvas, centred, keeping its proportions.

    The ratio is not rounded, enlarging is allowed; the content takes ``max(1, round(side * ratio))`` pixels, and an odd
    pixel of padding goes right and below.

    Args:
        window: What to fit, in pixels of the source.
        size: Height and width of the canvas.

    Returns:
        Pixels of the source to pixels of the canvas.
    """
    x1, y1, x2, y2 = window
    height, width = size
    ratio = min(height / (y2 - y1), width / (x2 - x1))
    left = (width - max(1, round((x2 - x1) * ratio))) // 2
    top = (height - max(1, round((y2 - y1) * ratio))) // 2
    return translation(left, top) @ scaling(ratio, ratio) @ translation(-x1, -y1)


def keeps_axes(matrix: Matrix) -> bool:
    """Whether upright boxes stay upright boxes: the map neither turns nor slants."""
    return bool(matrix[0, 1] == 0 and matrix[1, 0] == 0)


def warp_points(matrix: Matrix, points_P2: NDArray[np.floating]) -> Float32:
    """Map points of any leading shape (..., 2)."""
    return (points_P2.astype(np.float64) @ matrix[:2, :2].T + matrix[:2, 2]).astype(np.float32)


def warp_boxes(matrix: Matrix, boxes_N4: Float32) -> Float32:
    """Map xyxy boxes: the envelopes of their four mapped corners."""
    (across, slant, x), (turn, down, y), _ = matrix.tolist()
    if slant == 0 and turn == 0:
        # The corners stay corners: the same numbers in a third of the time.
        moved: Float32 = (boxes_N4.astype(np.float64) * (across, down, across, down) + (x, y, x, y)).astype(np.float32)
        order = [0, 1, 2, 3] if across >= 0 else [2, 1, 0, 3]
        if down < 0:
            order[1], order[3] = order[3], order[1]
        return moved if order == [0, 1, 2, 3] else moved[:, order]
    corners_N42 = boxes_N4[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
    return envelopes(warp_points(matrix, corners_N42))


def envelopes(points_NP2: Float32) -> Float32:
    """The upright boxes (N, 4) around N groups of P points each."""
    return np.concatenate([points_NP2.min(axis=1), points_NP2.max(axis=1)], axis=1)


def clip_boxes(boxes_N4: Float32, window: tuple[float, float, float, float]) -> Float32:
    """Cut boxes to a window; a box outside becomes one without area on its border."""
    x1, y1, x2, y2 = window
    low, high = np.array([[x1, y1, x1, y1], [x2, y2, x2, y2]], np.float32)
    clipped: Float32 = np.minimum(np.maximum(boxes_N4, low), high)
    return clipped


def box_areas(boxes_N4: Float32) -> Float32:
    """Width times height, in square pixels."""
    return (boxes_N4[:, 2] - boxes_N4[:, 0]) * (boxes_N4[:, 3] - boxes_N4[:, 1])
