"""Reading and checking COCO instances JSON."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from lucid.datasets.annotations import Box, Categories, Row
from lucid.datasets.content import LARGEST, THINNEST, AnnotationError, Content, ImageRow, check_targets, checked_box
from lucid.datasets.layout import find_annotations, find_images
from lucid.datasets.problems import DataError, Problems
from lucid.structures.affine import Float32
from lucid.structures.coco_json import MOST, read_categories, read_coco_json, whole_number
from lucid.structures.polygons import Rings
from lucid.structures.rotated import from_corners


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
        targets: Kinds to read: boxes, polygons, rboxes, keypoints.
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
        index = _lookup(image_of, entry.get('image_id')) if isinstance(entry, dict) else -1
        try:
            rows.append(_row(entry, index, images, label_of, targets, len(categories.keypoints)))
        except AnnotationError as bad:
            where = f'of image {images[index].file}' if index >= 0 else 'of no listed image'
            name = entry.get('id', f'at position {position}') if isinstance(entry, dict) else f'at position {position}'
            place = f'{path.name}: annotation {name} {where}'
            problems.add(bad.kind, str(bad), place=place, image=index, annotation=position, box=_stated(entry))
    folder = find_images(data_root, split, [image.file for image in images], image_dir)
    placed = [image._replace(file=str(folder / image.file)) for image in images]
    return Content('coco', path, categories, placed, rows)


def _categories(path: Path, entries: list[dict[str, Any]], targets: Sequence[str]) -> Categories:
    named = read_categories(path, entries)
    if not named:
        raise ValueError(f'{path}: lists no categories; give at least one')
    schemas = {category.keypoints for category in named if category.keypoints}
    if 'keypoints' in targets and len(schemas) != 1:
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


def _row(
    entry: Any,
    index: int,
    images: Sequence[ImageRow],
    label_of: dict[int, int],
    targets: Sequence[str],
    num_keypoints: int,
) -> Row:
    """Check one annotation."""
    if not isinstance(entry, dict):
        raise AnnotationError('malformed_annotation', f'{entry!r} is no object')
    if index < 0:
        raise AnnotationError('unknown_image', f'image_id {entry.get("image_id")!r} is not listed')
    label = _lookup(label_of, entry.get('category_id'))
    if label < 0:
        known = ', '.join(map(str, list(label_of)[:10])) + (', ...' if len(label_of) > 10 else '')
        raise AnnotationError('unknown_class', f'category_id {entry.get("category_id")!r} is none of {known}')
    box = _box(entry.get('bbox'), images[index])
    crowd = bool(entry.get('iscrowd'))
    area = entry.get('area')
    wanted = not crowd
    return Row(
        image=index,
        id=entry['id'] if isinstance(entry.get('id'), int) and abs(entry['id']) <= MOST else -1,
        label=label,
        box=box,
        crowd=crowd,
        area=float(area) if _is_number(area) else (box[2] - box[0]) * (box[3] - box[1]),
        rings=_rings(entry.get('segmentation')) if wanted and 'polygons' in targets else (),
        corners=_corners(entry) if wanted and 'rboxes' in targets else None,
        keypoints=_keypoints(entry.get('keypoints'), num_keypoints) if wanted and 'keypoints' in targets else None,
    )


def _box(bbox: Any, image: ImageRow) -> Box:
    """Corners of an x, y, width, height box, clipped to the image."""
    x, y, width, height = _numbers('malformed_box', 'bbox', bbox, 4)
    # At a large x a small width would vanish in the sum.
    if 0 <= width < THINNEST or 0 <= height < THINNEST:
        raise AnnotationError('empty_box', f'bbox {bbox} has no area')
    return checked_box((x, y, x + width, y + height), (image.height, image.width), text=f'bbox {bbox}')


def _rings(segmentation: Any) -> Rings:
    if isinstance(segmentation, dict):
        raise AnnotationError('mask_not_polygon', 'segmentation is a run-length mask, and only polygons are read')
    rings = []
    for ring in segmentation or ():
        points = _numbers('malformed_polygon', 'segmentation', ring, None)
        if len(points) < 6 or len(points) % 2 or not all(map(math.isfinite, points)):
            raise AnnotationError(
                'malformed_polygon', f'a ring of {len(points)} numbers is no polygon of finite points'
            )
        rings.append(np.array(points, dtype=np.float32).reshape(-1, 2))
    return rings


def _corners(entry: dict[str, Any]) -> NDArray[np.float64]:
    """The corners of ``obb``, four in turn, else of a segmentation with one ring of four points."""
    values = entry.get('obb')
    segmentation = entry.get('segmentation')
    if values is None and isinstance(segmentation, list) and len(segmentation) == 1:
        values = segmentation[0]
    points = _numbers('malformed_rbox', 'obb (else a segmentation of one ring)', values, 8)
    if not all(map(math.isfinite, points)):
        raise AnnotationError('malformed_rbox', f'corners {points} are not finite')
    corners = np.array(points).reshape(4, 2)
    if from_corners(corners[None])[0, 3] < THINNEST:
        raise AnnotationError('malformed_rbox', f'corners {points} enclose no area')
    return corners


def _keypoints(values: Any, num_keypoints: int) -> Float32:
    """Triples x, y, visibility; an object without any has none labelled."""
    if values is None:
        return np.zeros((num_keypoints, 3), dtype=np.float32)
    triples = _numbers('malformed_keypoints', 'keypoints', values, 3 * num_keypoints)
    keypoints = np.array(triples, dtype=np.float32).reshape(-1, 3)
    if not np.isfinite(keypoints).all() or not np.isin(keypoints[:, 2], (0, 1, 2)).all():
        raise AnnotationError('malformed_keypoints', 'keypoints are not finite, or their visibility is none of 0, 1, 2')
    return keypoints


def _stated(entry: Any) -> Box | None:
    """Corners of a bad annotation's box, unclipped, if it has four numbers."""
    try:
        x, y, width, height = _numbers('malformed_box', 'bbox', entry['bbox'], 4)
    except (AnnotationError, TypeError, KeyError):
        return None
    return x, y, x + width, y + height


def _lookup(indices: dict[int, int], key: Any) -> int:
    """The index of a key of the file, -1 where it is unknown or no number."""
    return indices.get(key, -1) if isinstance(key, int | float) else -1  # type: ignore[arg-type]


def _numbers(kind: str, name: str, values: Any, length: int | None) -> list[float]:
    """Check a list of numbers and, unless ``length`` is None, how many there are."""
    right = isinstance(values, list) and (length is None or len(values) == length)
    if not right or not all(isinstance(value, int | float) for value in values):
        wanted = 'numbers' if length is None else f'{length} numbers'
        raise AnnotationError(kind, f'{name} {values!r:.80} is no list of {wanted}')
    try:
        return [float(value) for value in values]
    except OverflowError as error:
        raise AnnotationError(kind, f'{name} {values!r:.80} has a number that is too large') from error


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a number that can be an area."""
    return isinstance(value, int | float) and abs(value) <= LARGEST**2
