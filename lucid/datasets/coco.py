"""Data sets of image files and COCO JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lucid.datasets.coco_file import read_coco
from lucid.datasets.detection import DetectionDataset
from lucid.datasets.problems import Problems
from lucid.datasets.transforms import Transform
from lucid.registry import DATASETS


@DATASETS.register_module()
class CocoDataset(DetectionDataset):
    """Image files with COCO instances JSON; classes come from the file, numbered by ascending category id.

    Args:
        data_root: Folder of the data set.
        split: Its part, such as ``train``; leads to the files unless they are given.
        image_size: Side, or height and width, of the network input, for transforms whose config does not state it.
        ann_file: Annotation file, relative to ``data_root``; None looks in the usual places.
        image_dir: Folder of the images, relative to ``data_root``; None looks in the usual places.
        pipeline: Configs of transforms, applied in turn.
        targets: Kinds to load: boxes, polygons, masks, rboxes, keypoints; boxes are always loaded. Masks are polygons
            that every object must have, for a collate function that fills them; both may be run-length masks.
        seed: What the transforms' draws depend on, next to epoch and index.
        on_bad: What to do about bad annotations and images: ``'error'``, ``'skip_box'`` or ``'skip_image'``; see
            ``DetectionDataset`` for what each finds.
        cache_mb: Megabytes of decoded images to keep in memory.

    Raises:
        ValueError: Files are missing or ambiguous.
        DataError: A ValueError with all ``problems``: data is bad and ``on_bad`` does not leave it out.
    """

    def __init__(
        self,
        data_root: str | Path,
        *,
        split: str,
        image_size: int | Sequence[int],
        ann_file: str | Path | None = None,
        image_dir: str | Path | None = None,
        pipeline: Sequence[Mapping[str, Any] | Transform] = (),
        targets: Sequence[str] = ('boxes',),
        seed: int = 0,
        on_bad: str = 'error',
        cache_mb: int = 0,
    ) -> None:
        problems = Problems(on_bad)
        content = read_coco(
            Path(data_root).expanduser(),
            split,
            problems=problems,
            targets=targets,
            ann_file=ann_file,
            image_dir=image_dir,
        )
        super().__init__(
            content, problems, image_size=image_size, pipeline=pipeline, targets=targets, seed=seed, cache_mb=cache_mb
        )
