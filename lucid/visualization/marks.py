"""Pictures of what is wrong: the stated box, wherever it lies, marked so that it is found at a glance."""

import math
from collections.abc import Sequence

import cv2
import numpy as np

from lucid.visualization.panels import add_caption, caption_size, resize_to_side
from lucid.visualization.text import put_text, text_size, wrapped

_MARK = (255, 40, 40)
_OUTSIDE = (70, 70, 74)
_INK = (235, 235, 235)
_LEAST = 6
"""Pixels of a panel: a box with a smaller side is ringed too."""


def draw_problem(
    image: np.ndarray, box: Sequence[float] | None, caption: Sequence[str], *, side: int = 480
) -> np.ndarray:
    """A panel with one bad box in red, drawn from corner to corner whichever way round they are.

    A box beyond the image is shown on a margin of at most the image's own size, one farther out by an arrow towards it.
    A box so small that it would be overlooked has a ring round it. One that is not finite is not drawn.

    Args:
        image: uint8 (H, W, 3), RGB; stays as it is.
        box: xyxy, pixels of ``image``, as it is stated; None draws none.
        caption: Lines above the picture; what is too long for its width goes on in the next line.
        side: Pixels of the panel's longer side, without its caption.

    Returns:
        uint8 (H, W, 3), RGB, owned by the caller.
    """
    height, width = image.shape[:2]
    drawn = box is not None and all(map(math.isfinite, box))
    x1, y1, x2, y2 = box if box is not None and drawn else (0.0, 0.0, 0.0, 0.0)
    (x1, x2), (y1, y2) = sorted((x1, x2)), sorted((y1, y2))
    left, right = _margin(-x1, width), _margin(x2 - width, width)
    top, bottom = _margin(-y1, height), _margin(y2 - height, height)
    framed = cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=_OUTSIDE)
    scale = side / max(framed.shape[:2])
    panel = np.array(resize_to_side(framed, side), order='C')
    if drawn:
        _mark(panel, ((x1 + left) * scale, (y1 + top) * scale), ((x2 + left) * scale, (y2 + top) * scale))
    return _captioned(panel, caption)


def draw_message(lines: Sequence[str], caption: Sequence[str], *, side: int = 480) -> np.ndarray:
    """A panel in the place of an image that cannot be shown; lines are broken to fit.

    Args:
        lines: What to say.
        caption: Lines above the panel.
        side: Pixels of the panel's width.

    Returns:
        uint8 (H, W, 3), RGB, owned by the caller.
    """
    panel = np.full((side // 2, side, 3), _OUTSIDE, np.uint8)
    size, y = 14, 24
    for line in lines:
        for part in wrapped(line, size, side - 16):
            if y < panel.shape[0]:
                put_text(panel, part, (8, y), size, _INK)
            y += text_size('x', size).height + 4
    return _captioned(panel, caption)


def _margin(beyond: float, limit: int) -> int:
    """Pixels to add on one side for a box that reaches so far beyond it, with some room."""
    return 0 if beyond <= 0 else min(limit, math.ceil(beyond * 1.1) + 4)


def _mark(panel: np.ndarray, low: tuple[float, float], high: tuple[float, float]) -> None:
    height, width = panel.shape[:2]
    centre = ((low[0] + high[0]) / 2, (low[1] + high[1]) / 2)
    seen = (min(max(centre[0], 0), width - 1), min(max(centre[1], 0), height - 1))
    if high[0] < 0 or high[1] < 0 or low[0] >= width or low[1] >= height:
        start = (width / 2 + (seen[0] - width / 2) * 0.7, height / 2 + (seen[1] - height / 2) * 0.7)
        cv2.arrowedLine(panel, _pixel(start), _pixel(seen), _MARK, 3, tipLength=0.3)
        return
    corners = [_pixel((min(max(x, -2), width + 1), min(max(y, -2), height + 1))) for x, y in (low, high)]
    cv2.rectangle(panel, corners[0], corners[1], _MARK, 2)
    if min(high[0] - low[0], high[1] - low[1]) < _LEAST:
        cv2.circle(panel, _pixel(seen), 14, _MARK, 2, cv2.LINE_AA)


def _pixel(point: tuple[float, float]) -> tuple[int, int]:
    return round(point[0]), round(point[1])


def _captioned(panel: np.ndarray, caption: Sequence[str]) -> np.ndarray:
    width = panel.shape[1]
    lines = [part for line in caption for part in wrapped(line, caption_size(width), width - 8)]
    for line in reversed(lines):
        panel = add_caption(panel, line)
    return panel
