"""What a reader makes of a folder, whatever its layout."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lucid.datasets.annotations import Box, Categories, Row

KINDS = {
    'coco': ('boxes', 'polygons', 'masks', 'rboxes', 'keypoints'),
    'yolo': ('boxes', 'rboxes'),
    'voc': ('boxes',),
    'dota': ('boxes', 'rboxes'),
}
"""The targets that each layout can hold; masks are polygons that no object lacks."""
MISSING_LABELS = ('error', 'background')
"""What an image without a label file can mean."""
LARGEST = 2**31 - 1
"""Pixels of a side, kept as int32."""
THINNEST = 1e-3
"""Pixels; what is thinner has no area in float32 at the far side of a large image."""


class AnnotationError(ValueError):
    """Why an annotation cannot be used; ``kind`` is one word for counting."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ImageRow(NamedTuple):
    """One image; sizes in pixels, 1 by 1 where the file that should tell them is bad.

    file:   its path
    source: of a tile, the image that it was cut from; else empty
    window: xyxy, where the tile lies in its source
    """

    id: int
    file: str
    height: int
    width: int
    source: str = ''
    window: Box = (0.0, 0.0, 0.0, 0.0)


class Content(NamedTuple):
    """The usable content of one split; crowds are in it, bad annotations are not.

    layout: a key of ``KINDS``
    source: the file that was read, or that leads to those that were
    rows:   of all images, in the order of their files
    split:  its name, where the source is that of several; else empty
    """

    layout: str
    source: Path
    categories: Categories
    images: list[ImageRow]
    rows: list[Row]
    split: str = ''


def check_targets(targets: Sequence[str], layout: str) -> None:
    """Refuse kinds of targets that a layout cannot hold.

    Args:
        targets: Kinds that are asked for.
        layout: A key of ``KINDS``.

    Raises:
        ValueError: Names them and those that it can hold.
    """
    if unknown := set(targets) - set(KINDS[layout]):
        raise ValueError(
            f'targets={list(targets)} has {sorted(unknown)}, which the layout {layout} does not hold; '
            f'choose from {", ".join(KINDS[layout])}'
        )


def check_word(name: str, value: str, known: Sequence[str]) -> None:
    """Raise ValueError unless an argument is one of the words that it can be."""
    if value not in known:
        raise ValueError(f'{name}={value!r} is unknown; choose one of {", ".join(known)}')


def checked_box(box: Box, size: tuple[int, int], *, text: str) -> Box:
    """Check corners and clip them to the image.

    Args:
        box: x1, y1, x2, y2 in pixels.
        size: Height and width of the image.
        text: The box as its file has it, for the message.

    Returns:
        Corners inside the image.

    Raises:
        AnnotationError: The box is not finite, inverted, without area, or outside the image.
    """
    x1, y1, x2, y2 = box
    height, width = size
    if not all(map(math.isfinite, box)):
        raise AnnotationError('nan_box', f'{text} is not finite')
    if x2 < x1 or y2 < y1:
        raise AnnotationError('inverted_box', f'{text} has a negative width or height')
    if x2 - x1 < THINNEST or y2 - y1 < THINNEST:
        raise AnnotationError('empty_box', f'{text} has no area')
    x1, y1, x2, y2 = max(x1, 0.0), max(y1, 0.0), min(x2, width), min(y2, height)
    if x2 - x1 < THINNEST or y2 - y1 < THINNEST:
        raise AnnotationError('outside_box', f'{text} is outside the {width}x{height} image')
    return x1, y1, x2, y2


def checked_corners(numbers: Sequence[float], *, text: str) -> NDArray[np.float64]:
    """Check the corners of an object that is a rotated rectangle, or was drawn like one.

    Args:
        numbers: Eight finite ones: x and y of four corners in turn, pixels.
        text: What they are called, for the message.

    Returns:
        Corners (4, 2), also beyond the image.

    Raises:
        AnnotationError: They enclose no area, or two of their edges cross.
    """
    x, y = numbers[::2], numbers[1::2]
    sides = [math.hypot(x[(i + 1) % 4] - x[i], y[(i + 1) % 4] - y[i]) for i in range(4)]
    # The sides of the rectangle that is fitted to them.
    if min(sides[0] + sides[2], sides[1] + sides[3]) / 2 < THINNEST:
        raise AnnotationError('malformed_rbox', f'{text}: the corners enclose no area')
    if _cross(x, y, (0, 1, 2, 3)) or _cross(x, y, (1, 2, 3, 0)):
        raise AnnotationError('malformed_rbox', f'{text}: two edges cross; give the corners in turn')
    if abs(sum(x[i] * y[(i + 1) % 4] - x[(i + 1) % 4] * y[i] for i in range(4))) / 2 < THINNEST**2:
        raise AnnotationError('malformed_rbox', f'{text}: the corners enclose no area')
    return np.array(numbers, dtype=np.float64).reshape(4, 2)


def _cross(x: Sequence[float], y: Sequence[float], ends: tuple[int, int, int, int]) -> bool:
    """Whether the edge between the first two of four points crosses that between the others, not at an end."""

    def turn(a: int, b: int, c: int) -> float:
        return (x[b] - x[a]) * (y[c] - y[a]) - (y[b] - y[a]) * (x[c] - x[a])

    a, b, c, d = ends
    return turn(a, b, c) * turn(a, b, d) < 0 and turn(c, d, a) * turn(c, d, b) < 0
