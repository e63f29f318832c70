"""Reading and checking COCO instances JSON."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lucid.datasets.annotations import Annotations, Categories, Row, pack
from lucid.datasets.problems import Problems
from lucid.structures.affine import Float32
from lucid.structures.coco_json import MOST, read_categories, read_coco_json, whole_number
from lucid.structures.polygons import Rings
from lucid.structures.rotated import from_corners

TARGETS = ('boxes', 'polygons', 'rboxes', 'keypoints')
LARGEST = 2**31 - 1
"""Pixels of a side, kept as int32."""
THINNEST = 1e-3
"""Pixels; what is thinner has no area in float32 at the far side of a large image."""


class AnnotationError(ValueError):
    """Why an annotation cannot be used; ``kind`` is one word for counting."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ImageRow(NamedTuple):
    """One image as the file names it; sizes in pixels."""

    id: int
    file_name: str
    height: int
    width: int


class CocoFile(NamedTuple):
    """The usable content of an annotation file; crowd annotations are in it, bad ones are not."""

    categories: Categories
    images: list[ImageRow]
    annotations: Annotations


def read_coco(path: Path, *, targets: Sequence[str], problems: Problems) -> CocoFile:
    """Read an annotation file; bad annotations go to ``problems`` and are left out.

    Args:
        path: COCO instances JSON.
        targets: Kinds to read: boxes, polygons, rboxes, keypoints.
        problems: Collects what is wrong with single annotations.

    Returns:
        What is usable.

    Raises:
        ValueError: The file as a whole is unusable: no JSON, a missing or malformed part, or an id that occurs twice.
    """
    content = read_coco_json(path)
    categories = _categories(path, content['categories'], targets)
    images = _images(path, content['images'])
    image_of = {image.id: index for index, image in enumerate(images)}
    label_of = {category: label for label, category in enumerate(categories.ids)}
    rows = []
    for position, entry in enumerate(content['annotations']):
        index = _lookup(image_of, entry.get('image_id')) if isinstance(entry, dict) else -1
        try:
            rows.append(_row(entry, index, images, label_of, targets, len(categories.keypoints)))
        except AnnotationError as bad:
            where = f'of image {images[index].file_name}' if index >= 0 else 'of no listed image'
            name = entry.get('id', f'at position {position}') if isinstance(entry, dict) else f'at position {position}'
            place = f'{path.name}: annotation {name} {where}'
            problems.add(bad.kind, str(bad), place=place, image=index, annotation=position)
    return CocoFile(categories, images, pack(rows, len(images), targets, len(categories.keypoints)))


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


def _images(path: Path, entries: list[dict[str, Any]]) -> list[ImageRow]:
    images = []
    for position, entry in enumerate(entries):
        try:
            image = ImageRow(
                whole_number(entry['id']),
                str(entry['file_name']),
                whole_number(entry['height']),
                whole_number(entry['width']),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f'{path}: image at position {position} needs file_name and whole numbers id, height and width '
                f'({type(error).__name__}: {error}); add them'
            ) from error
        if not (0 < image.height <= LARGEST and 0 < image.width <= LARGEST):
            raise ValueError(
                f'{path}: image {image.file_name} is {image.width}x{image.height} pixels; correct its size'
            )
        images.append(image)
    if len({image.id for image in images}) < len(images):
        raise ValueError(f'{path}: an image id occurs twice; give each image its own id')
    if not images:
        raise ValueError(f'{path}: lists no images; choose another split or annotation file')
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
        area=float(area)
        if isinstance(area, int | float) and math.isfinite(area)
        else (box[2] - box[0]) * (box[3] - box[1]),
        rings=_rings(entry.get('segmentation')) if wanted and 'polygons' in targets else [],
        rbox=_rbox(entry) if wanted and 'rboxes' in targets else None,
        keypoints=_keypoints(entry.get('keypoints'), num_keypoints) if wanted and 'keypoints' in targets else None,
    )


def _box(bbox: Any, image: ImageRow) -> tuple[float, float, float, float]:
    """Corners of an x, y, width, height box, clipped to the image."""
    x, y, width, height = _numbers('malformed_box', 'bbox', bbox, 4)
    if not all(map(math.isfinite, (x, y, width, height))):
        raise AnnotationError('nan_box', f'bbox {bbox} is not finite')
    if width < 0 or height < 0:
        raise AnnotationError('inverted_box', f'bbox {bbox} has a negative width or height')
    if width < THINNEST or height < THINNEST:
        raise AnnotationError('empty_box', f'bbox {bbox} has no area')
    x1, y1, x2, y2 = max(x, 0.0), max(y, 0.0), min(x + width, image.width), min(y + height, image.height)
    if x2 - x1 < THINNEST or y2 - y1 < THINNEST:
        raise AnnotationError('outside_box', f'bbox {bbox} is outside the {image.width}x{image.height} image')
    return x1, y1, x2, y2


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


def _rbox(entry: dict[str, Any]) -> Float32:
    """The rectangle of ``obb``, four corners in turn, else of a segmentation with one ring of four points."""
    corners = entry.get('obb')
    segmentation = entry.get('segmentation')
    if corners is None and isinstance(segmentation, list) and len(segmentation) == 1:
        corners = segmentation[0]
    points = _numbers('malformed_rbox', 'obb (else a segmentation of one ring)', corners, 8)
    if not all(map(math.isfinite, points)):
        raise AnnotationError('malformed_rbox', f'corners {points} are not finite')
    rbox = from_corners(np.array(points).reshape(1, 4, 2))[0]
    if rbox[3] < THINNEST:
        raise AnnotationError('malformed_rbox', f'corners {points} enclose no area')
    return rbox


def _keypoints(values: Any, num_keypoints: int) -> Float32:
    """Triples x, y, visibility; an object without any has none labelled."""
    if values is None:
        return np.zeros((num_keypoints, 3), dtype=np.float32)
    triples = _numbers('malformed_keypoints', 'keypoints', values, 3 * num_keypoints)
    keypoints = np.array(triples, dtype=np.float32).reshape(-1, 3)
    if not np.isfinite(keypoints).all() or not np.isin(keypoints[:, 2], (0, 1, 2)).all():
        raise AnnotationError('malformed_keypoints', 'keypoints are not finite, or their visibility is none of 0, 1, 2')
    return keypoints


def _lookup(indices: dict[int, int], key: Any) -> int:
    """The index of a key of the file, -1 where it is unknown or no number."""
    return indices.get(key, -1) if isinstance(key, int | float) else -1  # type: ignore[arg-type]


def _numbers(kind: str, name: str, values: Any, length: int | None) -> list[float]:
    """Check a list of numbers and, unless ``length`` is None, how many there are."""
    right = isinstance(values, list) and (length is None or len(values) == length)
    if not right or not all(isinstance(value, int | float) for value in values):
        wanted = 'numbers' if length is None else f'{length} numbers'
        raise AnnotationError(kind, f'{name} {values!r:.80} is no list of {wanted}')
    return [float(value) for value in values]
