"""Scenes of rotated shapes: their pixels."""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from lucid.datasets.shape_scenes import Difficulty, Shape

FRACTION_BITS = 4
GREY = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue in a grey level (ITU-R BT.601)."""


def paint_scene(
    rng: np.random.Generator, shapes: Sequence[Shape], size: int, difficulty: Difficulty
) -> NDArray[np.uint8]:
    """Plainly filled shapes on a softly textured background.

    Args:
        rng: Drawn from.
        shapes: In the order in which they are painted.
        size: Side of the square image in pixels.
        difficulty: How much the objects stand out.

    Returns:
        uint8 (size, size, 3), RGB.
    """
    base = rng.integers(70, 186, size=3)
    image = np.full((size, size, 3), base, dtype=np.float32)
    for cells, amplitude in ((4, 14), (max(size // 10, 4), 6)):
        noise = rng.uniform(-amplitude, amplitude, size=(cells, cells, 3)).astype(np.float32)
        image += cv2.resize(noise, (size, size), interpolation=cv2.INTER_CUBIC)
    image += rng.integers(-4, 5, size=(size, size, 1))
    painted = np.clip(image, 0, 255).astype(np.uint8)
    used: list[NDArray[np.int64]] = []
    for shape in shapes:
        color = _color(rng, base, used, difficulty)
        used.append(color)
        # OpenCV counts from pixel centres and takes fixed-point coordinates.
        vertices = np.round((shape.outline - 0.5) * 2**FRACTION_BITS).astype(np.int32)
        cv2.fillPoly(painted, [vertices], color.tolist(), lineType=cv2.LINE_AA, shift=FRACTION_BITS)
    return painted


def _color(
    rng: np.random.Generator, base: NDArray[np.int64], used: Sequence[NDArray[np.int64]], difficulty: Difficulty
) -> NDArray[np.int64]:
    """A color whose grey level differs from the background's as wanted, the one least like those already used."""
    low, high = difficulty.contrast
    # A large difference leaves any color, a small one keeps near the background's, or hue would give the object away.
    spread = 255 if high == 255 else high
    colors = np.clip(base + rng.integers(-spread, spread + 1, size=(512, 3)), 0, 255)
    difference = np.abs((colors - base) @ GREY)
    fitting = colors[(difference >= low) & (difference <= high)][:16]
    if not used:
        return fitting[0]
    distances = np.abs(fitting[:, None] - np.array(used)).sum(axis=2).min(axis=1)
    return fitting[distances.argmax()]
