"""Boxes with their class names, in colours, line widths and letters that suit the size of the picture."""

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from lucid.visualization.palette import class_color, text_color
from lucid.visualization.text import put_text, text_size


def draw_boxes(
    image: np.ndarray,
    boxes: Any,
    labels: Any,
    *,
    scores: Any = None,
    classes: Sequence[str] = (),
) -> np.ndarray:
    """Draw boxes and their names on a copy of an image; the highest score lies on top.

    Boxes are clipped to the image. Those that miss it, have no area or are not finite are left out.

    Args:
        image: uint8 (H, W, 3), RGB; stays as it is.
        boxes: (N, 4), xyxy, pixels of ``image``; array or tensor on the host.
        labels: (N,), class indices.
        scores: (N,), written behind the names; None for ground truth.
        classes: Names by label; a label without a name is written as a number.

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
    for i, (left, top, right, bottom) in drawn:
        cv2.rectangle(picture, (left, top), (right, bottom), class_color(int(labels_N[i])), line)
    # Names after all the boxes, so that no line runs through a name.
    for i, corners in drawn:
        label = int(labels_N[i])
        name = classes[label] if 0 <= label < len(classes) else str(label)
        text = name if scores_N is None else f'{name} {scores_N[i]:.2f}'
        _draw_name(picture, text, corners, class_color(label), line, letters)
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


def _draw_name(
    picture: np.ndarray,
    text: str,
    corners: tuple[int, int, int, int],
    color: tuple[int, int, int],
    line: int,
    letters: int,
) -> None:
    """Write on a filled strip above the box, or inside it where there is no room above; moved left at the border."""
    left, top, _, _ = corners
    room, margin = text_size(text, letters), max(1, letters // 6)
    strip_width, strip_height = room.width + 2 * margin, room.height + margin
    x = max(0, min(left - line // 2, picture.shape[1] - strip_width))
    y = top - strip_height if top >= strip_height else top
    cv2.rectangle(picture, (x, y), (x + strip_width - 1, y + strip_height - 1), color, cv2.FILLED)
    put_text(picture, text, (x + margin, y + margin // 2 + room.ascent), letters, text_color(color))
