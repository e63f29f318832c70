"""Objects of one image put into another."""

import logging
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from mmengine.logging import print_log

from lucid.datasets.sample import Sample
from lucid.datasets.transforms.base import Transform
from lucid.datasets.transforms.mosaic import SampleSource
from lucid.datasets.transforms.partner import Partner, check_joining, draw_partner, second_sample
from lucid.registry import TRANSFORMS
from lucid.structures.masks import fill_rings


class CopyPasteParameters(NamedTuple):
    """One drawn pasting: which sample the objects come from."""

    partner: Partner


@TRANSFORMS.register_module()
class CopyPaste(Transform):
    """Cut all objects out of a second sample along their polygons and paste them where they are, in front of all.

    The second sample is a random image of the data set after the same transforms as the first, those that stand before
    this one in the pipeline, with draws of its own. Other transforms that take a second sample are left out of it, so
    that no blended object is pasted. Its objects without polygons are not pasted.

    What the pasted objects hide is cut from the targets of those that were there: polygons become the outlines of what
    is still seen, boxes are cut to it, keypoints that were visible become hidden ones. An object of which too little is
    seen is dropped, in every kind. Rotated boxes stay whole. An object without polygons is taken to fill its box.

    Polygons must be loaded: ``targets=('boxes', 'polygons')`` of the data set. Where no object has any, nothing can be
    pasted, and a warning says so when the data set is built.

    Source: Simple Copy-Paste, arXiv:2012.07177; probabilities per scale, recipe of arXiv:2606.03748. The paper pastes a
    random part of the objects; here, as in the recipe, it is all.

    Args:
        source: Where second images come from; the data set itself where a config states none.
        before: The transforms that the second sample goes through; those that come before where a config states none.
        prob: Share of the samples that get objects pasted.
        close_last: Epochs at the end of a run that have no copy-paste.
        min_side: Objects of which less than so many pixels are seen, along either axis, are dropped.
        min_visible: Objects of which a smaller share of their pixels is seen are dropped.

    Raises:
        ValueError: ``prob`` is no probability, nothing before brings images to one size, or polygons are not loaded.
    """

    pairs: ClassVar[bool] = True

    def __init__(
        self,
        *,
        source: SampleSource | None = None,
        before: Sequence[Transform] | None = None,
        prob: float = 0.1,
        close_last: int = 10,
        min_side: float = 2.0,
        min_visible: float = 0.1,
    ) -> None:
        check_joining('CopyPaste', prob=prob, before=before)
        if prob and source is not None:
            prob = _possible(prob, source)
        self.source = source
        self.before = before
        self.prob = prob
        self.close_last = close_last
        self.min_side = min_side
        self.min_visible = min_visible

    def draw(self, rng: np.random.Generator, sample: Sample) -> CopyPasteParameters | None:
        """None leaves the sample alone: copy-paste is closed, or was not drawn."""
        if sample.key.remaining <= self.close_last or rng.random() >= self.prob:
            return None
        assert self.source is not None, 'the data set hands itself to its copy-paste'
        return CopyPasteParameters(draw_partner(rng, self.source))

    def apply(self, sample: Sample, parameters: CopyPasteParameters | None) -> Sample:
        """The sample with the pasted objects after its own; or the sample itself."""
        if parameters is None:
            return sample
        second = second_sample(sample, parameters.partner, self.source, self.before)
        assert second.polygons is not None, 'the data set loads polygons'
        pasted = second.selected(np.array([bool(rings) for rings in second.polygons], dtype=np.bool_))
        rings = [ring for rings in pasted.polygons or () for ring in rings]
        mask = fill_rings(rings, second.size)
        seen = sample.covered(mask, min_side=self.min_side, min_visible=self.min_visible)
        return seen.joined([pasted], sample.picture.pasted(second.picture, rings))


def _possible(prob: float, source: SampleSource) -> float:
    """The probability with which objects can be pasted: 0 where none has polygons, with a warning."""
    num_rings = getattr(source, 'num_rings', None)
    where = getattr(source, 'source', type(source).__name__)
    if num_rings is None:
        raise ValueError(
            f'CopyPaste cuts objects out along their polygons, which are not loaded from {where}; '
            "set targets=('boxes', 'polygons') of the data set, or prob=0 of CopyPaste"
        )
    if num_rings == 0:
        print_log(f'CopyPaste is off: no object of {where} has a polygon', 'current', logging.WARNING)
        return 0.0
    return prob
