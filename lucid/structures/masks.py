"""Masks of objects: bool (H, W) arrays of pixels, and the polygon rings that enclose them; numpy, on the host.

Shape suffixes: H, W pixels, P points of a ring, Q points of another.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

from lucid.structures.affine import Float32
from lucid.structures.polygons import Rings

Mask = NDArray[np.bool_]


def fill_rings(rings: Rings, size: tuple[int, int], *, origin: tuple[int, int] = (0, 0)) -> Mask:
    """The pixels whose centres an object covers: the union of its rings, as COCO means several rings of one object.

    Inside one ring the even-odd rule holds; of a centre on an edge, the left and upper one is inside.

    Args:
        rings: Pixels of the image; what lies outside of the mask is cut off.
        size: Height and width of the mask.
        origin: x and y of the mask's first pixel in the image.

    Returns:
        A fresh mask.
    """
    mask = np.zeros(size, dtype=np.bool_)
    for ring in rings:
        points_P2 = ring.astype(np.float64) - origin
        left, top = np.floor(np.clip(points_P2.min(axis=0), 0, size[::-1])).astype(int).tolist()
        right, bottom = np.ceil(np.clip(points_P2.max(axis=0), 0, size[::-1])).astype(int).tolist()
        if left < right and top < bottom:
            mask[top:bottom, left:right] |= _fill(points_P2 - (left, top), (bottom - top, right - left))
    return mask


def _fill(ring_P2: NDArray[np.float64], size: tuple[int, int]) -> Mask:
    """One ring by the even-odd rule: along a row, every edge that is crossed turns inside to outside and back."""
    height, width = size
    following_P2 = np.roll(ring_P2, -1, axis=0)
    # Always from top to bottom, so that a bridge gives the same crossings there and back.
    upward_P1 = (ring_P2[:, 1] > following_P2[:, 1])[:, None]
    x1, y1 = np.where(upward_P1, following_P2, ring_P2).T
    x2, y2 = np.where(upward_P1, ring_P2, following_P2).T
    centres_H = np.arange(height) + 0.5
    edge, row = np.nonzero((y1[:, None] <= centres_H) & (y2[:, None] > centres_H))
    x = x1[edge] + (x2 - x1)[edge] * ((centres_H[row] - y1[edge]) / (y2 - y1)[edge])
    column = np.clip(np.ceil(x - 0.5), 0, width).astype(np.int64)
    turns = np.bincount(row * (width + 1) + column, minlength=height * (width + 1)).reshape(height, width + 1)
    inside: Mask = np.cumsum(turns[:, :width], axis=1) % 2 == 1
    return inside


def mask_envelope(mask: Mask) -> Float32 | None:
    """The upright xyxy box (4,) around the pixels of a mask, in whole pixels; None where there are none."""
    columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
    if not len(columns):
        return None
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], dtype=np.float32)


def mask_rings(mask: Mask, *, origin: tuple[int, int] = (0, 0)) -> Rings:
    """The rings along the outer edges of a mask's pixels, one per connected part; filled, they give the mask back.

    At the inner corners of a staircase a ring takes a short cut of half a pixel, which passes no pixel's centre. A hole
    is part of its ring, reached over a bridge that encloses no area.

    Args:
        mask: Pixels.
        origin: x and y of the mask's first pixel in the image.

    Returns:
        Pixels of the image; empty where the mask is.
    """
    # OpenCV walks through the centres of border pixels. Walked here are points half a pixel apart: one belongs to the
    # mask if one of the pixels that it touches does.
    halves = np.pad(mask.repeat(2, axis=0).repeat(2, axis=1), 1).astype(np.uint8)
    points = halves[1:, 1:] | halves[1:, :-1] | halves[:-1, 1:] | halves[:-1, :-1]
    contours, hierarchy = cv2.findContours(points, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    outlines = [np.asarray(contour.reshape(-1, 2) / 2 + origin, np.float32) for contour in contours]
    parents = [int(row[3]) for row in hierarchy[0]] if outlines else []
    rings = {index: outlines[index] for index, parent in enumerate(parents) if parent < 0}
    for index, parent in enumerate(parents):
        if parent >= 0:
            rings[parent] = _bridged(rings[parent], outlines[index])
    return list(rings.values())


def _bridged(ring_P2: Float32, hole_Q2: Float32) -> Float32:
    """A ring that goes round a hole as well, there and back over the shortest way between two of their points."""
    distances_PQ = np.square(ring_P2[:, None] - hole_Q2[None]).sum(axis=2)
    here, there = (int(index) for index in np.unravel_index(distances_PQ.argmin(), distances_PQ.shape))
    around = np.roll(hole_Q2, -there, axis=0)
    bridged: Float32 = np.concatenate([ring_P2[: here + 1], around, around[:1], ring_P2[here:]])
    return bridged
