"""Reading and checking the Pascal VOC layout: one XML file per image, and a list of images per split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

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
)
from lucid.datasets.images import image_sizes
from lucid.datasets.problems import MISSING_LABEL, Problems
from lucid.datasets.xml_lines import XmlError, line_of, parse_xml

ANNOTATIONS, IMAGES, SPLITS, CLASSES = 'Annotations', 'JPEGImages', 'ImageSets/Main', 'classes.txt'
DIFFICULT = ('ignore', 'keep')
SIDES = ('xmin', 'ymin', 'xmax', 'ymax')
FLAGS = ('-1', '0', '1')
"""What may follow a name in the list of one class."""


def is_voc(data_root: Path) -> bool:
    """Whether a folder has annotations and lists of images where this layout has them."""
    return (data_root / ANNOTATIONS).is_dir() and (data_root / SPLITS).is_dir()


def read_voc(
    data_root: Path,
    split: str,
    *,
    problems: Problems,
    targets: Sequence[str] = ('boxes',),
    classes: Sequence[str] | None = None,
    difficult: str = 'ignore',
    missing_labels: str = 'error',
) -> Content:
    """Read the Pascal VOC layout; bad objects and files go to ``problems`` and are left out.

    Pixels are counted from 1 and the last one belongs to the box: xmin=1 and xmax=2 cover 0 to 2.

    Args:
        data_root: Folder with ``Annotations``, ``ImageSets/Main`` and ``JPEGImages``.
        split: Name of a list in ``ImageSets/Main``, such as ``train``.
        problems: Collects what is wrong with objects, XML files and images, by file and line.
        targets: Kinds to read: boxes.
        classes: Names in the order of their labels; None reads ``classes.txt``, or where there is none takes all names
            in ``Annotations``, those of other splits too, in alphabetical order.
        difficult: What objects marked so mean: ``'ignore'``, regions that evaluation ignores and training does not
            learn, or ``'keep'``, objects like others.
        missing_labels: What a listed image without XML file means: ``'error'``, a problem, or ``'background'``.

    Returns:
        What is usable; images are numbered from 1 in the order of their list, categories from 0.

    Raises:
        ValueError: The list of the split is missing or empty, or there are no classes.
    """
    check_targets(targets, 'voc')
    check_word('difficult', difficult, DIFFICULT)
    check_word('missing_labels', missing_labels, MISSING_LABELS)
    names = _names(data_root, split)
    label_of = {name: label for label, name in enumerate(classes or _classes(data_root))}
    roots: list[Element | None] = []
    for index, name in enumerate(names):
        path = _xml(data_root, name)
        try:
            roots.append(parse_xml(path))
            continue
        except FileNotFoundError:
            if missing_labels == 'error':
                text = 'does not exist; write one without objects if its image shows none'
                problems.add(MISSING_LABEL, text, place=str(path), image=index)
        except XmlError as error:
            problems.add('broken_label', str(error), place=error.place, image=index)
        roots.append(None)
    images = _images(data_root, names, roots)
    rows = [
        row
        for index, (name, root) in enumerate(zip(names, roots, strict=True))
        if root is not None
        for row in _rows(_xml(data_root, name), root, images[index], index, label_of, difficult, problems)
    ]
    categories = Categories(tuple(range(len(label_of))), tuple(label_of), ())
    return Content('voc', data_root / SPLITS / f'{split}.txt', categories, images, rows)


def _names(data_root: Path, split: str) -> list[str]:
    """The names that the list of a split has."""
    path = data_root / SPLITS / f'{split}.txt'
    try:
        lines = [line.strip() for line in path.read_text(encoding='utf-8-sig').splitlines()]
    except FileNotFoundError as error:
        known = sorted(file.stem for file in path.parent.glob('*.txt'))
        raise ValueError(f'{path} does not exist; set split to one of {", ".join(known[:20]) or "(none)"}') from error
    except (OSError, UnicodeError) as error:
        raise ValueError(f'{path} cannot be read ({error}); restore it') from error
    names = []
    for line in filter(None, lines):
        name, _, flag = line.rpartition(' ')
        flagged = name and flag in FLAGS and not _xml(data_root, line).is_file()
        names.append(name.strip() if flagged else line)
    names = list(dict.fromkeys(names))
    if not names:
        raise ValueError(f'{path} lists no images; choose another split')
    return names


def _classes(data_root: Path) -> list[str]:
    path = data_root / CLASSES
    if path.is_file():
        names = [line.strip() for line in path.read_text(encoding='utf-8-sig').splitlines() if line.strip()]
        if not names or len(set(names)) < len(names):
            raise ValueError(f'{path} lists {"a class twice" if names else "no class"}; write each once, one a line')
        return names
    found: set[str] = set()
    for file in sorted((data_root / ANNOTATIONS).rglob('*.xml')):
        try:
            found.update(_text(item, 'name') for item in parse_xml(file).iterfind('object'))
        except XmlError:
            continue  # reported if it belongs to the split
    found.discard('')
    if not found:
        raise ValueError(f'{data_root / ANNOTATIONS}: no file names an object; correct data_root, or set classes')
    return sorted(found)


def _images(data_root: Path, names: Sequence[str], roots: Sequence[Element | None]) -> list[ImageRow]:
    """Path and size of each image; the size as its XML says, else of its file, else 1 by 1."""
    folder = data_root / IMAGES
    found: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob('*')):
        if file.suffix.lower() in IMG_EXTENSIONS:
            found.setdefault(file.relative_to(folder).with_suffix('').as_posix(), []).append(file)
    files = []
    for name, root in zip(names, roots, strict=True):
        candidates = found.get(name, [folder / f'{name}.jpg'])
        stated = '' if root is None else Path(_text(root, 'filename')).name
        files.append(next((file for file in candidates if file.name == stated), candidates[0]))
    stated_sizes = [None if root is None else _stated_size(root) for root in roots]
    unstated = [index for index, size in enumerate(stated_sizes) if size is None]
    read: Mapping[int, tuple[int, int] | None] = dict(
        zip(unstated, image_sizes([files[index] for index in unstated]), strict=True)
    )
    return [
        ImageRow(index + 1, str(file), *(size or read[index] or (1, 1)))
        for index, (file, size) in enumerate(zip(files, stated_sizes, strict=True))
    ]


def _stated_size(root: Element) -> tuple[int, int] | None:
    """Height and width; None where they are missing or 0, as some tools write them."""
    try:
        height, width = (int(_text(root, f'size/{side}')) for side in ('height', 'width'))
    except ValueError:
        return None
    return (height, width) if 0 < height <= LARGEST and 0 < width <= LARGEST else None


def _rows(
    path: Path,
    root: Element,
    image: ImageRow,
    index: int,
    label_of: Mapping[str, int],
    difficult: str,
    problems: Problems,
) -> list[Row]:
    """The usable objects of one file."""
    rows = []
    for number, item in enumerate(root.iterfind('object'), 1):
        box: Box | None = None
        try:
            name = _text(item, 'name')
            if name not in label_of:
                known = ', '.join(list(label_of)[:10]) + (', ...' if len(label_of) > 10 else '')
                raise AnnotationError('unknown_class', f'name {name!r:.40} is none of {known}')
            box, text = _box(item)
            # Of an image that cannot be read the size is unknown.
            size = (LARGEST, LARGEST) if image.height == image.width == 1 else (image.height, image.width)
            x1, y1, x2, y2 = checked_box(box, size, text=text)
            crowd = difficult == 'ignore' and _text(item, 'difficult') not in ('', '0')
            area = (x2 - x1) * (y2 - y1)
            rows.append(Row(index, line_of(item), label_of[name], (x1, y1, x2, y2), crowd, area))
        except AnnotationError as bad:
            place = f'{path}:{line_of(item)}'
            problems.add(bad.kind, f'object {number}: {bad}', place=place, image=index, annotation=number, box=box)
    return rows


def _box(item: Element) -> tuple[Box, str]:
    """Corners in continuous pixels, unchecked, and the box as the file has it."""
    texts = [_text(item, f'bndbox/{side}') for side in SIDES]
    text = f'bndbox {" ".join(value or "?" for value in texts)}'
    try:
        xmin, ymin, xmax, ymax = map(float, texts)
    except ValueError as error:
        raise AnnotationError('malformed_box', f'{text} has not four numbers {", ".join(SIDES)}') from error
    return (xmin - 1, ymin - 1, xmax, ymax), text


def _text(element: Element, path: str) -> str:
    """What a child holds, stripped; empty where there is none."""
    return (element.findtext(path) or '').strip()


def _xml(data_root: Path, name: str) -> Path:
    return data_root / ANNOTATIONS / f'{name}.xml'
