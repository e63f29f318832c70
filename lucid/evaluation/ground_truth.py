"""Ground truth of a COCO JSON file, as the evaluator needs it: boxes, areas, crowd flags, and no polygons."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from faster_coco_eval import COCO
from mmengine.logging import print_log


class GroundTruth(NamedTuple):
    """One annotation file; label i is category ``category_ids[i]``, named ``classes[i]``.

    coco:         the indexed annotations; boxes are x, y, width, height in pixels of the original image
    classes:      names, sorted by category id
    category_ids: ids of the file, ascending
    """

    coco: COCO
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]


def read_ground_truth(path: str | Path) -> GroundTruth:
    """Read the boxes of a COCO JSON file.

    A missing area is the box's width times height. Boxes without area, with a non-finite coordinate, or of an image or
    category that the file does not list can never be matched: they are left out and counted in one warning.

    Args:
        path: The annotation file.

    Returns:
        Annotations without polygons, numbered from 1.

    Raises:
        ValueError: The file is missing, is no JSON, or has no ``images``, ``annotations`` or ``categories``.
    """
    content = _read_json(Path(path))
    categories = sorted(content['categories'], key=lambda category: category['id'])
    category_ids = tuple(int(category['id']) for category in categories)
    images = [{'id': int(image['id'])} for image in content['images']]
    known_images, known_categories = {image['id'] for image in images}, set(category_ids)

    annotations: list[dict[str, Any]] = []
    for row in content['annotations']:
        box = row.get('bbox')
        if not _has_area(box) or row.get('image_id') not in known_images:
            continue
        if row.get('category_id') not in known_categories:
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
    coco = COCO({'images': images, 'annotations': annotations, 'categories': categories})
    return GroundTruth(coco, tuple(str(category['name']) for category in categories), category_ids)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _has_area(box: Any) -> bool:
    """Whether it is x, y, width and height with an area."""
    return isinstance(box, list) and len(box) == 4 and all(map(_is_finite, box)) and box[2] > 0 and box[3] > 0


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f'annotation file {path} does not exist; correct ann_file of the metric') from error
    except ValueError as error:
        raise ValueError(f'annotation file {path} is no JSON ({error}); write it again') from error
    missing = [key for key in ('images', 'annotations', 'categories') if key not in content]
    if missing:
        raise ValueError(f'annotation file {path} has no {", ".join(missing)}; evaluation needs COCO instances JSON')
    return content
