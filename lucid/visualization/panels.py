"""Pictures made of pictures: captions, pairs and grids."""

from collections.abc import Sequence

import cv2
import numpy as np

from lucid.visualization.text import put_text, text_size

_BACKGROUND = (28, 28, 30)
_INK = (235, 235, 235)


def resize_to_side(image: np.ndarray, side: int) -> np.ndarray:
    """Scale an RGB image so that its longer side has ``side`` pixels; the same object where it already has."""
    height, width = image.shape[:2]
    scale = side / max(height, width)
    if scale == 1:
        return image
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)


def caption_size(width: int) -> int:
    """Pixels of the letters above a picture of that width."""
    return max(11, min(22, round(width / 28)))


def add_caption(image: np.ndarray, text: str) -> np.ndarray:
    """Put a strip with one line of text on top of an RGB image; what does not fit is cut off with an ellipsis."""
    width = image.shape[1]
    size = caption_size(width)
    while len(text) > 1 and text_size(text, size).width > width - 8:
        text = f'{text.rstrip("…")[:-1]}…'
    room = text_size(text, size)
    strip = np.full((room.height + 6, width, 3), _BACKGROUND, np.uint8)
    put_text(strip, text, (4, 3 + room.ascent), size, _INK)
    return np.concatenate([strip, image])


def grid(images: Sequence[np.ndarray], *, columns: int | None = None, gap: int = 4) -> np.ndarray:
    """Lay RGB images out in rows, each in the upper left of a cell as large as the largest.

    Args:
        images: uint8 (H, W, 3) each, of any sizes; at least one.
        columns: Images per row; None makes the grid about square.
        gap: Pixels between the cells and round them.

    Returns:
        uint8 (H, W, 3), RGB, owned by the caller.
    """
    columns = min(len(images), columns or int(np.ceil(len(images) ** 0.5)))
    rows = -(-len(images) // columns)
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    picture = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, 3), _BACKGROUND, np.uint8)
    for i, image in enumerate(images):
        top, left = gap + i // columns * (height + gap), gap + i % columns * (width + gap)
        picture[top : top + image.shape[0], left : left + image.shape[1]] = image
    return picture
