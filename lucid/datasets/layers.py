"""What a picture is made of: images, where they lie on the canvas, and how they join."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lucid.structures.affine import Matrix, keeps_axes
from lucid.structures.polygons import Rings

Image = NDArray[np.uint8]
Window = tuple[float, float, float, float]
Size = tuple[int, int]
FILL = 114
"""Grey of what no image covers, in each channel of 0..255."""
SLACK = 1e-3
"""Pixels by which content may leave its canvas before it is cut: no pixel's centre lies in there, it is rounding."""


class HSVParameters(NamedTuple):
    """One change of colours: hue is added, as share of the colour circle; saturation and value are factors."""

    hue: float = 0.0
    saturation: float = 1.0
    value: float = 1.0


def envelope(matrix: Matrix, window: Window) -> Window:
    """The upright rectangle around a mapped one; plain numbers, because arrays of four are slow."""
    (a, b, x), (c, d, y), _ = matrix.tolist()
    x1, y1, x2, y2 = window
    across, down = (a * x1 + x, a * x2 + x), (b * y1, b * y2)
    left, right = min(across) + min(down), max(across) + max(down)
    across, down = (c * x1 + y, c * x2 + y), (d * y1, d * y2)
    return left, min(across) + min(down), right, max(across) + max(down)


class Reader(Protocol):
    """Where the images of a data set come from."""

    def read(self, index: int) -> Image:
        """The pixels of one image, perhaps shared: not to be written to."""


class Source(NamedTuple):
    """An image of a data set, read when it is drawn, or pixels that are there already.

    size:   height and width
    reader: who reads it; None where ``pixels`` are given
    place:  which one of the reader's; -1 where ``pixels`` are given
    """

    size: Size
    reader: Reader | None = None
    place: int = -1
    pixels: Image | None = None

    def read(self) -> Image:
        """The pixels, perhaps shared: not to be written to."""
        if self.pixels is not None:
            return self.pixels
        assert self.reader is not None, 'a source has a reader or pixels'
        return self.reader.read(self.place)


class Layer(NamedTuple):
    """One source on the canvas, bilinear.

    matrix: float64 (3, 3), pixels of the source to pixels of the canvas
    crop:   xyxy part of the source that is seen, in its pixels, cut hard: a pixel of the canvas shows it if its centre
            lies in there. None is all of it, fading into the grey around it as if that were part of the image.
    """

    source: Source
    matrix: Matrix
    crop: Window | None = None

    @property
    def extent(self) -> Window:
        """The envelope on the canvas of what is seen, xyxy; of one that fades, without the half pixel around it."""
        height, width = self.source.size
        x1, y1, x2, y2 = self.crop or (0.0, 0.0, float(width), float(height))
        return envelope(self.matrix, (x1, y1, x2, y2))

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it is seen."""
        left, top, right, bottom = self.extent
        return left >= right or top >= bottom

    def cut(self, size: Size) -> 'Layer | None':
        """The layer cut to the canvas, where it leaves it; None where that part is no rectangle of the source."""
        left, top, right, bottom = self.extent
        if left >= -SLACK and top >= -SLACK and right <= size[1] + SLACK and bottom <= size[0] + SLACK:
            return self
        return self.cropped((0.0, 0.0, float(size[1]), float(size[0]))) if keeps_axes(self.matrix) else None

    def cropped(self, window: Window) -> 'Layer':
        """The part inside a window of the canvas, cut hard; the map neither turns nor slants."""
        (scale_x, _, x), (_, scale_y, y), _ = self.matrix.tolist()
        x1, y1, x2, y2 = (
            min(max(side, window[place % 2]), window[place % 2 + 2]) for place, side in enumerate(self.extent)
        )
        left, right = sorted(((x1 - x) / scale_x, (x2 - x) / scale_x))
        top, bottom = sorted(((y1 - y) / scale_y, (y2 - y) / scale_y))
        return Layer(self.source, self.matrix, (left, top, right, bottom))


class Pass(NamedTuple):
    """Layers on a grey canvas, the later over the earlier, and how they join what was drawn before them.

    own:    colour changes of these layers alone, before they join
    share:  weight of what was there before; these layers have the rest. Where ``rings`` are given it is not used
    rings:  outlines on the canvas, inside of which these layers replace what was there; None joins by ``share``
    colors: colour changes of all that is drawn by then
    """

    layers: tuple[Layer, ...]
    own: tuple[HSVParameters, ...] = ()
    share: float = 0.0
    rings: Rings | None = None
    colors: tuple[HSVParameters, ...] = ()
