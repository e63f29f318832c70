"""Converting a data set between COCO JSON, the YOLO layout and Pascal VOC; DOTA is read."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

from lucid.apis.conversion_formats import WRITERS, Record
from lucid.apis.new_folder import check_target, is_inside, new_folder
from lucid.datasets.annotations import Row
from lucid.datasets.content import MISSING_LABELS, Content, check_word
from lucid.datasets.detection import usable_images
from lucid.datasets.folder import read_folder
from lucid.datasets.layout import LAYOUTS, NoLayoutError, find_layout, has_split
from lucid.datasets.problems import POLICIES, DataError, Problems
from lucid.structures.coco_json import read_coco_json

SPLITS = ('train', 'val', 'test')
IMAGES = ('copy', 'link')
EXTRAS = {'segmentation': 'polygons or masks', 'keypoints': 'keypoints', 'obb': 'rotated boxes'}
"""What COCO JSON may hold beside a box."""


FLAGS = {
    r'\bann_file\b': '--ann-file',
    r'\bimage_dir\b': '--image-dir',
    r'\bset split\b': 'name others with --splits',
    r'\bdata_root\b': 'the source',
    r'\blayout=': '--from ',
}
"""What the arguments of readers are called on the command line."""


class Conversion(NamedTuple):
    """What was written.

    source, target: the layouts
    images, boxes:  numbers per split
    problems:       what ``on_bad`` left out, counted by kind, per split
    lost:           what the target cannot hold, and how many objects had it
    """

    source: str
    target: str
    images: dict[str, int]
    boxes: dict[str, int]
    problems: dict[str, dict[str, int]]
    lost: dict[str, int]


def convert(
    source: str | Path,
    target: str | Path,
    *,
    layout: str,
    source_layout: str | None = None,
    splits: Sequence[str] | None = None,
    ann_file: str | Path | None = None,
    image_dir: str | Path | None = None,
    images: str = 'copy',
    on_bad: str = 'error',
    missing_labels: str = 'error',
) -> Conversion:
    """Write a data set in another layout into a new folder, which appears complete or not at all.

    Args:
        source: Folder of the data set, or its ``data.yaml``; nothing is written there.
        target: Folder to make; may exist if it is empty.
        layout: What to write: ``'coco'``, ``'yolo'`` or ``'voc'``.
        source_layout: What to read, one of these or ``'dota'``; None finds out.
        splits: Parts to convert; None takes those of train, val and test that there are.
        ann_file: Annotation file of COCO JSON, relative to ``source``, of the one split.
        image_dir: Folder of its images, relative to ``source``.
        images: ``'copy'`` the image files, or ``'link'`` to them.
        on_bad: What to do about bad annotations and images: ``'error'``, ``'skip_box'`` or ``'skip_image'``.
        missing_labels: What an image without label file means: ``'error'`` or ``'background'``.

    Returns:
        What was written and what was lost.

    Raises:
        ValueError: The source cannot be read, is bad, or has that layout already; the target is not empty or inside the
            source; splits disagree about classes; or names of images or classes do not fit the layout.
    """
    check_word('layout', layout, tuple(WRITERS))
    check_word('images', images, IMAGES)
    check_word('on_bad', on_bad, POLICIES)
    check_word('missing_labels', missing_labels, MISSING_LABELS)
    root, folder = Path(source).expanduser(), Path(target).expanduser().resolve()
    with flags_as_remedies():
        source_layout = source_layout or ('coco' if ann_file is not None else _layout(root, splits or SPLITS))
    check_word('source_layout', source_layout, LAYOUTS)
    if source_layout == layout:
        raise ValueError(f'{root} has layout {layout} already; choose another')
    splits = list(splits or (split for split in SPLITS if has_split(root, source_layout, split)))
    if ann_file is not None and len(splits) != 1:
        raise ValueError(f'ann_file {ann_file} is that of one split; state it with --splits')
    if not splits:
        raise ValueError(f'{root} has none of the splits {", ".join(SPLITS)}; state them with --splits')
    check_target(root, folder)

    parts: dict[str, list[Record]] = {}
    problems: dict[str, dict[str, int]] = {}
    lost: Counter[str] = Counter()
    names: tuple[str, ...] = ()
    for split in splits:
        found = Problems(on_bad)
        with flags_as_remedies():
            content = read_folder(
                root,
                split,
                problems=found,
                layout=source_layout,
                ann_file=ann_file,
                image_dir=image_dir,
                missing_labels=missing_labels,
            )
            kept = usable_images(content, found).tolist()
        if parts and content.categories.names != names:
            raise ValueError(
                f'{root}: split {split} has the classes {list(content.categories.names)}, {splits[0]} {list(names)}; '
                'give all splits the same classes in the same order'
            )
        names = content.categories.names
        if layout == 'yolo':
            lost['ignored regions'] += sum(row.crowd for row in content.rows)
            content = content._replace(rows=[row for row in content.rows if not row.crowd])
        parts[split] = _records(content, kept)
        problems[split] = found.counts()
        lost.update(_lost(content, layout))
    for split, records in parts.items():
        if any(is_inside(folder, path) for path in {record.source.parent for record in records}):
            raise ValueError(f'{folder} is inside the images of split {split}; choose another target')
    _write(folder, layout, names, parts, link=images == 'link')
    return Conversion(
        source=source_layout,
        target=layout,
        images={split: len(part) for split, part in parts.items()},
        boxes={split: sum(len(record.rows) for record in part) for split, part in parts.items()},
        problems=problems,
        lost={word: number for word, number in lost.items() if number},
    )


@contextmanager
def flags_as_remedies() -> Iterator[None]:
    """Let what a reader refuses end with flags of the tool in the place of the data set's arguments."""
    try:
        yield
    except DataError as error:
        raise DataError(_flagged(error.told('--{} {}')), error.problems) from error
    except ValueError as error:
        what, semicolon, remedy = str(error).rpartition('; ')
        for pattern, flag in FLAGS.items():
            remedy = re.sub(pattern, flag, remedy)
        raise ValueError(f'{what}{semicolon}{remedy}') from error


def _flagged(text: str) -> str:
    return re.sub(r'--\w+', lambda match: match[0].replace('_', '-'), text)


def print_conversion(conversion: Conversion, console: Console | None = None) -> None:
    """Print what was written, left out and lost."""
    console = console or Console()
    table = Table('split', 'images', 'boxes', 'left out')
    for split, images in conversion.images.items():
        left_out = ', '.join(f'{number} {kind}' for kind, number in sorted(conversion.problems[split].items()))
        table.add_row(split, f'{images:,}', f'{conversion.boxes[split]:,}', left_out or '-')
    console.print(table)
    if conversion.lost:
        lost = ', '.join(f'{word} of {number:,} objects' for word, number in conversion.lost.items())
        console.print(f'{conversion.target} cannot hold, and the new folder lacks: {lost}', highlight=False)


def _layout(root: Path, splits: Sequence[str]) -> str:
    """The layout of a folder, from the first of the splits that it has."""
    for split in splits:
        try:
            return find_layout(root, split)
        except NoLayoutError:
            continue
    return find_layout(root, splits[0])


def _records(content: Content, kept: Sequence[int]) -> list[Record]:
    """The images to write, with their names below the folder that all of a split have in common."""
    rows: dict[int, list[Row]] = {index: [] for index in kept}
    for row in content.rows:
        if row.image in rows:
            rows[row.image].append(row)
    files = [Path(os.path.abspath(content.images[index].file)) for index in kept]
    common = Path(os.path.commonpath([file.parent for file in files]))
    return [
        Record(file, file.relative_to(common).as_posix(), image.height, image.width, rows[index])
        for index, file in zip(kept, files, strict=True)
        for image in (content.images[index],)
    ]


def _lost(content: Content, layout: str) -> Counter[str]:
    """What a layout cannot hold, and how many objects have it."""
    lost: Counter[str] = Counter()
    if content.layout == 'coco':
        entries = [entry for entry in read_coco_json(content.source)['annotations'] if isinstance(entry, dict)]
        lost.update({word: sum(bool(entry.get(key)) for entry in entries) for key, word in EXTRAS.items()})
    elif layout != 'coco':
        lost['rotated boxes'] += sum(row.corners is not None for row in content.rows)
    if layout == 'yolo':
        lost['difficult flags'] += sum(row.difficult for row in content.rows)
    return lost


def _write(folder: Path, layout: str, names: Sequence[str], parts: dict[str, list[Record]], *, link: bool) -> None:
    """Make the folder beside its place, and move it there when it is complete."""
    with new_folder(folder) as draft:
        total = sum(map(len, parts.values()))
        placed = WRITERS[layout](draft, names, parts)
        for source, place in track(placed, f'writing {total} images', total=total, transient=True):
            path = draft / place
            path.parent.mkdir(parents=True, exist_ok=True)
            if link:
                path.symlink_to(source.resolve())
            else:
                shutil.copyfile(source, path)
