"""Masks of objects: bool (H, W) arrays of pixels, and the polygon rings that enclose them; numpy, on the host.

Shape suffixes: N objects, H, W pixels, R rings, P points of all rings or of one, Q points of another, E crossings.
"""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from lucid.structures.affine import Float32
from lucid.structures.polygons import Rings

Mask = NDArray[np.bool_]
PAIRS = 2**13
"""Points of a ring and of a hole that are compared."""


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
    mask: Mask = fill_objects([rings], size, origin=origin)[0]
    return mask


def fill_objects(objects: Sequence[Rings], size: tuple[int, int], *, origin: tuple[int, int] = (0, 0)) -> Mask:
    """The masks (N, H, W) of N objects, each as ``fill_rings`` gives it; one without rings covers nothing.

    Args:
        objects: Rings of each, in pixels of the image.
        size: Height and width of the masks.
        origin: x and y of the masks' first pixel in the image.

    Returns:
        Fresh masks.
    """
    masks_NHW = np.zeros((len(objects), *size), dtype=np.bool_)
    rings = [ring for rings in objects for ring in rings]
    if not rings:
        return masks_NHW
    owners = [number for number, rings in enumerate(objects) for _ in rings]
    lengths_R = np.array([len(ring) for ring in rings])
    starts_R = np.cumsum(lengths_R) - lengths_R
    points_P2 = np.concatenate(rings).astype(np.float64) - origin
    limits = size[::-1]
    low_R2 = np.floor(np.clip(np.minimum.reduceat(points_P2, starts_R), 0, limits)).astype(np.int64)
    high_R2 = np.ceil(np.clip(np.maximum.reduceat(points_P2, starts_R), 0, limits)).astype(np.int64)

    # Each ring is filled in the rectangle around it; a further column takes the edges that pass on the right.
    width_R, height_R = (high_R2 - low_R2).T
    cells_R = (width_R + 1) * height_R
    firsts_R = np.cumsum(cells_R) - cells_R
    row_E, x_E, ring_E = _crossings(points_P2, starts_R, lengths_R, low_R2[:, 1], high_R2[:, 1])
    column_E = np.clip(np.ceil(x_E - 0.5) - low_R2[ring_E, 0], 0, width_R[ring_E]).astype(np.int64)
    turns = np.zeros(cells_R.sum(), dtype=np.uint8)
    place_E = firsts_R[ring_E] + (row_E - low_R2[ring_E, 1]) * (width_R[ring_E] + 1) + column_E
    np.bitwise_xor.at(turns, place_E, np.uint8(1))
    # A closed ring crosses every row an even number of times: each row, and each ring, begins outside again.
    inside = np.bitwise_xor.accumulate(turns).view(np.bool_)
    windows = zip(owners, low_R2.tolist(), high_R2.tolist(), firsts_R.tolist(), cells_R.tolist(), strict=True)
    for owner, (left, top), (right, bottom), first, cells in windows:
        filled = inside[first : first + cells].reshape(bottom - top, right - left + 1)
        masks_NHW[owner, top:bottom, left:right] |= filled[:, :-1]
    return masks_NHW


def _crossings(
    points_P2: NDArray[np.float64],
    starts_R: NDArray[np.int64],
    lengths_R: NDArray[np.int64],
    top_R: NDArray[np.int64],
    bottom_R: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Where edges cross the centre lines of pixel rows: row, x and ring of each crossing, between top and bottom."""
    following_P2 = np.roll(points_P2, -1, axis=0)
    following_P2[starts_R + lengths_R - 1] = points_P2[starts_R]
    ring_P = np.repeat(np.arange(len(lengths_R)), lengths_R)
    # Always from top to bottom, so that a bridge gives the same crossings there and back.
    upward_P1 = (points_P2[:, 1] > following_P2[:, 1])[:, None]
    x1, y1 = np.where(upward_P1, following_P2, points_P2).T
    x2, y2 = np.where(upward_P1, points_P2, following_P2).T
    limits = top_R[ring_P], bottom_R[ring_P]
    first_P, end_P = (np.clip(np.ceil(y - 0.5), *limits).astype(np.int64) for y in (y1, y2))
    count_P = end_P - first_P
    edge_E = np.repeat(np.arange(len(points_P2)), count_P)
    row_E = np.arange(len(edge_E)) - np.repeat(np.cumsum(count_P) - count_P - first_P, count_P)
    x_E = x1[edge_E] + (x2 - x1)[edge_E] * ((row_E + 0.5 - y1[edge_E]) / (y2 - y1)[edge_E])
    return row_E, x_E, ring_P[edge_E]


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
    holes: dict[int, Rings] = {index: [] for index, parent in enumerate(parents) if parent < 0}
    for index, parent in enumerate(parents):
        if parent >= 0:
            holes[parent].append(outlines[index])
    return [_bridged(outlines[index], inner) for index, inner in holes.items()]


def _bridged(ring_P2: Float32, holes: Rings) -> Float32:
    """A ring that goes round its holes as well, there and back over about the shortest way between two points."""
    detours = []
    for hole_Q2 in holes:
        # Any way will do; all pairs of points would be too many for an object that is full of holes.
        step = max(1, len(ring_P2) * len(hole_Q2) // PAIRS)
        x_PQ, y_PQ = (ring_P2[::step, axis, None] - hole_Q2[None, :, axis] for axis in (0, 1))
        near, there = divmod(int((x_PQ * x_PQ + y_PQ * y_PQ).argmin()), len(hole_Q2))
        around = np.roll(hole_Q2, -there, axis=0)
        detours.append((near * step, np.concatenate([around, around[:1], ring_P2[near * step, None]])))
    detours.sort(key=lambda detour: detour[0])
    parts, start = [], 0
    for here, detour in detours:
        parts += [ring_P2[start : here + 1], detour]
        start = here + 1
    bridged: Float32 = np.concatenate([*parts, ring_P2[start:]])
    return bridged
