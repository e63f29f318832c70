"""A source of painted samples, for transforms that take more than one."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from lucid.datasets.sample import Sample


class PaintedSource:
    """Hands out samples as a data set does; notes which were read."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.reads: list[int] = []
        self.num_rings = sum(len(rings) for sample in samples for rings in sample.polygons or ())

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int) -> Sample:
        self.reads.append(index)
        return replace(self.samples[index], file=f'{index}.jpg')


@pytest.fixture
def source() -> Callable[..., PaintedSource]:
    """Makes a source of the samples given."""
    return lambda *samples: PaintedSource(samples)
