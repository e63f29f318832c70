"""Cutting the large images of DOTA into tiles: image files with one oriented COCO JSON per split."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from lucid.apis.conversion import SPLITS, flags_as_remedies
from lucid.apis.conversion_formats import coco_annotation
from lucid.apis.new_folder import check_target, is_inside, new_folder
from lucid.datasets.annotations import Row
from lucid.datasets.content import MISSING_LABELS, Content, ImageRow, check_word
from lucid.datasets.detection import usable_images
from lucid.datasets.dota_file import read_dota
from lucid.datasets.images import READERS, Image, read_image
from lucid.datasets.layout import has_split
from lucid.datasets.problems import POLICIES, Problems
from lucid.structures.polygons import ring_area
from lucid.structures.tiles import Window, cut_objects, tile_windows

FORMATS: Mapping[str, list[int]] = {'png': [], 'jpg': [cv2.IMWRITE_JPEG_QUALITY, 95]}
"""What OpenCV is told when it writes a tile, by suffix."""
FRACTION_DECIMALS = 6


class SplitTiling(NamedTuple):
    """What was written of one split.

    tiles:     files
    empty:     of them, tiles without an object
    objects:   of all tiles; one that several tiles show counts for each
    difficult: of them, those that the source calls so, and those that are cut
    problems:  what ``on_bad`` left out, counted by kind
    """

    images: int
    tiles: int
    empty: int
    objects: int
    difficult: int
    problems: dict[str, int]


class _Part(NamedTuple):
    """A split that was read: its content, and the images that are usable, with their objects."""

    content: Content
    images: list[tuple[ImageRow, list[Row]]]
    problems: dict[str, int]


def tile_dota(
    source: str | Path,
    target: str | Path,
    *,
    size: int = 1024,
    overlap: int = 200,
    image_format: str = 'png',
    splits: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    on_bad: str = 'error',
    missing_labels: str = 'error',
    console: Console | None = None,
) -> dict[str, SplitTiling]:
    """Cut a DOTA data set into a new folder, which appears complete or not at all.

    It gets ``annotations/SPLIT.json`` and ``SPLIT/IMAGE__X_Y.png``, where X, Y is the tile's corner in its image. Tiles
    without objects are kept. Beside COCO's keys, an annotation has ``obb``, four corners in pixels of the tile that may
    lie outside of it, ``difficult`` and ``visible_fraction``; an image ``source_image``, the file that it was cut from,
    and ``window``, x1, y1, x2, y2 in pixels of it. ``bbox`` is the envelope of the corners, cut to the tile. What a
    tile shows of an object is decided as ``cut_objects`` says; those that are cut are difficult.

    All data is checked before anything is written. One source image is in memory at a time.

    Args:
        source: Folder of the data set; nothing is written there.
        target: Folder to make; may exist if it is empty.
        size: Side of a tile, pixels; an image that is smaller is one tile as it is.
        overlap: Pixels that neighbours share at least.
        image_format: ``'png'``, or ``'jpg'`` of quality 95.
        splits: Parts to cut; None takes those of train, val and test that have labels.
        classes: Names in the order of their ids; None takes the 15 of DOTA-v1.0.
        on_bad: What to do about bad rows and images: ``'error'``, ``'skip_box'`` or ``'skip_image'``.
        missing_labels: What an image without label file means: ``'error'`` or ``'background'``.
        console: Where the progress goes; None is the standard output.

    Returns:
        What was written, by split.

    Raises:
        ValueError: The source cannot be read or is bad, the target is not empty or inside the source, or a size or a
            word makes no sense.
        OSError: A tile cannot be written.
    """
    if not 0 <= overlap < size or size < 32:
        raise ValueError(f'size={size}, overlap={overlap}; choose tiles of at least 32 pixels, and less overlap')
    check_word('image_format', image_format, tuple(FORMATS))
    check_word('on_bad', on_bad, POLICIES)
    check_word('missing_labels', missing_labels, MISSING_LABELS)
    root, folder, console = Path(source).expanduser(), Path(target).expanduser().resolve(), console or Console()
    if not root.is_dir():
        raise ValueError(f'{source} is no folder; set the source to the folder of the data set')
    check_target(root, folder)
    splits = list(splits or (split for split in SPLITS if has_split(root, 'dota', split)))
    if not splits:
        raise ValueError(f'{root} has no images and labelTxt for any of {", ".join(SPLITS)}; correct the source')
    with flags_as_remedies():
        parts = {split: _read(root, split, folder, classes, on_bad, missing_labels) for split in splits}
    parameters = {'tile_size': size, 'overlap': overlap}
    with new_folder(folder) as draft:
        (draft / 'annotations').mkdir()
        return {
            split: _write(draft, split, part, size, overlap, image_format, parameters, console)
            for split, part in parts.items()
        }


def print_tiling(tiling: Mapping[str, SplitTiling], console: Console | None = None) -> None:
    """Print what was written and left out."""
    table = Table('split', 'images', 'tiles', 'empty', 'objects', 'difficult', 'left out')
    for split, one in tiling.items():
        counts = (f'{number:,}' for number in one[:5])
        left_out = ', '.join(f'{number} {kind}' for kind, number in sorted(one.problems.items()))
        table.add_row(split, *counts, left_out or '-')
    (console or Console()).print(table)


def _read(
    root: Path, split: str, folder: Path, classes: Sequence[str] | None, on_bad: str, missing_labels: str
) -> _Part:
    found = Problems(on_bad)
    content = read_dota(
        root, split, problems=found, targets=('boxes', 'rboxes'), classes=classes, missing_labels=missing_labels
    )
    kept = usable_images(content, found).tolist()
    rows: dict[int, list[Row]] = {index: [] for index in kept}
    for row in content.rows:
        if row.image in rows:
            rows[row.image].append(row)
    stems = Counter(Path(content.images[index].file).stem for index in kept)
    if doubled := [stem for stem, number in stems.items() if number > 1]:
        raise ValueError(f'{root}: images of split {split} share the name {doubled[0]}; rename one of them')
    if is_inside(folder, content.source.parent):
        raise ValueError(f'{folder} is inside split {split}, which is never written to; choose another target')
    return _Part(content, [(content.images[index], rows[index]) for index in kept], found.counts())


def _write(
    draft: Path,
    split: str,
    part: _Part,
    size: int,
    overlap: int,
    image_format: str,
    parameters: Mapping[str, Any],
    console: Console,
) -> SplitTiling:
    """Write the tiles of a split and their annotations."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    (draft / split).mkdir()
    text = f'cutting {len(part.images)} images of {split}'
    with ThreadPoolExecutor(READERS) as pool:
        for image, rows in track(part.images, text, console=console, transient=True):
            pixels = read_image(image.file, size=(image.height, image.width))
            windows = tile_windows(image.height, image.width, size=size, overlap=overlap)
            names = [f'{Path(image.file).stem}__{window[0]}_{window[1]}.{image_format}' for window in windows]
            written = pool.map(_write_tile, [pixels] * len(windows), windows, [draft / split / name for name in names])
            corners_N42 = np.array([row.corners for row in rows], dtype=np.float64).reshape(-1, 4, 2)
            for window, name in zip(windows, names, strict=True):
                images.append(_image(len(images) + 1, name, Path(image.file).name, window))
                for row, visible in _objects(rows, corners_N42, window):
                    entry = coco_annotation(row, len(annotations) + 1, len(images))
                    annotations.append({**entry, 'visible_fraction': round(visible, FRACTION_DECIMALS)})
            list(written)  # raises what a thread raised
    listed = part.content.categories
    categories = [{'id': number, 'name': name} for number, name in zip(listed.ids, listed.names, strict=True)]
    content = {'info': parameters, 'images': images, 'annotations': annotations, 'categories': categories}
    (draft / 'annotations' / f'{split}.json').write_text(json.dumps(content, ensure_ascii=False), encoding='utf-8')
    return SplitTiling(
        images=len(part.images),
        tiles=len(images),
        empty=len(images) - len({entry['image_id'] for entry in annotations}),
        objects=len(annotations),
        difficult=sum(entry['difficult'] for entry in annotations),
        problems=part.problems,
    )


def _image(number: int, name: str, source: str, window: Window) -> dict[str, Any]:
    x1, y1, x2, y2 = window
    return {
        'id': number,
        'file_name': name,
        'height': y2 - y1,
        'width': x2 - x1,
        'source_image': source,
        'window': [*window],
    }


def _objects(rows: Sequence[Row], corners_N42: np.ndarray, window: Window) -> list[tuple[Row, float]]:
    """The objects that a tile shows, in its pixels, and the share of each that it shows."""
    limits = np.array([window[2] - window[0], window[3] - window[1]])
    found = cut_objects(corners_N42, window)
    objects = []
    for number, corners, visible, cut in zip(*found, strict=True):
        (x1, y1), (x2, y2) = np.maximum(corners.min(axis=0), 0), np.minimum(corners.max(axis=0), limits)
        row = rows[number]._replace(
            box=(float(x1), float(y1), float(x2), float(y2)),
            area=ring_area(corners),
            corners=corners,
            difficult=rows[number].difficult or bool(cut),
        )
        objects.append((row, float(visible)))
    return objects


def _write_tile(pixels: Image, window: Window, path: Path) -> None:
    x1, y1, x2, y2 = window
    tile = cv2.cvtColor(pixels[y1:y2, x1:x2], cv2.COLOR_RGB2BGR)
    if not cv2.imwrite(str(path), tile, FORMATS[path.suffix[1:]]):
        raise OSError(f'{path} could not be written; make room on its disk')
