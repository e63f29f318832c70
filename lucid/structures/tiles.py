"""Tiles of large images: where they lie, and what of a rotated object each of them shows; numpy, on the host.

Shape suffixes: N objects of an image, K of a tile, P points of what is left of them.
"""

from typing import NamedTuple

import numpy as np
import shapely
from numpy.typing import NDArray

from lucid.structures.affine import Matrix
from lucid.structures.rotated import from_corners

Window = tuple[int, int, int, int]
"""x1, y1, x2, y2 of a tile in its image, whole pixels."""
WHOLE = 0.7
"""Share of its area inside a tile from which on an object stays as it was annotated."""
THINNEST = 1e-3
"""Pixels; what is thinner is what rounding left of an object outside, and no object."""


class TileObjects(NamedTuple):
    """What a tile shows of the objects of its image.

    rows_K:       int64, the objects
    corners_K42:  float64, in turn, pixels of the tile; may lie outside of it
    visible_K:    float64, above 0 to 1, share of the object's area inside
    cut_K:        bool, that the corners were fitted to what is inside, instead of being those of the whole object
    """

    rows_K: NDArray[np.int64]
    corners_K42: Matrix
    visible_K: NDArray[np.float64]
    cut_K: NDArray[np.bool_]


def tile_windows(height: int, width: int, *, size: int, overlap: int) -> list[Window]:
    """The tiles of an image, row by row; the last of a row or column is flush with the image's edge.

    Args:
        height: Of the image, pixels.
        width: Of the image, pixels.
        size: Side of a tile; an image that is smaller makes one tile, as small as it is.
        overlap: Pixels that neighbours share at least, below ``size``.

    Returns:
        Windows that cover every pixel.
    """
    rows, columns = ([*range(0, max(side - size, 0), size - overlap), max(side - size, 0)] for side in (height, width))
    return [(x, y, min(x + size, width), min(y + size, height)) for y in rows for x in columns]


def cut_objects(corners_N42: Matrix, window: Window) -> TileObjects:
    """What a tile shows of rotated objects, by the share U of their area that is inside, an exact polygon's.

    U = 0: nothing. U >= 0.7: the corners of the whole object, moved with the tile. In between: the smallest rectangle
    in the object's own direction around the part inside.

    Args:
        corners_N42: In turn, pixels of the image.
        window: The tile.

    Returns:
        Those that are seen, in their order.

    Source: DOTA, arXiv:1711.10398, for the shares; the refit in the direction of the object is this project's reading.
    """
    x1, y1, x2, y2 = window
    low_N2, high_N2 = corners_N42.min(axis=1), corners_N42.max(axis=1)
    near_K = np.flatnonzero(((high_N2 > (x1, y1)) & (low_N2 < (x2, y2))).all(axis=1))
    corners_K42 = corners_N42[near_K]
    outlines_K = shapely.polygons(corners_K42)
    # A corner may lie on another edge.
    outlines_K = np.where(shapely.is_valid(outlines_K), outlines_K, shapely.make_valid(outlines_K))
    inside_K = shapely.intersection(outlines_K, shapely.box(x1, y1, x2, y2))
    visible_K = shapely.area(inside_K) / shapely.area(outlines_K)
    cut_K = visible_K < WHOLE
    for row in np.flatnonzero(cut_K & (visible_K > 0)).tolist():
        corners_K42[row] = _around(shapely.get_coordinates(inside_K[row]), corners_K42[row])
    keep_K = (visible_K > 0) & (_thickness(corners_K42, window) >= THINNEST)
    moved_K42 = corners_K42[keep_K] - np.array([x1, y1], dtype=np.float64)
    return TileObjects(near_K[keep_K], moved_K42, np.minimum(visible_K, 1.0)[keep_K], cut_K[keep_K])


def _around(points_P2: Matrix, corners_42: Matrix) -> Matrix:
    """The corners of the smallest rectangle around some points in the direction of another rectangle."""
    theta = float(from_corners(corners_42[None])[0, 4])
    turn = np.array([[np.cos(theta), -np.sin(theta)], [np.sin(theta), np.cos(theta)]])
    (u1, v1), (u2, v2) = (points_P2 @ turn).min(axis=0), (points_P2 @ turn).max(axis=0)
    around: Matrix = np.array([[u1, v1], [u2, v1], [u2, v2], [u1, v2]]) @ turn.T
    return around


def _thickness(corners_K42: Matrix, window: Window) -> NDArray[np.float64]:
    """The smallest of four lengths: the sides of the object, and those of its upright box inside the window."""
    x1, y1, x2, y2 = window
    edges_K42 = np.roll(corners_K42, -1, axis=1) - corners_K42
    sides_K4 = np.linalg.norm(edges_K42, axis=2)
    low_K2 = np.maximum(corners_K42.min(axis=1), (x1, y1))
    box_K2 = np.minimum(corners_K42.max(axis=1), (x2, y2)) - low_K2
    smallest: NDArray[np.float64] = np.concatenate([(sides_K4[:, :2] + sides_K4[:, 2:]) / 2, box_K2], axis=1).min(
        axis=1, initial=np.inf
    )
    return smallest
