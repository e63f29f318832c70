"""Mirroring."""

from collections.abc import Sequence

import numpy as np

from lucid.datasets.sample import Sample
from lucid.datasets.transforms.base import Transform
from lucid.registry import TRANSFORMS
from lucid.structures.affine import mirroring


@TRANSFORMS.register_module()
class HorizontalFlip(Transform):
    """Swap left and right of the image and of all targets, keypoints such as left and right eye included.

    Args:
        prob: Share of the samples that are mirrored.
        flip_order: For each keypoint the one that takes its place; the data set's own where a config states none.

    Raises:
        ValueError: ``prob`` is no probability.
    """

    def __init__(self, *, prob: float = 0.5, flip_order: Sequence[int] | None = None) -> None:
        if not 0 <= prob <= 1:
            raise ValueError(f'prob={prob} of HorizontalFlip is no probability; choose one of 0 to 1')
        self.prob = prob
        self.flip_order = flip_order

    def draw(self, rng: np.random.Generator, sample: Sample) -> bool:
        """Whether to mirror."""
        return bool(rng.random() < self.prob)

    def apply(self, sample: Sample, parameters: bool) -> Sample:
        """The mirrored sample, or the sample itself."""
        if not parameters:
            return sample
        flipped = sample.moved(mirroring(sample.size[1]), sample.size)
        if flipped.keypoints is not None:
            assert self.flip_order is not None, 'the data set hands over the order of its keypoints'
            flipped.keypoints = flipped.keypoints[:, np.asarray(self.flip_order)]
        return flipped
