"""Ground truth of a COCO JSON file, as the evaluator needs it: boxes, areas, crowd flags, and no polygons."""

import math
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from faster_coco_eval import COCO
from mmengine.logging import print_log

from lucid.structures.coco_json import read_categories, read_coco_json, whole_number


class GroundTruth(NamedTuple):
    """One annotation file; label i is category ``category_ids[i]``, named ``classes[i]``.

    coco:         the indexed annotations; boxes are x, y, width, height in pixels of the original image
    classes:      names, sorted by category id
    category_ids: ids of the file, ascending
    """

    coco: COCO
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]


def read_ground_truth(source: str | Path | Mapping[str, Any]) -> GroundTruth:
    """Read the boxes of a COCO JSON file, or of its content.

    A missing area is the box's width times height. Boxes without area, with a non-finite coordinate, or of an image or
    category that the file does not list can never be matched: they are left out and counted in one warning.

    Args:
        source: The annotation file, or what it would hold.

    Returns:
        Annotations without polygons, numbered from 1.

    Raises:
        ValueError: The file is missing, is no JSON, has no ``images``, ``annotations`` or ``categories``, or an
            image or category is malformed.
    """
    path = Path('the data set' if isinstance(source, Mapping) else source)
    content = source if isinstance(source, Mapping) else read_coco_json(path)
    categories = read_categories(path, content['categories'])
    category_ids = tuple(category.id for category in categories)
    images = [{'id': _image_id(path, position, image)} for position, image in enumerate(content['images'])]
    known_images, known_categories = {image['id'] for image in images}, set(category_ids)

    annotations: list[dict[str, Any]] = []
    for row in content['annotations']:
        box: Any = row.get('bbox') if isinstance(row, dict) else None
        if not _has_area(box):
            continue
        if not _is_in(known_images, row.get('image_id')) or not _is_in(known_categories, row.get('category_id')):
            continue
        annotations.append(
            {
                # Numbered afresh from 1: the evaluator takes the id 0 for "unmatched", and some files start at 0.
                'id': len(annotations) + 1,
                'image_id': int(row['image_id']),
                'category_id': int(row['category_id']),
                'bbox': [float(value) for value in box],
                'area': float(row['area']) if _is_finite(row.get('area')) else float(box[2] * box[3]),
                'iscrowd': int(bool(row.get('iscrowd'))),
            }
        )
    if skipped := len(content['annotations']) - len(annotations):
        print_log(f'{path}: {skipped} annotations cannot be matched by any box and are not evaluated', 'current', 30)
    listed = [{'id': category.id, 'name': category.name} for category in categories]
    coco = COCO({'images': images, 'annotations': annotations, 'categories': listed})
    return GroundTruth(coco, tuple(category.name for category in categories), category_ids)


def _image_id(path: Path, position: int, image: Any) -> int:
    try:
        return whole_number(image['id'])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'{path}: image at position {position} needs a whole-number id ({type(error).__name__}: {error}); add it'
        ) from error


def _is_in(ids: Set[int], value: Any) -> bool:
    return isinstance(value, int | float) and value in ids


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _has_area(box: Any) -> bool:
    """Whether it is x, y, width and height with an area."""
    return isinstance(box, list) and len(box) == 4 and all(map(_is_finite, box)) and box[2] > 0 and box[3] > 0
