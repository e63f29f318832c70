"""Data sets in the DOTA layout."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lucid.datasets.detection import DetectionDataset
from lucid.datasets.dota_file import read_dota
from lucid.datasets.problems import Problems
from lucid.datasets.transforms import Transform
from lucid.registry import DATASETS


@DATASETS.register_module()
class DotaDataset(DetectionDataset):
    """Images with a text file each: ``images`` and ``labelTxt``, in a folder per split or in the data set's own.

    A row of a text file is four corners in turn, a class, and whether the object is difficult; lines ``imagesource:``
    and ``gsd:`` may precede them. An empty file is an image without objects. Objects that are difficult are trained on
    like others; the metric of rotated boxes ignores them.

    Aerial images are large: train on the tiles that ``tools/tile_dota.py`` makes of them, by ``CocoDataset``.

    Args:
        data_root: Folder of the data set.
        split: Its part, such as ``train``, which a folder without splits is taken for.
        image_size: Side, or height and width, of the network input, for transforms whose config does not state it.
        classes: Names in the order of their labels; None takes the 15 of DOTA-v1.0.
        missing_labels: What an image without text file means: ``'error'``, or ``'background'``, no object.
        pipeline: Configs of transforms, applied in turn.
        targets: Kinds to load: boxes, which are the envelopes of the corners and always loaded, and rboxes.
        seed: What the transforms' draws depend on, next to epoch and index.
        on_bad: What to do about bad rows and images: ``'error'``, ``'skip_box'`` or ``'skip_image'``.
        cache_mb: Megabytes of decoded images to keep in memory.

    Raises:
        ValueError: There is no such split, or no image in it.
        DataError: A ValueError with all ``problems``: data is bad and ``on_bad`` does not leave it out.

    Source: DOTA, arXiv:1711.10398; that difficult objects are trained on is a choice that it leaves open.
    """

    def __init__(
        self,
        data_root: str | Path,
        *,
        split: str,
        image_size: int | Sequence[int],
        classes: Sequence[str] | None = None,
        missing_labels: str = 'error',
        pipeline: Sequence[Mapping[str, Any] | Transform] = (),
        targets: Sequence[str] = ('boxes', 'rboxes'),
        seed: int = 0,
        on_bad: str = 'error',
        cache_mb: int = 0,
    ) -> None:
        problems = Problems(on_bad)
        content = read_dota(
            Path(data_root).expanduser(),
            split,
            problems=problems,
            targets=targets,
            classes=classes,
            missing_labels=missing_labels,
        )
        super().__init__(
            content, problems, image_size=image_size, pipeline=pipeline, targets=targets, seed=seed, cache_mb=cache_mb
        )
