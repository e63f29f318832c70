"""Writing data sets as COCO JSON, in the YOLO layout and as Pascal VOC."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from xml.etree import ElementTree

import yaml

from lucid.datasets.annotations import Row

PIXEL_DECIMALS = 9
FRACTION_DECIMALS = 15
"""As much as float64 holds, so that what comes back is the same to a billionth of a pixel."""


class Record(NamedTuple):
    """One image to write.

    source: its file
    name:   path below the folder of its split, with ``/``
    """

    source: Path
    name: str
    height: int
    width: int
    rows: list[Row]


Splits = Mapping[str, Sequence[Record]]
Placed = tuple[Path, Path]
"""An image file and the path that it gets below the folder."""


def write_coco(folder: Path, names: Sequence[str], splits: Splits) -> Iterator[Placed]:
    """``annotations/<split>.json`` and ``<split>/``; images and annotations are numbered from 1, classes too.

    Args:
        folder: Where to write.
        names: Of the classes.
        splits: Images by split.

    Yields:
        Placed: Where each image goes.
    """
    categories = [{'id': label, 'name': name} for label, name in enumerate(names, 1)]
    (folder / 'annotations').mkdir()
    for split, records in splits.items():
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number, record in enumerate(records, 1):
            images.append({'id': number, 'file_name': record.name, 'height': record.height, 'width': record.width})
            for row in record.rows:
                annotations.append(coco_annotation(row, len(annotations) + 1, number))
            yield record.source, Path(split, record.name)
        content = {'images': images, 'annotations': annotations, 'categories': categories}
        (folder / f'annotations/{split}.json').write_text(json.dumps(content, ensure_ascii=False), encoding='utf-8')


def write_yolo(folder: Path, names: Sequence[str], splits: Splits) -> Iterator[Placed]:
    """``data.yaml``, ``images/<split>/`` and ``labels/<split>/``; there must be no crowds.

    Args:
        folder: Where to write.
        names: Of the classes.
        splits: Images by split.

    Yields:
        Placed: Where each image goes.

    Raises:
        ValueError: Two images of a split would share a label file.
    """
    for split, records in splits.items():
        _check_stems([PurePosixPath(record.name) for record in records], f'split {split}')
    content = {**{split: f'images/{split}' for split in splits}, 'nc': len(names), 'names': dict(enumerate(names))}
    (folder / 'data.yaml').write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding='utf-8')
    for split, records in splits.items():
        for record in records:
            lines = [_yolo_line(row, record.height, record.width) for row in record.rows]
            path = folder / 'labels' / split / PurePosixPath(record.name).with_suffix('.txt')
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(''.join(f'{line}\n' for line in lines))
            yield record.source, Path('images', split, record.name)


def write_voc(folder: Path, names: Sequence[str], splits: Splits) -> Iterator[Placed]:
    """``Annotations``, ``ImageSets/Main``, ``JPEGImages`` and ``classes.txt``; crowds become difficult objects.

    All splits share one folder: a name with folders in it is flattened, and where two splits use a name, all names
    begin with that of their split.

    Args:
        folder: Where to write.
        names: Of the classes.
        splits: Images by split.

    Yields:
        Placed: Where each image goes.

    Raises:
        ValueError: A class has no name of its own in one line, or two images would share an XML file.
    """
    if len(set(names)) < len(names) or any(not name.strip() or name != ' '.join(name.split()) for name in names):
        raise ValueError(f'the classes {list(names)} cannot all be told by name in one line; rename them in the source')
    flat = {split: [PurePosixPath(record.name.replace('/', '_')) for record in part] for split, part in splits.items()}
    uses = Counter(stem for paths in flat.values() for stem in {path.stem for path in paths})
    if any(count > 1 for count in uses.values()):
        flat = {split: [PurePosixPath(f'{split}_{path}') for path in paths] for split, paths in flat.items()}
    _check_stems([path for paths in flat.values() for path in paths], 'the data set')
    for part in ('Annotations', 'ImageSets/Main'):
        (folder / part).mkdir(parents=True)
    (folder / 'classes.txt').write_text(''.join(f'{name}\n' for name in names), encoding='utf-8')
    for split, records in splits.items():
        lines = ''.join(f'{path.stem}\n' for path in flat[split])
        (folder / f'ImageSets/Main/{split}.txt').write_text(lines, encoding='utf-8')
        for path, record in zip(flat[split], records, strict=True):
            root = ElementTree.ElementTree(_voc_annotation(path.name, record, names))
            ElementTree.indent(root, '\t')
            root.write(folder / f'Annotations/{path.stem}.xml', encoding='utf-8')
            yield record.source, Path('JPEGImages', path.name)


WRITERS: dict[str, Callable[[Path, Sequence[str], Splits], Iterator[Placed]]] = {
    'coco': write_coco,
    'yolo': write_yolo,
    'voc': write_voc,
}


def _yolo_line(row: Row, height: int, width: int) -> str:
    """Class, centre and size, in fractions of the image's sides."""
    x1, y1, x2, y2 = row.box
    numbers = [(x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height]
    return ' '.join([str(row.label), *(_text(number, FRACTION_DECIMALS) for number in numbers)])


def coco_annotation(row: Row, number: int, image: int) -> dict[str, Any]:
    """One object of COCO JSON.

    Args:
        row: Its box and, if it has them, its corners, which are written as ``obb`` and as a polygon.
        number: Its id.
        image: Id of its image.

    Returns:
        Numbers in the precision of pixels.
    """
    x1, y1, x2, y2 = row.box
    annotation = {
        'id': number,
        'image_id': image,
        'category_id': row.label + 1,
        'bbox': [_rounded(value) for value in (x1, y1, x2 - x1, y2 - y1)],
        'area': _rounded(row.area),
        'iscrowd': int(row.crowd),
    }
    if row.corners is not None:
        ring = [_rounded(value) for value in row.corners.ravel().tolist()]
        annotation |= {'segmentation': [ring], 'obb': ring, 'difficult': int(row.difficult)}
    return annotation


def _voc_annotation(name: str, record: Record, names: Sequence[str]) -> ElementTree.Element:
    root = ElementTree.Element('annotation')
    _add(root, folder='JPEGImages', filename=name)
    _add(ElementTree.SubElement(root, 'size'), width=record.width, height=record.height, depth=3)
    _add(root, segmented=0)
    for row in record.rows:
        item = ElementTree.SubElement(root, 'object')
        _add(item, name=names[row.label], pose='Unspecified', truncated=0, difficult=int(row.crowd or row.difficult))
        x1, y1, x2, y2 = row.box
        corners = {'xmin': x1 + 1, 'ymin': y1 + 1, 'xmax': x2, 'ymax': y2}
        box = {side: _text(value, PIXEL_DECIMALS) for side, value in corners.items()}
        _add(ElementTree.SubElement(item, 'bndbox'), **box)
    return root


def _add(parent: ElementTree.Element, **texts: object) -> None:
    for tag, text in texts.items():
        ElementTree.SubElement(parent, tag).text = str(text)


def _check_stems(paths: Sequence[PurePosixPath], where: str) -> None:
    """Refuse two images whose names differ in their suffix alone, or not at all."""
    counts = Counter(path.with_suffix('') for path in paths)
    if shared := sorted(str(path) for path in paths if counts[path.with_suffix('')] > 1):
        raise ValueError(f'{where}: {", ".join(shared[:4])} would share one label file; rename an image in the source')


def _rounded(value: float) -> float:
    return round(float(value), PIXEL_DECIMALS)


def _text(value: float, decimals: int) -> str:
    """A number without trailing zeros."""
    text = f'{value:.{decimals}f}'.rstrip('0').rstrip('.')
    return '0' if text == '-0' else text
