"""Data sets whose layout is found from their files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lucid.datasets.coco_file import read_coco
from lucid.datasets.content import Content, check_word
from lucid.datasets.detection import DetectionDataset
from lucid.datasets.dota_file import read_dota
from lucid.datasets.layout import LAYOUTS, find_layout
from lucid.datasets.problems import Problems
from lucid.datasets.transforms import Transform
from lucid.datasets.voc_file import read_voc
from lucid.datasets.yolo_labels import read_yolo
from lucid.registry import DATASETS


@DATASETS.register_module()
class FolderDataset(DetectionDataset):
    """A folder with COCO JSON, or in the layout of YOLO, Pascal VOC or DOTA: whichever its files show.

    Args:
        data_root: Folder of the data set; in the YOLO layout ``data.yaml`` will do too.
        split: Its part, such as ``train``.
        image_size: Side, or height and width, of the network input, for transforms whose config does not state it.
        layout: ``'coco'``, ``'yolo'``, ``'voc'`` or ``'dota'``; None finds out.
        ann_file: See ``CocoDataset``; states that layout.
        image_dir: See ``CocoDataset``; of no use to the others.
        missing_labels: See ``YoloDataset``, ``VocDataset`` and ``DotaDataset``; COCO JSON lists its images.
        pipeline: Configs of transforms, applied in turn.
        targets: Kinds to load; each layout refuses those that it cannot hold.
        seed: What the transforms' draws depend on, next to epoch and index.
        on_bad: What to do about bad annotations and images: ``'error'``, ``'skip_box'`` or ``'skip_image'``.
        cache_mb: Megabytes of decoded images to keep in memory.

    Raises:
        ValueError: No layout fits, or several do; or as the data set of that layout.
        DataError: A ValueError with all ``problems``: data is bad and ``on_bad`` does not leave it out.
    """

    def __init__(
        self,
        data_root: str | Path,
        *,
        split: str,
        image_size: int | Sequence[int],
        layout: str | None = None,
        ann_file: str | Path | None = None,
        image_dir: str | Path | None = None,
        missing_labels: str = 'error',
        pipeline: Sequence[Mapping[str, Any] | Transform] = (),
        targets: Sequence[str] = ('boxes',),
        seed: int = 0,
        on_bad: str = 'error',
        cache_mb: int = 0,
    ) -> None:
        problems = Problems(on_bad)
        content = read_folder(
            Path(data_root).expanduser(),
            split,
            problems=problems,
            targets=targets,
            layout=layout,
            ann_file=ann_file,
            image_dir=image_dir,
            missing_labels=missing_labels,
        )
        super().__init__(
            content, problems, image_size=image_size, pipeline=pipeline, targets=targets, seed=seed, cache_mb=cache_mb
        )


def read_folder(
    data_root: Path,
    split: str,
    *,
    problems: Problems,
    targets: Sequence[str] = ('boxes',),
    layout: str | None = None,
    ann_file: str | Path | None = None,
    image_dir: str | Path | None = None,
    missing_labels: str = 'error',
) -> Content:
    """Read a split by the reader of its layout.

    Args:
        data_root: Folder of the data set, or ``data.yaml``.
        split: Its part, such as ``train``.
        problems: Collects what is wrong.
        targets: Kinds to read.
        layout: A word of ``LAYOUTS``; None finds out.
        ann_file: Of COCO JSON, which it states.
        image_dir: Of COCO JSON.
        missing_labels: Of the other layouts.

    Returns:
        What is usable.

    Raises:
        ValueError: No layout fits, or several do, or the reader finds nothing that it can use.
    """
    if layout is None:
        layout = 'coco' if ann_file is not None else find_layout(data_root, split)
    check_word('layout', layout, LAYOUTS)
    if layout == 'coco':
        return read_coco(data_root, split, problems=problems, targets=targets, ann_file=ann_file, image_dir=image_dir)
    for name, value in (('ann_file', ann_file), ('image_dir', image_dir)):
        if value is not None:
            raise ValueError(f'{name}={value!r} belongs to layout coco, {data_root} has layout {layout}; remove {name}')
    read = {'yolo': read_yolo, 'voc': read_voc, 'dota': read_dota}[layout]
    return read(data_root, split, problems=problems, targets=targets, missing_labels=missing_labels)
