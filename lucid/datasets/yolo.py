"""Data sets in the YOLO layout."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lucid.datasets.detection import DetectionDataset
from lucid.datasets.problems import Problems
from lucid.datasets.transforms import Transform
from lucid.datasets.yolo_labels import read_yolo
from lucid.registry import DATASETS


@DATASETS.register_module()
class YoloDataset(DetectionDataset):
    """Image files with a label file each, and ``data.yaml``, which names classes and splits.

    Rows of a label file are ``class cx cy w h`` or a class and four corners, in fractions of the image's sides. An
    empty file is an image without objects.

    Args:
        data_root: Folder with ``data.yaml``, or that file.
        split: A key of it, such as ``train``.
        image_size: Side, or height and width, of the network input, for transforms whose config does not state it.
        pipeline: Configs of transforms, applied in turn.
        targets: Kinds to load: boxes, rboxes; boxes are always loaded, rotated boxes need four corners in every row.
        missing_labels: What an image without label file means: ``'error'``, or ``'background'``, no object.
        seed: What the transforms' draws depend on, next to epoch and index.
        on_bad: What to do about bad rows and images: ``'error'``, ``'skip_box'`` or ``'skip_image'``.
        cache_mb: Megabytes of decoded images to keep in memory.

    Raises:
        ValueError: There is no usable ``data.yaml``, or it leads to no image.
        DataError: A ValueError with all ``problems``: data is bad and ``on_bad`` does not leave it out.
    """

    def __init__(
        self,
        data_root: str | Path,
        *,
        split: str,
        image_size: int | Sequence[int],
        pipeline: Sequence[Mapping[str, Any] | Transform] = (),
        targets: Sequence[str] = ('boxes',),
        missing_labels: str = 'error',
        seed: int = 0,
        on_bad: str = 'error',
        cache_mb: int = 0,
    ) -> None:
        problems = Problems(on_bad)
        content = read_yolo(
            Path(data_root).expanduser(), split, problems=problems, targets=targets, missing_labels=missing_labels
        )
        super().__init__(
            content, problems, image_size=image_size, pipeline=pipeline, targets=targets, seed=seed, cache_mb=cache_mb
        )
