"""Two images blended into one."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from lucid.datasets.sample import Sample
from lucid.datasets.transforms.base import Transform
from lucid.datasets.transforms.mosaic import SampleSource
from lucid.datasets.transforms.partner import Partner, check_joining, draw_partner, second_sample
from lucid.registry import TRANSFORMS


class MixupParameters(NamedTuple):
    """One drawn blend; ``weight`` is the share of the sample itself, the partner has the rest."""

    weight: float
    partner: Partner


@TRANSFORMS.register_module()
class Mixup(Transform):
    """Blend the image with that of a second sample, and keep the objects of both, each at its full weight.

    The second sample is a random image of the data set after the same transforms as the first, those that stand before
    this one in the pipeline, with draws of its own: behind mosaic and affine two mosaics are blended. Other transforms
    that take a second sample are left out of it. The share of the first image is drawn from Beta(alpha, alpha): with 32
    its mean is 0.5 and its standard deviation 0.062.

    Source: mixup, arXiv:1710.09412, where labels are blended too; that they are not, and that mixup closes with the
    mosaic, is as in YOLOX, arXiv:2107.08430. Beta(32, 32) and the probabilities per scale: recipe of arXiv:2606.03748.

    Args:
        source: Where second images come from; the data set itself where a config states none.
        before: The transforms that the second sample goes through; those that come before where a config states none.
        prob: Share of the samples that are blended.
        alpha: Of the Beta distribution; the larger, the closer to equal shares.
        close_last: Epochs at the end of a run that have no mixup.

    Raises:
        ValueError: ``prob`` or ``alpha`` is outside its range, or nothing before brings images to one size.
    """

    pairs: ClassVar[bool] = True

    def __init__(
        self,
        *,
        source: SampleSource | None = None,
        before: Sequence[Transform] | None = None,
        prob: float = 0.1,
        alpha: float = 32.0,
        close_last: int = 10,
    ) -> None:
        check_joining('Mixup', prob=prob, before=before)
        if not alpha > 0:
            raise ValueError(f'alpha={alpha} of Mixup is no parameter of a Beta distribution; choose one above 0')
        self.source = source
        self.before = before
        self.prob = prob
        self.alpha = alpha
        self.close_last = close_last

    def draw(self, rng: np.random.Generator, sample: Sample) -> MixupParameters | None:
        """None leaves the sample alone: mixup is closed, or was not drawn."""
        if sample.key.remaining <= self.close_last or rng.random() >= self.prob:
            return None
        assert self.source is not None, 'the data set hands itself to its mixup'
        partner = draw_partner(rng, self.source)
        return MixupParameters(float(rng.beta(self.alpha, self.alpha)), partner)

    def apply(self, sample: Sample, parameters: MixupParameters | None) -> Sample:
        """The blend with the objects of both, those of the sample first; or the sample itself."""
        if parameters is None:
            return sample
        second = second_sample(sample, parameters.partner, self.source, self.before)
        return sample.joined([second], sample.picture.blended(second.picture, parameters.weight))
