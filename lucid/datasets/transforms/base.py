"""What a transform is: a small draw, and the same draw applied."""

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from mmcv.transforms import BaseTransform

from lucid.datasets.sample import Sample
from lucid.registry import TRANSFORMS

ImageSize = int | Sequence[int]


class Transform(BaseTransform):
    """``draw`` decides with random numbers and is tiny; ``apply`` is a function of its two arguments alone.

    So the same parameters can be applied by another implementation, on a device for example.

    An image is a recipe (``Sample.picture``) that is drawn at the end. A transform that reads ``Sample.image`` has it
    drawn then and there, which costs time and one more resampling.

    fits:  whether its images have one size, whatever the size of those that it gets
    pairs: whether it takes a second sample, which goes through the transforms before it, except others of this kind
    """

    fits: ClassVar[bool] = False
    pairs: ClassVar[bool] = False

    def draw(self, rng: np.random.Generator, sample: Sample) -> Any:
        """The parameters of one application; reads of ``sample`` only its key and the image's shape."""
        return None

    @abstractmethod
    def apply(self, sample: Sample, parameters: Any) -> Sample:
        """A new sample; the given one and its arrays stay as they are."""

    def transform(self, results: Sample) -> Sample:
        """Draw from the sample's own generator and apply: what calling a transform does."""
        assert results.rng is not None, 'a sample that is transformed has a generator'
        return self.apply(results, self.draw(results.rng, results))


def height_width(image_size: ImageSize) -> tuple[int, int]:
    """Read an ``image_size``.

    Args:
        image_size: Pixels, one number for a square, or height and width.

    Returns:
        Height and width.

    Raises:
        ValueError: It is neither, or not positive.
    """
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ValueError(f'image_size={image_size!r} must be a side in pixels or (height, width); correct it')
    return sides[0], sides[1]


def build_pipeline(pipeline: Sequence[Mapping[str, Any] | Transform], **provided: Any) -> list[Transform]:
    """Build transforms from their configs.

    Args:
        pipeline: Configs, or transforms that are used as they are.
        **provided: What the data set knows; handed to each transform whose constructor has a parameter of that name
            and whose config does not state it. ``before`` is handed over as well: the transforms that come before,
            without those that take a second sample.

    Returns:
        The transforms in their order.
    """
    transforms: list[Transform] = []
    for entry in pipeline:
        if isinstance(entry, Mapping):
            known = TRANSFORMS.get(entry['type'])
            accepted = inspect.signature(known).parameters if known else {}
            before = tuple(transform for transform in transforms if not getattr(transform, 'pairs', False))
            defaults = {name: value for name, value in {**provided, 'before': before}.items() if name in accepted}
            entry = TRANSFORMS.build({**defaults, **entry})
        transforms.append(entry)
    return transforms
