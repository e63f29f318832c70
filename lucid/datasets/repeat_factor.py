"""Drawing images of rare classes more often.

Shape suffixes: I images, C classes, S samples of an epoch.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucid.datasets.samplers import KeySampler, SampleKey
from lucid.registry import DATA_SAMPLERS

Factors = NDArray[np.float64]


@DATA_SAMPLERS.register_module()
class RepeatFactorSampler(KeySampler):
    """Yields ``SampleKey`` of this rank, images with rare classes more often; the draw depends on (seed, epoch) alone.

    With f(c) the share of images that hold class c, a class repeats by ``max(1, (threshold / f(c)) ** power)`` and an
    image by the largest factor of its classes, 1 without any. Crowd annotations do not count. Of S samples an image
    gets its share rounded down or up, which of the two changes with the epoch; a repeated image is augmented anew.

    It takes the place of ``EpochSampler`` and resumes in mid-epoch as that does. A mosaic's partners are drawn evenly,
    as ever.

    Args:
        dataset: Has ``classes`` and ``ground_truth(index)``.
        seed: Seed of the draw; None asks mmengine for one that all ranks share.
        threshold: Share of images below which a class is rare, above 0 to 1. In LVIS it is 0.001, with 1203 classes.
        power: 0.5 as in LVIS; 1 draws all rare classes about equally often.
        num_samples: Samples of an epoch over all ranks; None takes the sum of the factors, rounded up, so that no
            image is left out.

    Raises:
        ValueError: An option is out of range, or the data set does not tell its classes.

    Source: LVIS (arXiv:1908.03195), repeat factor sampling, for the factors; the rounding is systematic sampling.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int | None = None,
        threshold: float = 0.1,
        power: float = 0.5,
        num_samples: int | None = None,
    ) -> None:
        if not 0 < threshold <= 1 or not power > 0 or (num_samples is not None and num_samples < 1):
            raise ValueError(
                f'RepeatFactorSampler: threshold={threshold}, power={power}, num_samples={num_samples}; use a '
                'threshold above 0 to 1, a positive power, and num_samples >= 1 or None'
            )
        super().__init__(seed=seed)
        self.classes: tuple[str, ...] = tuple(getattr(dataset, 'classes', ()))
        self.threshold = threshold
        presence_IC = class_presence(dataset)
        self.share_C = presence_IC.mean(0)
        self.factors_I = repeat_factors(presence_IC, threshold=threshold, power=power)
        self.num_samples = math.ceil(self.factors_I.sum()) if num_samples is None else num_samples

    def __iter__(self) -> Iterator[SampleKey]:
        rng = np.random.Generator(np.random.PCG64([self.seed, self.epoch]))
        counts_I = draw_counts(self.factors_I, self.num_samples, rng)
        order_S = np.repeat(np.arange(len(counts_I)), counts_I)
        starts_I = np.cumsum(counts_I) - counts_I
        repeats_S = np.arange(len(order_S)) - np.repeat(starts_I, counts_I)
        shuffled = np.resize(rng.permutation(len(order_S)), len(self) * self.world_size)
        yield from self.keys(order_S[shuffled], repeats_S[shuffled])

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch, those before ``start`` included."""
        return math.ceil(self.num_samples / self.world_size)

    def describe(self) -> str:
        """Return what is drawn how often, for the log."""
        head = f'RepeatFactorSampler: {self.num_samples} samples per epoch of {len(self.factors_I)} images'
        rare = [label for label in np.argsort(self.share_C) if 0 < self.share_C[label] < self.threshold]
        if not rare:
            return f'{head}; no class is in less than {self.threshold:.3g} of the images, so that none repeats'
        told = ', '.join(f'{self.classes[label]} {self.share_C[label]:.3g}' for label in rare[:10])
        more = f' and {len(rare) - 10} more' if len(rare) > 10 else ''
        return f'{head}, factors up to {self.factors_I.max():.2f}; share of images with a rare class: {told}{more}'


def class_presence(dataset: Any) -> NDArray[np.bool_]:
    """Return which classes each image holds, bool (I, C), from ``ground_truth(index)``; no image is read."""
    if not hasattr(dataset, 'ground_truth') or not getattr(dataset, 'classes', ()):
        raise ValueError(
            f'RepeatFactorSampler: {type(dataset).__name__} has no classes or no ground_truth(index), from which rare '
            'classes are known; use EpochSampler'
        )
    presence_IC = np.zeros((len(dataset), len(dataset.classes)), dtype=bool)
    for index in range(len(dataset)):
        truth = dataset.ground_truth(index)
        presence_IC[index, truth.labels[~truth.iscrowd]] = True
    return presence_IC


def repeat_factors(presence_IC: NDArray[np.bool_], *, threshold: float, power: float) -> Factors:
    """Return how often each image should be drawn, float64 (I,), at least 1; a class that no image holds has no say."""
    share_C = presence_IC.mean(0)
    factors_C = np.ones_like(share_C)
    held_C = share_C > 0
    factors_C[held_C] = np.maximum(1.0, (threshold / share_C[held_C]) ** power)
    factors: Factors = np.where(presence_IC, factors_C, 1.0).max(axis=1, initial=1.0)
    return factors


def draw_counts(factors_I: Factors, num_samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return how often each image is drawn, int64 (I,), summing to ``num_samples``.

    Systematic sampling: marks at equal distances from one random start fall on images laid end to end, each as long as
    its factor, in random order. Each count is its image's share rounded down or up, and the share on average.
    """
    order = rng.permutation(len(factors_I))
    ends = np.cumsum(factors_I[order])
    marks = (np.arange(num_samples) + rng.random()) * (ends[-1] / num_samples)
    hits = np.minimum(np.searchsorted(ends, marks, side='right'), len(order) - 1)
    counts: NDArray[np.int64] = np.bincount(order[hits], minlength=len(order))
    return counts
