"""How the pixels of a sample come about; drawn only when asked for.

Transforms compose maps instead of resampling one after the other, so that each image is resampled once, straight into
the result, and one of which nothing is seen is not even read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lucid.datasets.drawing import draw
from lucid.datasets.layers import HSVParameters, Image, Layer, Pass, Size, Source
from lucid.structures.affine import IDENTITY, Matrix, keeps_axes, mirroring, warp_points
from lucid.structures.polygons import Rings


@dataclass(frozen=True, eq=False)
class Picture:
    """A recipe for an image: passes drawn in turn onto a canvas of ``size`` (height, width). Nothing changes one.

    Every method returns another picture. Where two steps cannot become one, as colours before a map that resamples,
    the picture so far is drawn and its pixels are the source of what follows: slower, and the same.
    """

    size: Size
    passes: tuple[Pass, ...]

    @classmethod
    def of(cls, pixels: Image) -> 'Picture':
        """Pixels (H, W, 3) as they are."""
        height, width = pixels.shape[:2]
        return cls.read_by(Source((height, width), pixels=pixels))

    @classmethod
    def read_by(cls, source: Source) -> 'Picture':
        """A source as it is."""
        return cls(source.size, (Pass((Layer(source, IDENTITY),)),))

    @classmethod
    def collage(cls, parts: Sequence['Picture']) -> 'Picture':
        """Pictures of one size on one canvas, the later over the earlier, each cut hard where its image ends."""
        layers: list[Layer] = []
        size = parts[0].size
        assert all(part.size == size for part in parts), 'the parts have the size of the whole'
        canvas = (0.0, 0.0, float(size[1]), float(size[0]))
        for part in parts:
            simple = part.is_plain and all(keeps_axes(layer.matrix) for layer in part.passes[0].layers)
            shown = part if simple else part.flat()
            layers += [layer.cropped(canvas) for layer in shown.passes[0].layers]
        return cls(size, (Pass(tuple(layer for layer in layers if not layer.is_empty)),))

    @property
    def is_plain(self) -> bool:
        """Whether it is layers alone: nothing joined, no colour changed."""
        return len(self.passes) == 1 and not self.passes[0].colors and not self.passes[0].own

    @property
    def source(self) -> Source | None:
        """What it shows, where that is one source as it is; else None."""
        first = self.passes[0]
        if not self.is_plain or len(first.layers) != 1:
            return None
        layer = first.layers[0]
        whole = layer.source.size == self.size and np.array_equal(layer.matrix, IDENTITY)
        return layer.source if whole and layer.crop in (None, (0.0, 0.0, self.size[1], self.size[0])) else None

    @cached_property
    def pixels(self) -> Image:
        """The image, uint8 (H, W, 3), drawn on first use; of a source as it is, its own array, which may be shared."""
        source = self.source
        return draw(self.passes, self.size) if source is None else source.read()

    def draw_into(self, out: Image) -> None:
        """Write the image into an array (H, W, 3), without keeping it."""
        if 'pixels' in self.__dict__ or self.source is not None:
            np.copyto(out, self.pixels)
        else:
            draw(self.passes, self.size, out=out)

    def flat(self) -> 'Picture':
        """The same picture, its pixels drawn now."""
        return Picture.of(self.pixels)

    def warped(self, matrix: Matrix, size: Size) -> 'Picture':
        """The picture after ``matrix`` carried its pixels onto a canvas of ``size``, grey where nothing lies."""
        mirrored = size == self.size and np.array_equal(matrix, mirroring(size[1]))
        # A mirrored pixel is a pixel: colours and the cut at the canvas stay what they are.
        if not mirrored and any(one.own or one.colors for one in self.passes):
            return self.flat().warped(matrix, size)
        passes = []
        for one in self.passes:
            moved = []
            for layer in one.layers:
                cut = layer if mirrored else layer.cut(self.size)
                if cut is None:
                    return self.flat().warped(matrix, size)
                moved.append(Layer(cut.source, matrix @ cut.matrix, cut.crop))
            rings = None if one.rings is None else [warp_points(matrix, ring) for ring in one.rings]
            passes.append(Pass(tuple(moved), one.own, one.share, rings, one.colors))
        return Picture(size, tuple(passes))

    def blended(self, other: 'Picture', share: float) -> 'Picture':
        """The weighted mean with a picture of its size; ``share`` is the weight of this one."""
        return self._joined(other, share=share, rings=None)

    def pasted(self, other: 'Picture', rings: Rings) -> 'Picture':
        """The picture with the parts of another one inside of ``rings`` in front of it."""
        return self._joined(other, share=0.0, rings=rings)

    def recolored(self, parameters: HSVParameters) -> 'Picture':
        """The picture in other colours, the grey of its border included."""
        last = self.passes[-1]
        return replace(self, passes=(*self.passes[:-1], last._replace(colors=(*last.colors, parameters))))

    def _joined(self, other: 'Picture', *, share: float, rings: Rings | None) -> 'Picture':
        assert other.size == self.size, 'pictures of one size are joined'
        first = (other if len(other.passes) == 1 else other.flat()).passes[0]
        joined = Pass(first.layers, own=(*first.own, *first.colors), share=share, rings=rings)
        return Picture(self.size, (*self.passes, joined))
