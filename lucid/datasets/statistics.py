"""What a split holds, in figures: classes, box sizes as the network meets them, boxes per image, image sizes.

Shape suffixes: I images, N annotations of all images, C classes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lucid.datasets.ground_truth import GroundTruth
from lucid.structures.affine import Float32, Matrix

SMALL, LARGE = 32, 96
"""Sides of the squares that part small, medium and large boxes, in pixels (the areas of COCO's evaluation)."""
TINY = 2
"""Pixels of a side below which training drops a box after it was warped."""
PERCENTILES = (0, 1, 25, 50, 75, 99, 100)


class SplitContent(NamedTuple):
    """The usable annotations of one split.

    classes:   C names
    files_I:   paths of the images
    sizes_I2:  int64, height and width, pixels
    images_N:  int64, row of the image in ``files_I``
    labels_N:  int64, 0..C-1
    boxes_N4:  float32, xyxy, pixels of the file's image, clipped to it
    crowd_N:   bool, an ignored region and no training target
    ids_N:     int64, of the annotations in their file
    """

    classes: tuple[str, ...]
    files_I: list[str]
    sizes_I2: NDArray[np.int64]
    images_N: NDArray[np.int64]
    labels_N: NDArray[np.int64]
    boxes_N4: Float32
    crowd_N: NDArray[np.bool_]
    ids_N: NDArray[np.int64]

    @classmethod
    def of(cls, classes: Sequence[str], truths: Iterable[GroundTruth]) -> Self:
        """Join the annotations of single images.

        Args:
            classes: Names by label.
            truths: What ``ground_truth`` of a data set returns for each image.

        Returns:
            Fresh arrays.
        """
        rows = list(truths)
        return cls(
            classes=tuple(classes),
            files_I=[row.file for row in rows],
            sizes_I2=np.array([row.original_hw for row in rows], dtype=np.int64).reshape(-1, 2),
            images_N=np.repeat(np.arange(len(rows)), [len(row.labels) for row in rows]),
            labels_N=np.concatenate([np.zeros(0, np.int64), *(row.labels for row in rows)]),
            boxes_N4=np.concatenate([np.zeros((0, 4), np.float32), *(row.boxes for row in rows)]),
            crowd_N=np.concatenate([np.zeros(0, bool), *(row.iscrowd for row in rows)]),
            ids_N=np.concatenate([np.zeros(0, np.int64), *(row.ids for row in rows)]),
        )

    def targets(self) -> 'SplitContent':
        """The same without crowd annotations: what training learns from."""
        kept = ~self.crowd_N
        return self._replace(
            images_N=self.images_N[kept],
            labels_N=self.labels_N[kept],
            boxes_N4=self.boxes_N4[kept],
            crowd_N=self.crowd_N[kept],
            ids_N=self.ids_N[kept],
        )

    def input_sides(self, image_size: tuple[int, int]) -> Matrix:
        """Widths and heights (N, 2) after a letterbox to height and width ``image_size``, float64, pixels."""
        ratios_I = (np.array(image_size) / self.sizes_I2).min(axis=1) if len(self.sizes_I2) else np.zeros(0)
        corners_N4 = self.boxes_N4.astype(np.float64)
        sides_N2: Matrix = (corners_N4[:, 2:] - corners_N4[:, :2]) * ratios_I[self.images_N, None]
        return sides_N2


class ClassFigures(NamedTuple):
    """One class of one split. Sizes are counted after the letterbox."""

    name: str
    images: int
    boxes: int
    small: int
    medium: int
    large: int


class SplitStatistics(NamedTuple):
    """The figures of one split; crowd annotations are counted once and left out of everything else.

    image_size:           height and width of the network input, pixels
    tiny:                 boxes with a side below 2 pixels of the input
    box_side:             percentiles of the square root of a box's area, input pixels; by percent
    aspect_ratio:         percentiles of width divided by height; by percent
    boxes_per_image:      percentiles; by percent
    images_per_capacity:  images whose boxes need that capacity and no smaller one; -1 stands for above the largest
    image_sizes:          images per (width, height) in pixels, the most frequent first
    """

    images: int
    boxes: int
    crowds: int
    images_without_boxes: int
    image_size: tuple[int, int]
    classes: list[ClassFigures]
    tiny: int
    box_side: dict[int, float]
    aspect_ratio: dict[int, float]
    boxes_per_image: dict[int, float]
    images_per_capacity: dict[int, int]
    image_sizes: dict[tuple[int, int], int]

    def to_json(self) -> dict[str, Any]:
        """Plain types; image sizes as a list of width, height and number."""
        plain = self._asdict()
        plain['image_size'] = list(self.image_size)
        plain['classes'] = [figures._asdict() for figures in self.classes]
        for name in ('box_side', 'aspect_ratio', 'boxes_per_image'):
            plain[name] = {f'p{percent}': value for percent, value in plain[name].items()}
        plain['images_per_capacity'] = {
            'above' if capacity < 0 else str(capacity): number for capacity, number in self.images_per_capacity.items()
        }
        plain['image_sizes'] = [
            {'width': width, 'height': height, 'images': number} for (width, height), number in self.image_sizes.items()
        ]
        return plain


def split_statistics(
    content: SplitContent, *, image_size: tuple[int, int], capacity: Sequence[int] = (64, 128, 256)
) -> SplitStatistics:
    """Count and measure a split.

    Args:
        content: With or without crowd annotations.
        image_size: Height and width of the network input, pixels.
        capacity: Numbers of boxes that targets are padded to.

    Returns:
        Plain Python numbers.
    """
    targets = content.targets()
    num_images, num_classes = len(content.files_I), len(content.classes)
    sides_N2 = targets.input_sides(image_size)
    areas_N = sides_N2.prod(axis=1)
    size_N = np.digitize(areas_N, (SMALL**2, LARGE**2))
    boxes_SC = np.stack([_counts(targets.labels_N[size_N == size], num_classes) for size in range(3)])
    pairs_P2 = np.unique(np.stack([targets.labels_N, targets.images_N], axis=1), axis=0)
    images_C = _counts(pairs_P2[:, 0], num_classes)
    per_image_I = _counts(targets.images_N, num_images)
    steps = sorted(capacity)
    needed_I = np.searchsorted(steps, per_image_I)
    file_sides_N2 = targets.boxes_N4[:, 2:] - targets.boxes_N4[:, :2]
    return SplitStatistics(
        images=num_images,
        boxes=len(targets.labels_N),
        crowds=int(content.crowd_N.sum()),
        images_without_boxes=int((per_image_I == 0).sum()),
        image_size=image_size,
        classes=[
            ClassFigures(name, int(images_C[label]), int(boxes_SC[:, label].sum()), *boxes_SC[:, label].tolist())
            for label, name in enumerate(content.classes)
        ],
        tiny=int((sides_N2 < TINY).any(axis=1).sum()),
        box_side=percentiles(np.sqrt(areas_N)),
        aspect_ratio=percentiles(file_sides_N2[:, 0] / file_sides_N2[:, 1]),
        boxes_per_image=percentiles(per_image_I),
        images_per_capacity={capacity: int((needed_I == step).sum()) for step, capacity in enumerate([*steps, -1])},
        image_sizes={
            (width, height): number
            for (height, width), number in Counter(map(tuple, content.sizes_I2.tolist())).most_common()
        },
    )


def _counts(values: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    return np.bincount(values, minlength=length)


def percentiles(values: NDArray[Any]) -> dict[int, float]:
    """Those of ``PERCENTILES``, rounded, by percent; none of an empty array."""
    if not len(values):
        return {}
    return {
        percent: round(float(value), 4)
        for percent, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)
    }
