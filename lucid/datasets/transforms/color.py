"""Colour changes that leave the geometry alone."""

from dataclasses import replace
from typing import NamedTuple

import cv2
import numpy as np

from lucid.datasets.sample import Sample
from lucid.datasets.transforms.base import Transform
from lucid.registry import TRANSFORMS


class HSVParameters(NamedTuple):
    """One drawn change: hue is added, as share of the colour circle; saturation and value are factors."""

    hue: float = 0.0
    saturation: float = 1.0
    value: float = 1.0


@TRANSFORMS.register_module()
class RandomHSV(Transform):
    """Shift the hue and scale saturation and value, each by a uniform amount of plus or minus what is given.

    Computed on 8 bits per channel by look-up tables; hue wraps around, the others are clamped.

    Args:
        hue: Share of the colour circle.
        saturation: 0.7 draws factors of 0.3 to 1.7.
        value: As saturation.
    """

    def __init__(self, *, hue: float = 0.015, saturation: float = 0.7, value: float = 0.4) -> None:
        self.amounts = (hue, saturation, value)

    def draw(self, rng: np.random.Generator, sample: Sample) -> HSVParameters:
        """Three numbers."""
        hue, saturation, value = (rng.uniform(-1, 1, size=3) * self.amounts).tolist()
        return HSVParameters(hue, 1 + saturation, 1 + value)

    def apply(self, sample: Sample, parameters: HSVParameters) -> Sample:
        """The recoloured sample."""
        levels = np.arange(256)
        table = np.stack(
            [
                np.round(levels + parameters.hue * 256) % 256,
                np.clip(np.round(levels * parameters.saturation), 0, 255),
                np.clip(np.round(levels * parameters.value), 0, 255),
            ],
            axis=1,
        ).astype(np.uint8)
        # The _FULL codes spread the hue over all 256 levels; the plain ones have 180, too coarse for small shifts.
        hsv = cv2.cvtColor(sample.image, cv2.COLOR_RGB2HSV_FULL)
        cv2.LUT(hsv, table[None], dst=hsv)
        recolored = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL, dst=hsv)
        return replace(sample, image=np.asarray(recolored, np.uint8))
