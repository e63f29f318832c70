"""Polygons, rotated boxes and keypoints, in the colors of their classes.

Shape suffixes: N objects, K keypoints, P points of a ring.
"""

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np

from lucid.structures.rotated import corners
from lucid.visualization.palette import class_color, text_color

_FILLED = 0.35
_SHIFT = 4


def draw_outlines(image: np.ndarray, objects: Mapping[str, Any], *, scale: float = 1.0) -> np.ndarray:
    """Draw what a picture of boxes does not show, where it is known, on a copy of an image.

    Polygons are tinted, rotated boxes have a bright first side (from their first corner to the second, along the long
    edge), a visible keypoint is a disc, a hidden one a ring; one that is not labelled is not drawn.

    Args:
        image: uint8 (H, W, 3), RGB; stays as it is.
        objects: ``labels`` (N,), and any of ``polygons``, N lists of (P, 2) rings; ``rboxes`` (N, 5), cx, cy, w, h,
            theta; ``keypoints`` (N, K, 3), x, y, visibility; one that is missing or None is not drawn.
        scale: Pixels of ``image`` per unit of the objects' coordinates.

    Returns:
        uint8 (H, W, 3), RGB, owned by the caller.
    """
    picture = np.array(image, order='C')
    side = (picture.shape[0] * picture.shape[1]) ** 0.5
    line, dot = max(1, round(side / 320)), max(3, round(side / 130))
    colors = [class_color(int(label)) for label in np.asarray(objects['labels']).reshape(-1)]
    if objects.get('polygons') is not None:
        _draw_polygons(picture, objects['polygons'], colors, line, scale)
    if objects.get('rboxes') is not None:
        boxes_N5 = np.asarray(objects['rboxes'], np.float32).reshape(-1, 5)
        for color, box, ring in zip(colors, boxes_N5, corners(boxes_N5), strict=True):
            if box[2] > 0 and np.isfinite(ring).all():
                points = _fixed(ring, scale)
                cv2.polylines(picture, [points], True, color, line, cv2.LINE_AA, _SHIFT)
                cv2.polylines(picture, [points[:2]], False, (255, 255, 255), line, cv2.LINE_AA, _SHIFT)
    if objects.get('keypoints') is not None:
        for color, points in zip(colors, np.asarray(objects['keypoints'], np.float32), strict=True):
            for x, y, visibility in points.tolist():
                if visibility > 0:
                    place = tuple(_fixed(np.array([x, y]), scale).tolist())
                    if visibility > 1:
                        cv2.circle(picture, place, dot << _SHIFT, color, cv2.FILLED, cv2.LINE_AA, _SHIFT)
                    edge = text_color(color) if visibility > 1 else color
                    cv2.circle(picture, place, dot << _SHIFT, edge, 1, cv2.LINE_AA, _SHIFT)
    return picture


def _draw_polygons(
    picture: np.ndarray, polygons: Any, colors: list[tuple[int, int, int]], line: int, scale: float
) -> None:
    tinted = picture.copy()
    for color, rings in zip(colors, polygons, strict=True):
        for ring in rings:
            cv2.fillPoly(tinted, [_fixed(ring, scale)], color, cv2.LINE_AA, _SHIFT)
    cv2.addWeighted(tinted, _FILLED, picture, 1 - _FILLED, 0, dst=picture)
    for color, rings in zip(colors, polygons, strict=True):
        for ring in rings:
            cv2.polylines(picture, [_fixed(ring, scale)], True, color, line, cv2.LINE_AA, _SHIFT)


def _fixed(points: Any, scale: float) -> np.ndarray:
    """Coordinates as OpenCV's fixed point numbers, which count from pixel centres and need room for what is far off."""
    limit = 2 ** (30 - _SHIFT) - 1
    return np.round(np.clip(np.asarray(points) * scale - 0.5, -limit, limit) * 2**_SHIFT).astype(np.int32)
