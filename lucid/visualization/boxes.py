"""Boxes with their class names, in colours, line widths and letters that suit the size of the picture."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from lucid.visualization.palette import class_color, text_color
from lucid.visualization.text import put_text, text_size

CROWDED = 40
"""Objects of a picture up to which all are named."""


def draw_boxes(
    image: np.ndarray,
    boxes: Any,
    labels: Any,
    *,
    scores: Any = None,
    classes: Sequence[str] = (),
    frames: bool = True,
) -> np.ndarray:
    """Draw boxes and their names on a copy of an image; the highest score lies on top.

    Boxes are clipped to the image. Those that miss it, have no area or are not finite are left out. A name that would
    lie on that of a higher score is left out, and of more than ``CROWDED`` objects only the best of each class is
    named: their names would hide them.

    Args:
        image: uint8 (H, W, 3), RGB; stays as it is.
        boxes: (N, 4), xyxy, pixels of ``image``; array or tensor on the host.
        labels: (N,), class indices.
        scores: (N,), written behind the names; None for ground truth.
        classes: Names by label; a label without a name is written as a number.
        frames: Whether to draw the boxes, or their names alone.

    Returns:
        uint8 (H, W, 3), RGB, owned by the caller.
    """
    picture = np.array(image, order='C')
    height, width = picture.shape[:2]
    side = (height * width) ** 0.5
    line, letters = max(1, round(side / 240)), max(10, round(side / 42))

    boxes_N4 = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    labels_N = np.asarray(labels, dtype=np.int64).reshape(-1)
    scores_N = None if scores is None else np.asarray(scores, dtype=np.float64).reshape(-1)
    order = range(len(boxes_N4)) if scores_N is None else np.argsort(scores_N, kind='stable')
    drawn = [(i, corners) for i in order if (corners := _pixels(boxes_N4[i], width, height)) is not None]
    for i, (left, top, right, bottom) in drawn if frames else ():
        cv2.rectangle(picture, (left, top), (right, bottom), class_color(int(labels_N[i])), line)
    # Names after all the boxes, so that no line runs through a name.
    strips: list[tuple[int, int, int, int]] = []
    named: set[int] = set()
    for i, corners in reversed(drawn):
        label = int(labels_N[i])
        name = classes[label] if 0 <= label < len(classes) else str(label)
        text = name if scores_N is None else f'{name} {scores_N[i]:.2f}'
        strip = _strip(text, corners, picture.shape, line, letters)
        if (len(drawn) > CROWDED and label in named) or any(_meet(strip, other) for other in strips):
            continue
        _draw_name(picture, text, strip, class_color(label), letters)
        strips.append(strip)
        named.add(label)
    return picture


def _pixels(box: np.ndarray, width: int, height: int) -> tuple[int, int, int, int] | None:
    """First and last pixel columns and rows of a box inside the picture; None if nothing is left of it."""
    if not np.isfinite(box).all():
        return None
    left, top, right, bottom = np.clip(box, 0, (width, height, width, height))
    if right <= left or bottom <= top:
        return None
    left, top = min(round(left), width - 1), min(round(top), height - 1)
    return left, top, max(left, round(right) - 1), max(top, round(bottom) - 1)


def _strip(
    text: str, corners: tuple[int, int, int, int], shape: tuple[int, ...], line: int, letters: int
) -> tuple[int, int, int, int]:
    """First columns and rows, and last ones, of a name above its box, or inside where there is no room; moved left at
    the border.
    """
    left, top, _, _ = corners
    room, margin = text_size(text, letters), max(1, letters // 6)
    width, height = room.width + 2 * margin, room.height + margin
    x = max(0, min(left - line // 2, shape[1] - width))
    y = top - height if top >= height else top
    return x, y, x + width - 1, y + height - 1


def _meet(strip: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    """Whether two of them share a pixel."""
    return strip[0] <= other[2] and other[0] <= strip[2] and strip[1] <= other[3] and other[1] <= strip[3]


def _draw_name(
    picture: np.ndarray, text: str, strip: tuple[int, int, int, int], color: tuple[int, int, int], letters: int
) -> None:
    """Write on a filled strip."""
    x, y, right, bottom = strip
    margin = max(1, letters // 6)
    cv2.rectangle(picture, (x, y), (right, bottom), color, cv2.FILLED)
    origin = (x + margin, y + margin // 2 + text_size(text, letters).ascent)
    put_text(picture, text, origin, letters, text_color(color))
