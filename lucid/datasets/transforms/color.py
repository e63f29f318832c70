"""Colour changes that leave the geometry alone."""

from dataclasses import replace

import numpy as np

from lucid.datasets.layers import HSVParameters
from lucid.datasets.sample import Sample
from lucid.datasets.transforms.base import Transform
from lucid.registry import TRANSFORMS


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
        return replace(sample, picture=sample.picture.recolored(parameters))
