"""Changes of hue, saturation and value on 8 bits per channel."""

from collections.abc import Sequence

import cv2
import numpy as np

from lucid.datasets.layers import HSVParameters, Image

ROWS = 64
"""Rows that are recoloured at a time: they stay in the processor's cache from one step to the next."""


LEVELS = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)


def hsv_table(parameters: HSVParameters) -> Image:
    """What becomes of each level of hue, saturation and value, uint8 (256, 3); hue wraps around."""
    table: Image = hsv_tables([parameters])[0]
    return table


def hsv_tables(changes: Sequence[HSVParameters]) -> Image:
    """The tables (C, 256, 3) of C changes."""
    hue_C1, saturation_C1, value_C1 = np.array(changes, np.float64).T[..., None]
    levels = np.arange(256)
    tables = np.empty((len(changes), 256, 3), np.uint8)
    tables[..., 0] = np.round(levels + hue_C1 * 256) % 256
    tables[..., 1] = np.minimum(np.round(levels * saturation_C1), 255)
    tables[..., 2] = np.minimum(np.round(levels * value_C1), 255)
    return tables


def recolor(image: Image, parameters: HSVParameters, *, out: Image | None = None) -> Image:
    """Change the colours of an image.

    Args:
        image: uint8 (H, W, 3), RGB, or (H, W, 4), whose fourth channel is not read.
        parameters: The change.
        out: Where the result goes, (H, W, 3); may be ``image``. None makes a new array.

    Returns:
        The recoloured image, RGB.
    """
    height, width = image.shape[:2]
    out = np.empty((height, width, 3), np.uint8) if out is None else out
    table = hsv_table(parameters)
    shift = np.tile(np.array([table[0, 0], 0, 0], np.uint8), width)
    factors = np.diag((1.0, parameters.saturation, parameters.value))
    exact = _scales_like(table, factors)
    for top in range(0, height, ROWS):
        # The _FULL codes spread the hue over all 256 levels; the plain ones have 180, too coarse for small shifts.
        hsv = np.asarray(cv2.cvtColor(image[top : top + ROWS], cv2.COLOR_RGB2HSV_FULL), np.uint8)
        if exact:
            flat = hsv.reshape(len(hsv), -1)
            np.add(flat, shift, out=flat)  # uint8 wraps around, as hue does
            cv2.transform(hsv, factors, dst=hsv)
        else:
            cv2.LUT(hsv, table[None], dst=hsv)
        cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL, dst=out[top : top + ROWS])
    return out


def _scales_like(table: Image, factors: np.ndarray) -> bool:
    """Whether arithmetic, three times as fast as the table, gives the same: it rounds in single precision.

    Of a hue that does not lie halfway between two levels, adding a whole number is the same as its table.
    """
    scaled = np.asarray(cv2.transform(LEVELS, factors))[0]
    scaled[:, 0] += table[0, 0]
    return np.array_equal(scaled, table)
