"""Fitting an image to the network input without changing its proportions."""

from typing import ClassVar

from lucid.datasets.sample import Sample
from lucid.datasets.transforms.base import ImageSize, Transform, height_width
from lucid.registry import TRANSFORMS
from lucid.structures.affine import letterboxing


@TRANSFORMS.register_module()
class Letterbox(Transform):
    """Fit the image, centred and padded with grey, into ``image_size``; nothing is random.

    Of a whole image no object is dropped. Of a mosaic's window those are of which too little is inside.

    Args:
        image_size: Side, or height and width, of the result in pixels; the data set's own where a config states none.
        min_side: Objects that the window cuts to less than so many pixels are dropped.
        min_visible: Objects of which the window leaves a smaller share are dropped.
    """

    fits: ClassVar[bool] = True

    def __init__(self, *, image_size: ImageSize, min_side: float = 2.0, min_visible: float = 0.1) -> None:
        self.size = height_width(image_size)
        self.min_side = min_side
        self.min_visible = min_visible

    def apply(self, sample: Sample, parameters: None = None) -> Sample:
        """The fitted sample; ``matrix`` then undoes it."""
        matrix = letterboxing(sample.view(), self.size)
        moved = sample.moved(matrix, self.size)
        if sample.window is None:
            return moved
        height, width = self.size
        return moved.clipped((0, 0, width, height), min_side=self.min_side, min_visible=self.min_visible)
