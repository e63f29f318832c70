"""Data sets in the Pascal VOC layout."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lucid.datasets.detection import DetectionDataset
from lucid.datasets.problems import Problems
from lucid.datasets.transforms import Transform
from lucid.datasets.voc_file import read_voc
from lucid.registry import DATASETS


@DATASETS.register_module()
class VocDataset(DetectionDataset):
    """``JPEGImages`` with an XML file each in ``Annotations``, and a list of images per split in ``ImageSets/Main``.

    Args:
        data_root: Folder of the data set.
        split: Name of a list, such as ``train``.
        image_size: Side, or height and width, of the network input, for transforms whose config does not state it.
        classes: Names in the order of their labels; None reads ``classes.txt``, or where there is none takes all names
            in ``Annotations``, those of other splits too, in alphabetical order.
        difficult: What objects marked so mean: ``'ignore'``, regions that evaluation ignores and training does not
            learn, or ``'keep'``, objects like others.
        missing_labels: What a listed image without XML file means: ``'error'``, or ``'background'``, no object.
        pipeline: Configs of transforms, applied in turn.
        seed: What the transforms' draws depend on, next to epoch and index.
        on_bad: What to do about bad objects and images: ``'error'``, ``'skip_box'`` or ``'skip_image'``.
        cache_mb: Megabytes of decoded images to keep in memory.

    Raises:
        ValueError: The list of the split is missing or empty, or there are no classes.
        DataError: A ValueError with all ``problems``: data is bad and ``on_bad`` does not leave it out.
    """

    def __init__(
        self,
        data_root: str | Path,
        *,
        split: str,
        image_size: int | Sequence[int],
        classes: Sequence[str] | None = None,
        difficult: str = 'ignore',
        missing_labels: str = 'error',
        pipeline: Sequence[Mapping[str, Any] | Transform] = (),
        seed: int = 0,
        on_bad: str = 'error',
        cache_mb: int = 0,
    ) -> None:
        problems = Problems(on_bad)
        content = read_voc(
            Path(data_root).expanduser(),
            split,
            problems=problems,
            classes=classes,
            difficult=difficult,
            missing_labels=missing_labels,
        )
        super().__init__(content, problems, image_size=image_size, pipeline=pipeline, seed=seed, cache_mb=cache_mb)
