"""Masks, polygons, rotated boxes and keypoints, in the colors of their classes.

Shape suffixes: N objects, K keypoints, P points of a ring, H, W pixels.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from lucid.structures.rotated import corners
from lucid.structures.run_lengths import decode_run_lengths
from lucid.visualization.palette import class_color, text_color

_FILLED = 0.35
_SHIFT = 4

Color = tuple[int, int, int]


def draw_outlines(image: np.ndarray, objects: Mapping[str, Any], *, scale: float = 1.0) -> np.ndarray:
    """Draw what a picture of boxes does not show, where it is known, on a copy of an image.

    Masks and polygons are tinted and outlined, rotated boxes have a bright first side (from their first corner to the
    second, along the long edge), a visible keypoint is a disc, a hidden one a ring; one that is not labelled is not
    drawn. Of objects with ``scores`` the highest lies on top.

    Args:
        image: uint8 (H, W, 3), RGB; stays as it is.
        objects: ``labels`` (N,), and any of ``masks``, N run-length masks or bool (H, W) arrays of any resolution that
            cover the image; ``polygons``, N lists of (P, 2) rings; ``rboxes`` (N, 5), cx, cy, w, h, theta;
            ``keypoints`` (N, K, 3), x, y, visibility, or (N, K, 2), all visible, and ``limbs``, pairs of keypoints that
            are joined; one that is missing or None is not drawn.
        scale: Pixels of ``image`` per unit of the objects' coordinates.

    Returns:
        uint8 (H, W, 3), RGB, owned by the caller.
    """
    picture = np.array(image, order='C')
    side = (picture.shape[0] * picture.shape[1]) ** 0.5
    line, dot = max(1, round(side / 320)), max(3, round(side / 130))
    labels = np.asarray(objects['labels']).reshape(-1)
    scores, order = objects.get('scores'), np.arange(len(labels))
    if scores is not None:
        order = np.argsort(np.asarray(scores, dtype=np.float64).reshape(-1), kind='stable')
    colors = [class_color(int(label)) for label in labels[order]]
    if objects.get('masks') is not None:
        size = picture.shape[:2]
        _fill(picture, [[_outline(objects['masks'][i], size)] for i in order], colors, line)
    if objects.get('polygons') is not None:
        _fill(picture, [[[_fixed(ring, scale)] for ring in objects['polygons'][i]] for i in order], colors, line)
    if objects.get('rboxes') is not None:
        boxes_N5 = np.asarray(objects['rboxes'], np.float32).reshape(-1, 5)[order]
        for color, box, ring in zip(colors, boxes_N5, corners(boxes_N5), strict=True):
            if box[2] > 0 and np.isfinite(ring).all():
                points = _fixed(ring, scale)
                cv2.polylines(picture, [points], True, color, line, cv2.LINE_AA, _SHIFT)
                cv2.polylines(picture, [points[:2]], False, (255, 255, 255), line, cv2.LINE_AA, _SHIFT)
    if objects.get('keypoints') is not None:
        keypoints = np.asarray(objects['keypoints'], np.float32)
        for i, color in zip(order, colors, strict=True):
            _draw_keypoints(picture, keypoints[i] * (scale, scale, 1)[: keypoints.shape[-1]], objects, color, line, dot)
    return picture


def _fill(
    picture: np.ndarray, shapes: Sequence[Sequence[Sequence[np.ndarray]]], colors: Sequence[Color], line: int
) -> None:
    """Tint and outline objects, each a list of parts: of a part's rings those inside others are holes."""
    parts = [(color, rings) for color, shape in zip(colors, shapes, strict=True) for rings in shape if len(rings)]
    tinted = picture.copy()
    for color, rings in parts:
        cv2.fillPoly(tinted, rings, color, cv2.LINE_AA, _SHIFT)
    cv2.addWeighted(tinted, _FILLED, picture, 1 - _FILLED, 0, dst=picture)
    for color, rings in parts:
        cv2.polylines(picture, rings, True, color, line, cv2.LINE_AA, _SHIFT)


def _outline(mask: Any, size: tuple[int, int]) -> list[np.ndarray]:
    """The edges of a mask that covers a picture of some height and width, as OpenCV's fixed point numbers."""
    pixels = decode_run_lengths(mask, tuple(mask['size'])) if isinstance(mask, Mapping) else np.asarray(mask)
    shown = cv2.resize(pixels.astype(np.uint8) * 255, size[::-1], interpolation=cv2.INTER_LINEAR) >= 128
    contours, _ = cv2.findContours(shown.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    return [np.asarray(contour, np.int32).reshape(-1, 2) << _SHIFT for contour in contours]


def _draw_keypoints(
    picture: np.ndarray, points: np.ndarray, objects: Mapping[str, Any], color: Color, line: int, dot: int
) -> None:
    """The keypoints of one object in pixels of the picture, over the lines between them."""
    visible = points[:, 2] if points.shape[1] > 2 else np.full(len(points), 2)
    places = [tuple(_fixed(point, 1).tolist()) for point in points[:, :2]]
    for start, end in _joined(objects.get('limbs') or (), visible):
        cv2.line(picture, places[start], places[end], color, line, cv2.LINE_AA, _SHIFT)
    for place, visibility in zip(places, visible, strict=True):
        if visibility > 1:
            cv2.circle(picture, place, dot << _SHIFT, color, cv2.FILLED, cv2.LINE_AA, _SHIFT)
        if visibility > 0:
            edge = text_color(color) if visibility > 1 else color
            cv2.circle(picture, place, dot << _SHIFT, edge, 1, cv2.LINE_AA, _SHIFT)


def _joined(limbs: Sequence[tuple[int, int]], visible: np.ndarray) -> Iterator[tuple[int, int]]:
    return ((start, end) for start, end in limbs if visible[start] > 0 and visible[end] > 0)


def _fixed(points: Any, scale: float) -> np.ndarray:
    """Coordinates as OpenCV's fixed point numbers, which count from pixel centres and need room for what is far off."""
    limit = 2 ** (30 - _SHIFT) - 1
    return np.round(np.clip(np.asarray(points) * scale - 0.5, -limit, limit) * 2**_SHIFT).astype(np.int32)
