"""Random affine map, fused with the letterbox into one resampling."""

from typing import ClassVar, NamedTuple

import numpy as np

from lucid.datasets.sample import Sample
from lucid.datasets.transforms.base import ImageSize, Transform, height_width
from lucid.registry import TRANSFORMS
from lucid.structures.affine import Matrix, letterboxing, rotation, scaling, shearing, translation


class AffineParameters(NamedTuple):
    """One drawn map, about the centre of the letterboxed canvas.

    degrees:          from +x towards +y
    translate:        x and y, as shares of the canvas's width and height
    scale:            factor, 1 keeps the size
    shear_degrees:    along x and along y
    """

    degrees: float = 0.0
    translate: tuple[float, float] = (0.0, 0.0)
    scale: float = 1.0
    shear_degrees: tuple[float, float] = (0.0, 0.0)


@TRANSFORMS.register_module()
class RandomAffine(Transform):
    """Letterbox to ``image_size``, then scale, turn, slant and shift about its centre, in one bilinear resampling.

    Each amount is drawn uniformly from plus or minus what is given. An object is kept when both sides of its clipped
    box have at least ``min_side`` pixels and at least ``min_visible`` of its box is inside.

    Args:
        image_size: Side, or height and width, of the result in pixels; the data set's own where a config states none.
        degrees: Largest turn.
        translate: Largest shift, as share of the canvas.
        scale: Largest change of scale: 0.5 draws factors of 0.5 to 1.5.
        shear: Largest slant in degrees, along either axis.
        min_side: Pixels.
        min_visible: Share of area.
    """

    fits: ClassVar[bool] = True

    def __init__(
        self,
        *,
        image_size: ImageSize,
        degrees: float = 0.0,
        translate: float = 0.1,
        scale: float = 0.5,
        shear: float = 0.0,
        min_side: float = 2.0,
        min_visible: float = 0.1,
    ) -> None:
        self.size = height_width(image_size)
        self.degrees = degrees
        self.translate = translate
        self.scale = scale
        self.shear = shear
        self.min_side = min_side
        self.min_visible = min_visible

    def draw(self, rng: np.random.Generator, sample: Sample) -> AffineParameters:
        """Always six numbers, so that changing one amount leaves the other draws as they were."""
        degrees, x, y, scale, shear_x, shear_y = rng.uniform(-1, 1, size=6).tolist()
        return AffineParameters(
            degrees=degrees * self.degrees,
            translate=(x * self.translate, y * self.translate),
            scale=max(1 + scale * self.scale, 1e-3),
            shear_degrees=(shear_x * self.shear, shear_y * self.shear),
        )

    def apply(self, sample: Sample, parameters: AffineParameters) -> Sample:
        """The mapped sample; with ``AffineParameters()`` exactly the letterboxed one."""
        matrix = self.matrix(parameters) @ letterboxing(sample.view(), self.size)
        height, width = self.size
        moved = sample.moved(matrix, self.size)
        return moved.clipped((0, 0, width, height), min_side=self.min_side, min_visible=self.min_visible)

    def matrix(self, parameters: AffineParameters) -> Matrix:
        """The map of the letterboxed canvas onto itself."""
        height, width = self.size
        x, y = parameters.translate
        return (
            translation(width / 2 + x * width, height / 2 + y * height)
            @ shearing(*parameters.shear_degrees)
            @ rotation(parameters.degrees)
            @ scaling(parameters.scale, parameters.scale)
            @ translation(-width / 2, -height / 2)
        )
