"""Resampling a whole image by a matrix."""

import cv2
import numpy as np

from lucid.datasets.layers import FILL, Image
from lucid.structures.affine import Matrix, translation


def warp_image(image: Image, matrix: Matrix, size: tuple[int, int], *, out: Image | None = None) -> Image:
    """Carry an image (H, W, 3 or 4) through a map of continuous coordinates, bilinear, grey outside; no antialiasing.

    Args:
        image: Source; may be a view.
        matrix: Pixels of the source to pixels of the result.
        size: Height and width of the result.
        out: Where the result goes; None makes a new array.

    Returns:
        An image of that size.
    """
    # OpenCV counts from pixel centres: its 0 is our 0.5. Without the shift everything moves by half a pixel per ratio.
    centres = translation(-0.5, -0.5) @ matrix @ translation(0.5, 0.5)
    warped = cv2.warpAffine(
        image,
        np.linalg.inv(centres)[:2],
        size[::-1],
        dst=out,
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(FILL, FILL, FILL, FILL),
    )
    return np.asarray(warped, np.uint8)
