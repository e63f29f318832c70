"""Text on pictures, with OpenCV's outline font: any script that it knows, a question mark for any other sign."""

from functools import cache
from typing import NamedTuple

import cv2
import numpy as np

_WEIGHT = 500


class TextSize(NamedTuple):
    """Pixels of one line: ``ascent`` above the baseline and ``descent`` below it, the same for every text."""

    width: int
    ascent: int
    descent: int

    @property
    def height(self) -> int:
        """Ascent and descent together."""
        return self.ascent + self.descent


@cache
def _font() -> cv2.FontFace:
    return cv2.FontFace('sans')


def _printable(text: str) -> str:
    # A lone surrogate, which JSON can hold, crashes the process inside OpenCV; a line break would leave the box.
    return ''.join(sign if sign.isprintable() else '?' for sign in text)


def text_size(text: str, size: int) -> TextSize:
    """Room that ``text`` takes in a font of ``size`` pixels."""
    width = cv2.getTextSize((0, 0), _printable(text), (0, 0), _font(), size, _WEIGHT)[2]
    return TextSize(width, round(size * 0.8), round(size * 0.25))


def wrapped(text: str, size: int, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` pixels, broken between words, and in a word that alone is too long."""
    lines: list[str] = []
    while text:
        end = len(text)
        while end > 1 and text_size(text[:end], size).width > width:
            end -= 1
        if end < len(text) and (space := text.rfind(' ', 1, end + 1)) > 0:
            end = space
        lines.append(text[:end].rstrip())
        text = text[end:].lstrip()
    return lines


def put_text(image: np.ndarray, text: str, origin: tuple[int, int], size: int, color: tuple[int, int, int]) -> None:
    """Write into ``image`` in place; ``origin`` is the left end of the baseline."""
    # OpenCV breaks a line at the right border: a limit beyond it keeps the line whole.
    limit = (origin[0], origin[0] + (len(text) + 1) * 2 * size)
    cv2.putText(image, _printable(text), origin, color, _font(), size, _WEIGHT, 0, limit)
