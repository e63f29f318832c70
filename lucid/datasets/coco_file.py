"""Reading and checking COCO instances JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lucid.datasets.annotations import Box, Categories
from lucid.datasets.coco_objects import checked_numbers, checked_object, lookup, stated_box
from lucid.datasets.content import LARGEST, AnnotationError, Content, ImageRow, check_targets
from lucid.datasets.layout import find_annotations, find_images
from lucid.datasets.problems import DataError, Problems
from lucid.structures.coco_json import read_categories, read_coco_json, whole_number


def read_coco(
    data_root: Path,
    split: str,
    *,
    problems: Problems,
    targets: Sequence[str] = ('boxes',),
    ann_file: str | Path | None = None,
    image_dir: str | Path | None = None,
) -> Content:
    """Read COCO instances JSON; bad annotations go to ``problems`` and are left out.

    Args:
        data_root: Folder of the data set.
        split: Its part, such as ``train``; leads to the files unless they are given.
        problems: Collects what is wrong with single annotations.
        targets: Kinds to read: boxes, polygons, masks, rboxes, keypoints.
        ann_file: Annotation file, relative to ``data_root``; None looks in the usual places.
        image_dir: Folder of the images, relative to ``data_root``; None looks in the usual places.

    Returns:
        What is usable.

    Raises:
        ValueError: Files are missing or ambiguous, or the annotation file as a whole is unusable: no JSON, a missing
            part, malformed categories, or no image.
    """
    check_targets(targets, 'coco')
    path = find_annotations(data_root, split, ann_file)
    content = read_coco_json(path)
    categories = _categories(path, content['categories'], targets)
    images = _images(path, content['images'], problems)
    image_of = {image.id: index for index, image in enumerate(images)}
    label_of = {category: label for label, category in enumerate(categories.ids)}
    rows = []
    for position, entry in enumerate(content['annotations']):
        index = lookup(image_of, entry.get('image_id')) if isinstance(entry, dict) else -1
        try:
            rows.append(checked_object(entry, index, images, label_of, targets, len(categories.keypoints)))
        except AnnotationError as bad:
            where = f'of image {images[index].file}' if index >= 0 else 'of no listed image'
            name = entry.get('id', f'at position {position}') if isinstance(entry, dict) else f'at position {position}'
            place = f'{path.name}: annotation {name} {where}'
            problems.add(bad.kind, str(bad), place=place, image=index, annotation=position, box=stated_box(entry))
    folder = find_images(data_root, split, [image.file for image in images], image_dir)
    placed = [image._replace(file=str(folder / image.file)) for image in images]
    return Content('coco', path, categories, placed, rows)


def _categories(path: Path, entries: list[dict[str, Any]], targets: Sequence[str]) -> Categories:
    named = read_categories(path, entries)
    if not named:
        raise ValueError(f'{path}: lists no categories; give at least one')
    schemas = {category.keypoints for category in named if category.keypoints}
    if 'keypoints' in targets and not schemas:
        raise ValueError(
            f"{path}: no category names its keypoints; give those that have some 'keypoints', a list of their names"
        )
    if 'keypoints' in targets and len(schemas) > 1:
        raise ValueError(
            f'{path}: categories name {len(schemas)} different sets of keypoints; give all that have keypoints the same'
        )
    return Categories(
        tuple(category.id for category in named), tuple(category.name for category in named), min(schemas, default=())
    )


def _images(path: Path, entries: list[dict[str, Any]], problems: Problems) -> list[ImageRow]:
    images: list[ImageRow] = []
    for position, entry in enumerate(entries):
        try:
            image = ImageRow(
                whole_number(entry['id']),
                str(entry['file_name']),
                whole_number(entry['height']),
                whole_number(entry['width']),
                *_tile(entry),
            )
        except (KeyError, TypeError, ValueError) as error:
            text = f'needs file_name and whole numbers id, height and width ({type(error).__name__}: {error}); add them'
            problems.add('malformed_image', text, place=f'{path.name}: image at position {position}')
            continue
        if not (0 < image.height <= LARGEST and 0 < image.width <= LARGEST):
            text = f'is {image.width}x{image.height} pixels; correct its size'
            problems.add('malformed_image', text, place=f'{path.name}: image {image.file}')
            continue
        images.append(image)
    names: dict[int, list[str]] = {}
    for image in images:
        names.setdefault(image.id, []).append(image.file)
    for index, image in enumerate(images):
        if len(same := names[image.id]) > 1:
            text = f'an image id occurs twice: {image.id} is that of {", ".join(same[:5])}; give each image its own id'
            problems.add('duplicate_image_id', text, place=f'{path.name}: image {image.file}', image=index)
    if not images:
        problems.settle(str(path))
        first = f' (first problem: {problems.found[0].message})' if entries else ''
        text = f'lists no {"usable images" if entries else "images"}{first}; choose another split or annotation file'
        raise DataError(f'{path}: {text}', problems.found)
    return images


def _tile(entry: dict[str, Any]) -> tuple[str, Box]:
    """What an image was cut from, and where it lies in it; nothing of one that is no tile."""
    if entry.get('source_image') is None:
        return '', (0.0, 0.0, 0.0, 0.0)
    try:
        x1, y1, x2, y2 = checked_numbers('malformed_image', 'window', entry.get('window'), 4)
    except AnnotationError as error:
        raise ValueError(f'a tile of {entry["source_image"]!r:.80} needs a window: {error}') from error
    return str(entry['source_image']), (x1, y1, x2, y2)
