"""The one place where pixels are resampled by a matrix."""

import cv2
import numpy as np
from numpy.typing import NDArray

from lucid.datasets.transforms.base import FILL
from lucid.structures.affine import Matrix, translation


def warp_image(image: NDArray[np.uint8], matrix: Matrix, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Carry an image (H, W, 3) through a map of continuous coordinates, bilinear, without antialiasing, grey outside.

    Args:
        image: Source; may be a view.
        matrix: Pixels of the source to pixels of the result.
        size: Height and width of the result.

    Returns:
        A fresh image of that size.
    """
    # OpenCV counts from pixel centres: its 0 is our 0.5. Without the shift everything moves by half a pixel per ratio.
    centres = translation(-0.5, -0.5) @ matrix @ translation(0.5, 0.5)
    warped = cv2.warpAffine(
        image,
        np.linalg.inv(centres)[:2],
        size[::-1],
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(FILL, FILL, FILL),
    )
    return np.asarray(warped, np.uint8)
