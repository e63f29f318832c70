"""Label files of the YOLO layout: one row per object, in fractions of the image's sides."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lucid.datasets.annotations import Box, Categories, Row
from lucid.datasets.content import (
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
from lucid.datasets.yolo_file import (
    NAME,
    YoloImage,
    YoloSplit,
    find_yolo_file,
    find_yolo_images,
    label_of,
    read_yolo_file,
)

UNKNOWN = (1, 1)
"""Size of an image that cannot be read: the check of all images reports it, and rows are checked as fractions."""
NO_LABELS = 'classes.txt'
"""A list of classes that some tools leave among the label files."""


def read_yolo(
    data_root: Path,
    split: str,
    *,
    problems: Problems,
    targets: Sequence[str] = ('boxes',),
    missing_labels: str = 'error',
) -> Content:
    """Read the YOLO layout; bad rows and files go to ``problems`` and are left out.

    Args:
        data_root: Folder with ``data.yaml``, or that file.
        split: A key of it, such as ``train``.
        problems: Collects what is wrong with rows, label files and images; files by path, rows by line.
        targets: Kinds to read: boxes, rboxes; rotated boxes need rows with four corners.
        missing_labels: What an image without label file means: ``'error'``, a problem, or ``'background'``, no object.

    Returns:
        What is usable; images are numbered from 1 in their order, categories from 0.

    Raises:
        ValueError: There is no usable ``data.yaml``, or it leads to no image.
    """
    check_targets(targets, 'yolo')
    check_word('missing_labels', missing_labels, MISSING_LABELS)
    path = find_yolo_file(data_root)
    if path is None:
        raise ValueError(f'{data_root} has no {NAME} and no other YAML file that names classes; correct data_root')
    file = read_yolo_file(path)
    listed = find_yolo_images(file, split)
    images, rows = [], []
    sizes = image_sizes([one.image for one in listed.images])
    for index, (one, size) in enumerate(zip(listed.images, sizes, strict=True)):
        images.append(ImageRow(index + 1, str(one.image), *(size or UNKNOWN)))
        rows += _rows(one, images[-1], index, len(file.names), targets, missing_labels, problems)
    _check_orphans(listed, path.parent, problems)
    categories = Categories(tuple(range(len(file.names))), file.names, ())
    return Content('yolo', path, categories, images, rows, split)


def _rows(
    one: YoloImage,
    image: ImageRow,
    index: int,
    num_classes: int,
    targets: Sequence[str],
    missing_labels: str,
    problems: Problems,
) -> list[Row]:
    """The usable rows of a label file; one that is empty is a background image."""
    try:
        text = one.label.read_text(encoding='utf-8-sig')
    except FileNotFoundError:
        if missing_labels == 'error':
            text = f'image {image.file} has no label file; write an empty one if it shows no objects'
            problems.add(MISSING_LABEL, text, place=str(one.label), image=index)
        return []
    except (OSError, UnicodeError) as error:
        problems.add('broken_label', f'cannot be read ({error}); restore it', place=str(one.label), image=index)
        return []
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        values = line.split()
        try:
            rows.append(_row(values, image, index, num_classes, targets)._replace(id=number))
        except AnnotationError as bad:
            place = f'{one.label}:{number}'
            problems.add(bad.kind, str(bad), place=place, image=index, annotation=number, box=_stated(values, image))
    return rows


def _row(values: Sequence[str], image: ImageRow, index: int, num_classes: int, targets: Sequence[str]) -> Row:
    if len(values) not in (5, 9):
        raise AnnotationError(
            'malformed_row', f'a row of {len(values)} values; write class cx cy w h, or class and four corners'
        )
    try:
        label, *numbers = map(float, values)
    except ValueError as error:
        raise AnnotationError('malformed_row', f'{" ".join(values)!r:.80} are not all numbers') from error
    if label not in range(num_classes):
        raise AnnotationError('unknown_class', f'class {values[0]} is none of 0 to {num_classes - 1}')
    text = f'box {" ".join(values[1:])}'
    if not all(map(math.isfinite, numbers)):
        raise AnnotationError('nan_box', f'{text} is not finite')
    corners = None
    known = (image.height, image.width) != UNKNOWN
    scale = np.array([image.width, image.height], dtype=np.float64)
    if len(numbers) == 4:
        if min(numbers[2:]) < 0:
            raise AnnotationError('inverted_box', f'{text} has a negative width or height')
        if min(numbers[2:]) == 0:
            raise AnnotationError('empty_box', f'{text} has no area')
    elif np.ptp(np.reshape(numbers, (4, 2)), axis=0).min() == 0:
        raise AnnotationError('empty_box', f'{text} has no area')
    # Exactly: rounding to any number of decimals never carries a fraction of 0 to 1 across either end.
    if wrong := [number for number in numbers if not 0 <= number <= 1]:
        raise AnnotationError('outside_box', f'{text} has {wrong[0]}, which is no fraction of 0 to 1')
    if len(numbers) == 8:
        corners = np.reshape(numbers, (4, 2)) * scale
        if 'rboxes' in targets and known:
            corners = checked_corners(corners.ravel().tolist(), text=text)
    elif 'rboxes' in targets:
        raise AnnotationError('malformed_rbox', f'{text} has no corners; write class and four corners')
    box = _corners(numbers, image)
    if known:
        box = checked_box(box, (image.height, image.width), text=text)
    area = (box[2] - box[0]) * (box[3] - box[1])
    return Row(image=index, id=-1, label=int(label), box=box, crowd=False, area=area, corners=corners)


def _corners(numbers: Sequence[float], image: ImageRow) -> Box:
    """Corners in pixels of a centre with a size, or of the envelope of four corners."""
    if len(numbers) == 4:
        x, y, width, height = numbers
        x1, y1, x2, y2 = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    else:
        x1, y1, x2, y2 = min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])
    return x1 * image.width, y1 * image.height, x2 * image.width, y2 * image.height


def _stated(values: Sequence[str], image: ImageRow) -> Box | None:
    """Corners of a bad row's box, unclipped, if it has the numbers of one."""
    try:
        numbers = [float(value) for value in values[1:]]
    except ValueError:
        return None
    return _corners(numbers, image) if len(numbers) in (4, 8) else None


def _check_orphans(listed: YoloSplit, root: Path, problems: Problems) -> None:
    """Find label files whose image is missing: the images of a folder are those that are there.

    Where labels lie beside images, any text file would look like one.
    """
    known = {one.label for one in listed.images}
    for folder in listed.folders:
        labels = label_of(folder / 'x', root).parent
        if labels == folder or not labels.is_dir():
            continue
        for path in sorted(labels.rglob('*.txt')):
            if path not in known and path.name != NO_LABELS:
                problems.add('missing_image', 'no image belongs to this label file; restore it', place=str(path))
