"""Reading and checking the DOTA layout: ``images`` and ``labelTxt``, one text file of quadrilaterals per image."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torchvision.datasets.folder import IMG_EXTENSIONS

from lucid.datasets.annotations import Box, Categories, Row
from lucid.datasets.content import (
    LARGEST,
    MISSING_LABELS,
    AnnotationError,
    Content,
    ImageRow,
    check_targets,
    check_word,
    checked_box,
    checked_corners,
)
from lucid.datasets.images import image_sizes
from lucid.datasets.problems import MISSING_LABEL, Problems
from lucid.datasets.yolo_file import ALIASES
from lucid.structures.polygons import ring_area

IMAGES, LABELS = 'images', 'labelTxt'
HEADERS = ('imagesource', 'gsd')
"""What the first lines of a file may tell, before a colon."""
FORMAT = 'x1 y1 x2 y2 x3 y3 x4 y4 class difficult'
"""Of a row, for messages."""
ONLY_SPLIT = 'train'
"""What a folder with images and labels of its own, in no split's folder, is taken for."""
CLASSES = (
    'plane',
    'baseball-diamond',
    'bridge',
    'ground-track-field',
    'small-vehicle',
    'large-vehicle',
    'ship',
    'tennis-court',
    'basketball-court',
    'storage-tank',
    'soccer-ball-field',
    'roundabout',
    'harbor',
    'swimming-pool',
    'helicopter',
)
"""Those of DOTA-v1.0."""
UNKNOWN = (1, 1)
"""Size of an image that cannot be read: the check of all images reports it."""


class DotaFolders(NamedTuple):
    """Where the images of a split lie, and their label files, whose folder need not exist."""

    images: Path
    labels: Path


def find_dota(data_root: Path, split: str) -> DotaFolders | None:
    """The folders of a split: in a folder of its name, else, of ``train`` alone, in the data set's own.

    Args:
        data_root: Folder of the data set.
        split: Its part, such as ``train``; ``valid`` will do for ``val``.

    Returns:
        Folders, of which that of the images exists; None where there is none.

    Raises:
        ValueError: There are several.
    """
    places = [data_root / name for name in ALIASES.get(split, (split,))] + [data_root] * (split == ONLY_SPLIT)
    found = [place for place in places if (place / IMAGES).is_dir()]
    labelled = [place for place in found if (place / LABELS).is_dir()]
    if len(labelled) > 1:
        listed = ' and '.join(str(place) for place in labelled)
        raise ValueError(f'split {split!r} could be {listed}; remove one of them, or set data_root to it')
    place = next(iter(labelled or found), None)
    return None if place is None else DotaFolders(place / IMAGES, place / LABELS)


def is_dota(data_root: Path, split: str) -> bool:
    """Whether a folder has images and label files of a split where this layout has them."""
    folders = find_dota(data_root, split)
    return folders is not None and folders.labels.is_dir()


def read_dota(
    data_root: Path,
    split: str,
    *,
    problems: Problems,
    targets: Sequence[str] = ('boxes',),
    classes: Sequence[str] | None = None,
    missing_labels: str = 'error',
) -> Content:
    """Read the DOTA layout; bad rows and files go to ``problems`` and are left out.

    Args:
        data_root: Folder with ``images`` and ``labelTxt``, or with a folder per split that has them.
        split: Its part, such as ``train``, which a folder without splits is taken for.
        problems: Collects what is wrong with rows, label files and images; files by path, rows by line.
        targets: Kinds to read: boxes, rboxes.
        classes: Names in the order of their labels; None takes the 15 of DOTA-v1.0.
        missing_labels: What an image without label file means: ``'error'``, a problem, or ``'background'``, no object.

    Returns:
        What is usable; images are numbered from 1 in the order of their names, categories too.

    Raises:
        ValueError: There is no such split, or no image in it.
    """
    check_targets(targets, 'dota')
    check_word('missing_labels', missing_labels, MISSING_LABELS)
    names = tuple(CLASSES if classes is None else classes)
    if not names or len(set(names)) < len(names):
        raise ValueError(f'classes={list(names)} has {"a name twice" if names else "no name"}; give each class once')
    folders = find_dota(data_root, split)
    if folders is None:
        raise ValueError(
            f'{data_root} has no split {split!r}; looked for {data_root / split / IMAGES}'
            f'{f" and {data_root / IMAGES}" if split == ONLY_SPLIT else ""}; correct data_root, or set split'
        )
    files = sorted(file for file in folders.images.iterdir() if file.suffix.lower() in IMG_EXTENSIONS)
    if not files:
        raise ValueError(f'{folders.images} holds no image; correct data_root, or set split')
    label_of = {name: label for label, name in enumerate(names)}
    images, rows = [], []
    for index, (file, size) in enumerate(zip(files, image_sizes(files), strict=True)):
        images.append(ImageRow(index + 1, str(file), *(size or UNKNOWN)))
        rows += _rows(_label(folders, file), images[-1], index, label_of, missing_labels, problems)
    known = {_label(folders, file) for file in files}
    for path in sorted(folders.labels.glob('*.txt')):
        if path not in known:
            problems.add('missing_image', 'no image belongs to this label file; restore it', place=str(path))
    categories = Categories(tuple(range(1, len(names) + 1)), names, ())
    return Content('dota', folders.labels, categories, images, rows)


def _label(folders: DotaFolders, image: Path) -> Path:
    return folders.labels / f'{image.stem}.txt'


def _rows(
    path: Path,
    image: ImageRow,
    index: int,
    label_of: Mapping[str, int],
    missing_labels: str,
    problems: Problems,
) -> list[Row]:
    """The usable rows of a label file; one without any is a background image."""
    try:
        lines = path.read_text(encoding='utf-8-sig').splitlines()
    except FileNotFoundError:
        if missing_labels == 'error':
            text = f'image {image.file} has no label file; write an empty one if it shows no objects'
            problems.add(MISSING_LABEL, text, place=str(path), image=index)
        return []
    except (OSError, UnicodeError) as error:
        problems.add('broken_label', f'cannot be read ({error}); restore it', place=str(path), image=index)
        return []
    rows = []
    header = True
    for number, line in enumerate(lines, 1):
        header = header and (not line.strip() or line.partition(':')[0].strip().lower() in HEADERS)
        if header or not line.strip():
            continue
        values = line.split()
        try:
            rows.append(_row(values, image, index, label_of)._replace(id=number))
        except AnnotationError as bad:
            place = f'{path}:{number}'
            problems.add(bad.kind, str(bad), place=place, image=index, annotation=number, box=_stated(values))
    return rows


def _row(values: Sequence[str], image: ImageRow, index: int, label_of: Mapping[str, int]) -> Row:
    """Check one row; without its last value, as some old files have it, the object is not difficult."""
    if len(values) not in (9, 10):
        raise AnnotationError('malformed_row', f'a row of {len(values)} values; write {FORMAT}')
    try:
        numbers = [float(value) for value in values[:8]]
    except ValueError as error:
        text = f'{" ".join(values[:8])!r:.80} are not all numbers'
        raise AnnotationError('malformed_row', f'{text}; write {FORMAT}') from error
    if values[8] not in label_of:
        known = ', '.join(list(label_of)[:15]) + (', ...' if len(label_of) > 15 else '')
        raise AnnotationError('unknown_class', f'class {values[8]!r:.40} is none of {known}')
    if values[9:] not in ([], ['0'], ['1']):
        raise AnnotationError('malformed_row', f'difficult is {values[9]!r:.40}; write 0 or 1')
    text = f'corners {" ".join(values[:8])}'
    if not all(map(math.isfinite, numbers)):
        raise AnnotationError('nan_box', f'{text} are not finite')
    corners = checked_corners(numbers, text=text)
    # Of an image that cannot be read the size is unknown.
    size = (LARGEST, LARGEST) if (image.height, image.width) == UNKNOWN else (image.height, image.width)
    box = checked_box(_envelope(numbers), size, text=text)
    return Row(
        image=index,
        id=-1,
        label=label_of[values[8]],
        box=box,
        crowd=False,
        area=ring_area(corners),
        corners=corners,
        difficult=values[9:] == ['1'],
    )


def _envelope(numbers: Sequence[float]) -> Box:
    return min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])


def _stated(values: Sequence[str]) -> Box | None:
    """The upright box of a bad row's corners, unclipped, if it has eight numbers."""
    try:
        numbers = [float(value) for value in values[:8]]
    except ValueError:
        return None
    return _envelope(numbers) if len(numbers) == 8 else None
