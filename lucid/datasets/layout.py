"""Which layout a folder has, and where annotations and images of COCO JSON lie in it."""

import difflib
from collections.abc import Sequence
from pathlib import Path

from lucid.datasets.dota_file import IMAGES as DOTA_IMAGES
from lucid.datasets.dota_file import LABELS as DOTA_LABELS
from lucid.datasets.dota_file import find_dota, is_dota
from lucid.datasets.voc_file import ANNOTATIONS as VOC_ANNOTATIONS
from lucid.datasets.voc_file import SPLITS as VOC_SPLITS
from lucid.datasets.voc_file import is_voc
from lucid.datasets.yolo_file import ALIASES, find_yolo_file, read_yolo_file
from lucid.datasets.yolo_file import NAME as YOLO_NAME

LAYOUTS = ('coco', 'yolo', 'voc', 'dota')
ANNOTATIONS = (
    'annotations/{split}.json',
    'annotations/instances_{split}.json',
    'annotations/instances_{split}2017.json',
    '{split}/_annotations.coco.json',
)
IMAGES = ('{split}', 'images/{split}', '{split}2017', 'images/{split}2017', '.', 'images')
PROBED = 100
"""Images looked for in each folder."""


class NoLayoutError(ValueError):
    """A folder that no layout fits."""


def find_layout(data_root: Path, split: str) -> str:
    """The layout of a data set's folder, from the files that lie in it.

    Args:
        data_root: The folder, or ``data.yaml``, which is of the YOLO layout.
        split: A part of it, such as ``train``: COCO JSON has a file for each.

    Returns:
        A word of ``LAYOUTS``.

    Raises:
        NoLayoutError: A ValueError: no layout fits.
        ValueError: Several layouts fit, or there is no folder.
    """
    if not data_root.exists():
        raise ValueError(f'data_root {data_root} does not exist; {_instead(data_root)}')
    jsons = [] if data_root.is_file() else _places(data_root, ANNOTATIONS, split)
    yolo = find_yolo_file(data_root)
    dota = find_dota(data_root, split)
    found = {
        'coco': [str(path) for path in jsons if path.is_file()],
        'yolo': [] if yolo is None else [str(yolo)],
        'voc': [str(data_root / VOC_ANNOTATIONS)] if is_voc(data_root) else [],
        'dota': [str(dota.labels)] if dota is not None and dota.labels.is_dir() else [],
    }
    fitting = {layout: paths for layout, paths in found.items() if paths}
    if len(fitting) > 1:
        listed = '; '.join(f'{layout} ({", ".join(paths)})' for layout, paths in fitting.items())
        words = ' or '.join(repr(layout) for layout in fitting)
        raise ValueError(
            f'{data_root} has the files of several layouts: {listed}; set layout={words} of the data set, in a config '
            'dataset.layout of train_dataloader and val_dataloader, or leave the files of one of them'
        )
    if not fitting:
        raise NoLayoutError(
            f'{data_root} has no known layout for split {split!r}; looked for coco: {_listed(jsons)}; yolo: '
            f'{data_root / YOLO_NAME} or another YAML file that names classes; voc: {data_root / VOC_ANNOTATIONS} and '
            f'{data_root / VOC_SPLITS}; dota: {data_root / split / DOTA_IMAGES} and {data_root / split / DOTA_LABELS}; '
            'arrange the files like one of them, or set ann_file to a file of COCO JSON'
        )
    return next(iter(fitting))


def has_split(data_root: Path, layout: str, split: str) -> bool:
    """Whether a folder of a layout has a split."""
    if layout == 'coco':
        return any(path.is_file() for path in _places(data_root, ANNOTATIONS, split))
    if layout == 'voc':
        return (data_root / VOC_SPLITS / f'{split}.txt').is_file()
    if layout == 'dota':
        return is_dota(data_root, split)
    file = find_yolo_file(data_root)
    return file is not None and any(read_yolo_file(file).content.get(key) for key in ALIASES.get(split, (split,)))


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
        raise ValueError(f'data_root {data_root} is no folder; {_instead(data_root)}')
    if ann_file is not None:
        path = data_root / ann_file
        if not path.is_file():
            raise ValueError(f'annotation file {path} does not exist; correct ann_file or data_root')
        return path
    looked_for = _places(data_root, ANNOTATIONS, split)
    found = [path for path in looked_for if path.is_file()]
    if len(found) != 1:
        raise ValueError(
            f'{data_root} has {"several" if found else "no"} annotations for split {split!r}; '
            f'{"found" if found else "looked for"} {_listed(found or looked_for)}; set ann_file'
        )
    return found[0]


def find_images(data_root: Path, split: str, file_names: Sequence[str], image_dir: str | Path | None = None) -> Path:
    """The folder that the file names of the annotations are relative to; absolute names do without.

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
    if len(file_names) and all(Path(name).is_absolute() for name in file_names):
        return data_root  # which folder makes no difference
    looked_in = _places(data_root, IMAGES, split)
    # An absolute name would be found in every folder.
    probes = [name for name in file_names if not Path(name).is_absolute()][:PROBED]
    found = [path for path in looked_in if any((path / name).is_file() for name in probes)]
    if len(found) != 1:
        raise ValueError(
            f'images of split {split!r} such as {probes[0] if len(probes) else "(none)"} are in '
            f'{"several folders" if found else "none of the folders looked in"}: {_listed(found or looked_in)}; '
            'set image_dir'
        )
    return found[0]


def _places(data_root: Path, patterns: Sequence[str], split: str) -> list[Path]:
    """Where something of a split may lie."""
    names = ALIASES.get(split, (split,))
    return list(dict.fromkeys(data_root / pattern.format(split=name) for name in names for pattern in patterns))


def _instead(missing: Path) -> str:
    """What a path that leads to no data set may have meant."""
    there = [path.name for path in missing.parent.iterdir() if path.is_dir()] if missing.parent.is_dir() else []
    close = difflib.get_close_matches(missing.name, there, n=1)
    hint = f'did you mean {missing.parent / close[0]}? ' if close and close[0] != missing.name else ''
    return f'{hint}set data_root to the folder of the data set'


def _listed(paths: Sequence[Path]) -> str:
    return ', '.join(str(path) for path in paths)
