"""Fitting an image to the network input without changing its proportions."""

from typing import ClassVar

from lucid.datasets.sample import Sample
from lucid.datasets.transforms.base import ImageSize, Transform, height_width
from lucid.registry import TRANSFORMS
from lucid.structures.affine import letterboxing


@TRANSFORMS.register_module()
class Letterbox(Transform):
    """Fit the image, centred and padded with grey, into ``image_size``; nothing is random and no object is dropped.

    Args:
        image_size: Side, or height and width, of the result in pixels; the data set's own where a config states none.
    """

    fits: ClassVar[bool] = True

    def __init__(self, *, image_size: ImageSize) -> None:
        self.size = height_width(image_size)

    def apply(self, sample: Sample, parameters: None = None) -> Sample:
        """The fitted sample; ``matrix`` then undoes it."""
        matrix = letterboxing(sample.view(), self.size)
        return sample.moved(matrix, self.size)
