"""Where a data set's annotations and images lie."""

from collections.abc import Sequence
from pathlib import Path

ANNOTATIONS = (
    'annotations/{split}.json',
    'annotations/instances_{split}.json',
    'annotations/instances_{split}2017.json',
    '{split}/_annotations.coco.json',
)
IMAGES = ('{split}', 'images/{split}', '{split}2017', 'images/{split}2017', '.', 'images')
PROBED = 100
"""Images looked for in each folder."""


def find_annotations(data_root: Path, split: str, ann_file: str | Path | None = None) -> Path:
    """The annotation file of a split.

    Args:
        data_root: Folder of the data set.
        split: Its part, such as ``train``.
        ann_file: The file itself, relative to ``data_root``; None looks in the usual places.

    Returns:
        An existing file.

    Raises:
        ValueError: There is none, or more than one.
    """
    if not data_root.is_dir():
        raise ValueError(f'data_root {data_root} is no folder; set data_root to the folder of the data set')
    if ann_file is not None:
        path = data_root / ann_file
        if not path.is_file():
            raise ValueError(f'annotation file {path} does not exist; correct ann_file or data_root')
        return path
    looked_for = [data_root / pattern.format(split=split) for pattern in ANNOTATIONS]
    found = [path for path in looked_for if path.is_file()]
    if len(found) != 1:
        raise ValueError(
            f'{data_root} has {"several" if found else "no"} annotations for split {split!r}; '
            f'{"found" if found else "looked for"} {_listed(found or looked_for)}; set ann_file'
        )
    return found[0]


def find_images(data_root: Path, split: str, file_names: Sequence[str], image_dir: str | Path | None = None) -> Path:
    """The folder that the file names of the annotations are relative to.

    Args:
        data_root: Folder of the data set.
        split: Its part, such as ``train``.
        file_names: As the annotations name them.
        image_dir: The folder itself, relative to ``data_root``; None looks in the usual places.

    Returns:
        An existing folder.

    Raises:
        ValueError: No folder, or more than one, holds them.
    """
    if image_dir is not None:
        path = data_root / image_dir
        if not path.is_dir():
            raise ValueError(f'image folder {path} does not exist; correct image_dir or data_root')
        return path
    looked_in = [data_root / pattern.format(split=split) for pattern in IMAGES]
    probes = file_names[:PROBED]
    found = [path for path in looked_in if any((path / name).is_file() for name in probes)]
    if len(found) != 1:
        raise ValueError(
            f'images of split {split!r} such as {probes[0] if len(probes) else "(none)"} are in '
            f'{"several folders" if found else "none of the folders looked in"}: {_listed(found or looked_in)}; '
            'set image_dir'
        )
    return found[0]


def _listed(paths: Sequence[Path]) -> str:
    return ', '.join(str(path) for path in paths)
