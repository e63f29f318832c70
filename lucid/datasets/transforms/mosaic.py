"""Four images as one."""

from typing import NamedTuple, Protocol

import numpy as np

from lucid.datasets.picture import Picture
from lucid.datasets.sample import Sample
from lucid.datasets.transforms.base import ImageSize, Transform, height_width
from lucid.registry import TRANSFORMS
from lucid.structures.affine import scaling, translation


class SampleSource(Protocol):
    """Where a mosaic's partners come from."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Sample:
        """The image of an index as it is in its file, with its targets."""


class MosaicParameters(NamedTuple):
    """One drawn mosaic.

    center:   x and y where the four images meet, whole pixels of the canvas
    partners: indices of the images top right, bottom left and bottom right
    """

    center: tuple[int, int]
    partners: tuple[int, int, int]


@TRANSFORMS.register_module()
class Mosaic(Transform):
    """Four images around one point of a canvas of twice the network input, the sample itself top left.

    Each image is first fitted to the network input, as validation fits it, and touches the centre with a corner; what
    leaves the canvas is cut off. The centre is uniform over the middle half of each axis. ``window`` says which part of
    the canvas, around its middle, the following affine or letterbox fits to the network input: 1.0 keeps the size that
    objects have in validation, 2.0 takes the whole canvas, on which every object is half as large.

    Source: YOLOv4, arXiv:2004.10934; recipe of arXiv:2606.03748. Two deviations: the recipe joins images at their
    native size, here each is fitted to the network input first, so that objects have one scale whatever the size of the
    files; and the recipe takes the whole canvas, which is ``window=2.0`` here, while the default of 1.0 keeps the
    scale of validation.

    Args:
        image_size: Side, or height and width, of the network input; the data set's own where a config states none.
        source: Where partners come from; the data set itself where a config states none.
        prob: Share of the samples that become a mosaic.
        window: Side of the fitted part, in network inputs, above 0 and up to 2.
        close_last: Epochs at the end of a run that have no mosaic.
        min_side: Objects cut to less than so many pixels are dropped.
        min_visible: Objects of which a smaller share is left are dropped.

    Raises:
        ValueError: ``prob`` or ``window`` is outside its range.
    """

    def __init__(
        self,
        *,
        image_size: ImageSize,
        source: SampleSource | None = None,
        prob: float = 1.0,
        window: float = 1.0,
        close_last: int = 10,
        min_side: float = 2.0,
        min_visible: float = 0.1,
    ) -> None:
        if not 0 <= prob <= 1:
            raise ValueError(f'prob={prob} of Mosaic is no probability; choose one of 0 to 1')
        if not 0 < window <= 2:
            raise ValueError(f'window={window} of Mosaic leaves the canvas; choose one above 0 and up to 2')
        self.size = height_width(image_size)
        self.source = source
        self.prob = prob
        self.window = window
        self.close_last = close_last
        self.min_side = min_side
        self.min_visible = min_visible

    def draw(self, rng: np.random.Generator, sample: Sample) -> MosaicParameters | None:
        """None leaves the sample alone: mosaic is closed, or was not drawn."""
        assert self.source is not None, 'the data set hands itself to its mosaic'
        if sample.key.remaining <= self.close_last or rng.random() >= self.prob:
            return None
        height, width = self.size
        x, y = (rng.uniform(0.5, 1.5, size=2) * (width, height)).astype(int).tolist()
        first, second, third = rng.integers(len(self.source), size=3).tolist()
        return MosaicParameters(center=(x, y), partners=(first, second, third))

    def apply(self, sample: Sample, parameters: MosaicParameters | None) -> Sample:
        """The canvas with the objects of all four images, or the sample itself."""
        if parameters is None:
            return sample
        assert self.source is not None, 'the data set hands itself to its mosaic'
        height, width = self.size
        canvas = (2 * height, 2 * width)
        x, y = parameters.center
        sources = [sample, *(self.source.read(index) for index in parameters.partners)]
        parts = []
        for quadrant, part in enumerate(map(self._fit, sources)):
            part_height, part_width = part.size
            left = x if quadrant % 2 else x - part_width
            top = y if quadrant // 2 else y - part_height
            placed = part.moved(translation(left, top), canvas)
            parts.append(
                placed.clipped((0, 0, 2 * width, 2 * height), min_side=self.min_side, min_visible=self.min_visible)
            )
        mosaic = parts[0].joined(parts[1:], Picture.collage([part.picture for part in parts]))
        margin_x, margin_y = width * (1 - self.window / 2), height * (1 - self.window / 2)
        mosaic.window = (margin_x, margin_y, 2 * width - margin_x, 2 * height - margin_y)
        return mosaic

    def _fit(self, sample: Sample) -> Sample:
        """Scale to the network input."""
        height, width = sample.size
        ratio = min(self.size[0] / height, self.size[1] / width)
        fitted = max(1, round(width * ratio)), max(1, round(height * ratio))
        if fitted == (width, height):
            return sample
        return sample.moved(scaling(fitted[0] / width, fitted[1] / height), fitted[::-1])
