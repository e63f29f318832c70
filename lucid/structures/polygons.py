"""Polygons: an object is a list of rings, a ring is float32 (P, 2) in pixels; numpy, on the host."""

import numpy as np
from numpy.typing import NDArray

from lucid.structures.affine import Float32

Rings = list[Float32]


def ring_area(ring_P2: NDArray[np.floating]) -> float:
    """The area inside a ring, in square pixels, whichever way it turns."""
    x, y = ring_P2.astype(np.float64).T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def rings_envelope(rings: Rings) -> Float32:
    """The upright xyxy box (4,) around all rings of one object; there must be at least one."""
    points = np.concatenate(rings)
    return np.concatenate([points.min(axis=0), points.max(axis=0)])


def contains(ring_P2: NDArray[np.floating], points_Q2: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Which points lie inside a ring, by the even-odd rule; on an edge either answer may come.

    Shape suffixes: P vertices, Q points.
    """
    x1, y1 = ring_P2.astype(np.float64).T[..., None]
    x2, y2 = np.roll(ring_P2, -1, axis=0).astype(np.float64).T[..., None]
    x, y = points_Q2.astype(np.float64).T
    spans_PQ = (y1 > y) != (y2 > y)
    rise_P1 = np.where(y1 == y2, 1.0, y2 - y1)
    crossings_PQ = spans_PQ & (x < x1 + (x2 - x1) * ((y - y1) / rise_P1))
    inside_Q: NDArray[np.bool_] = np.bitwise_xor.reduce(crossings_PQ, axis=0)
    return inside_Q


def clip_rings(rings: Rings, window: tuple[float, float, float, float]) -> Rings:
    """Cut the rings of one object to a window (x1, y1, x2, y2); what vanishes is left out.

    A concave ring that falls apart stays one ring with bridges along the window's border, which enclose no area.

    Source: Sutherland and Hodgman, Reentrant polygon clipping, 1974.
    """
    x1, y1, x2, y2 = window
    clipped = []
    for ring in rings:
        (left, top), (right, bottom) = ring.min(axis=0).tolist(), ring.max(axis=0).tolist()
        if left >= x1 and top >= y1 and right <= x2 and bottom <= y2:
            clipped.append(ring)
            continue
        if left > x2 or top > y2 or right < x1 or bottom < y1:
            continue
        # Only where the ring reaches beyond: this is most of the time that targets with outlines cost.
        for reaches, axis, bound, side in (
            (left < x1, 0, x1, 1),
            (right > x2, 0, x2, -1),
            (top < y1, 1, y1, 1),
            (bottom > y2, 1, y2, -1),
        ):
            if reaches:
                ring = _clip_half_plane(ring, axis, bound, side)
        if len(ring) >= 3 and ring_area(ring) > 0:
            clipped.append(ring)
    return clipped


def _clip_half_plane(ring_P2: Float32, axis: int, bound: float, side: int) -> Float32:
    """Keep the part of a ring with ``side * (coordinate - bound) >= 0``."""
    if len(ring_P2) == 0:
        return ring_P2
    following_P2 = np.concatenate([ring_P2[1:], ring_P2[:1]])
    distance_P = side * (ring_P2[:, axis].astype(np.float64) - bound)
    following_P = np.concatenate([distance_P[1:], distance_P[:1]])
    inside_P = distance_P >= 0
    crosses_P = inside_P != (following_P >= 0)
    gap_P = np.where(crosses_P, distance_P - following_P, 1.0)
    cut_P2 = ring_P2 + (following_P2 - ring_P2) * (distance_P / gap_P)[:, None]
    cut_P2[:, axis] = bound
    # Every vertex may leave itself and, after it, the point where its edge crosses the bound.
    both_P22 = np.stack([ring_P2, cut_P2], axis=1)
    kept: Float32 = both_P22[np.stack([inside_P, crosses_P], axis=1)].astype(np.float32)
    return kept
