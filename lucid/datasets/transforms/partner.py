"""The second sample of a transform that joins two."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lucid.datasets.sample import Sample
from lucid.datasets.samplers import SampleKey
from lucid.datasets.transforms.base import Transform
from lucid.datasets.transforms.mosaic import SampleSource


class Partner(NamedTuple):
    """One drawn partner: everything that decides the second sample.

    image: index in the source
    seed:  of the generator that its own transforms draw from
    """

    image: int
    seed: int


def draw_partner(rng: np.random.Generator, source: SampleSource) -> Partner:
    """Two numbers of the first sample's stream, so that the second depends on (seed, epoch, index) alone."""
    return Partner(int(rng.integers(len(source))), int(rng.integers(2**63)))


def second_sample(
    first: Sample, partner: Partner, source: SampleSource | None, before: Sequence[Transform] | None
) -> Sample:
    """Another image of the data set after the transforms that the first sample went through, with draws of its own.

    Args:
        first: Gives epoch and remaining epochs, so that what is closed for one is closed for both.
        partner: What was drawn.
        source: Where images come from.
        before: The transforms.

    Returns:
        A sample whose image is as large as the first one's.

    Raises:
        ValueError: It is not.
    """
    assert source is not None, 'the data set hands itself to its transforms'
    assert before is not None, 'the pipeline hands over what comes before'
    second = source.read(partner.image)
    second.key = SampleKey(first.key.epoch, partner.image, first.key.remaining)
    second.rng = np.random.Generator(np.random.PCG64(partner.seed))
    for transform in before:
        second = transform(second)
    if second.size != first.size:
        raise ValueError(
            f'{first.file} and {second.file} have the sizes {first.size} and {second.size} where they '
            'are joined; put RandomAffine or Letterbox before that'
        )
    return second


def check_joining(name: str, *, prob: float, before: Sequence[Transform] | None) -> None:
    """Refuse settings under which two samples cannot be joined.

    Args:
        name: Of the transform that joins, for the message.
        prob: Share of the samples.
        before: The transforms that come before it; None where it was built alone.

    Raises:
        ValueError: ``prob`` is no probability, or nothing before brings the images to one size.
    """
    if not 0 <= prob <= 1:
        raise ValueError(f'prob={prob} of {name} is no probability; choose one of 0 to 1')
    if prob and before is not None and not any(getattr(transform, 'fits', False) for transform in before):
        raise ValueError(
            f'{name} joins images of one size, and no transform before it makes them so; '
            'put RandomAffine or Letterbox before it'
        )
