"""Ground truth of a COCO JSON file, as the evaluator needs it: boxes, areas, crowd flags, and what is compared."""

import math
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from faster_coco_eval import COCO
from mmengine.logging import print_log

from lucid.evaluation.kinds import BOXES, KEYPOINTS, MASKS, RBOXES, Kind
from lucid.evaluation.truth_shapes import keypoint_shapes, mask_shapes, rotated_shapes
from lucid.structures.coco_json import Category, read_categories, read_coco_json, whole_number
from lucid.structures.points import limbs_of


class GroundTruth(NamedTuple):
    """One annotation file; label i is category ``category_ids[i]``, named ``classes[i]``.

    coco:          the indexed annotations; boxes are x, y, width, height in pixels of the original image
    classes:       names, sorted by category id
    category_ids:  ids of the file, ascending
    num_keypoints: per object; 0 where none are compared
    limbs:         pairs of keypoints that a picture joins
    """

    coco: COCO
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    num_keypoints: int = 0
    limbs: tuple[tuple[int, int], ...] = ()


def read_ground_truth(source: str | Path | Mapping[str, Any], kind: Kind = BOXES) -> GroundTruth:
    """Read the boxes of a COCO JSON file, or of its content, and what is compared beside them.

    A missing area is the box's width times height. Boxes without area, with a non-finite coordinate, or of an image or
    category that the file does not list can never be matched, and neither can an object without the mask, the four
    corners or the right number of keypoints that ``kind`` compares: they are left out and counted in one warning. An
    object of which no keypoint is labelled stays: it is ignored, as COCO does.

    Rows of annotations have what ``kind`` compares: ``segmentation``, a run-length mask; ``keypoints`` and
    ``num_keypoints``; or ``rbox``, where ``iscrowd`` is also that of difficult objects.

    Args:
        source: The annotation file, or what it would hold.
        kind: What is compared.

    Returns:
        Annotations without polygons, numbered from 1.

    Raises:
        ValueError: The file is missing, is no JSON, has no ``images``, ``annotations`` or ``categories``, an image or
            category is malformed, or nothing in it has what ``kind`` compares.
    """
    path = Path('the data set' if isinstance(source, Mapping) else source)
    content = source if isinstance(source, Mapping) else read_coco_json(path)
    categories = read_categories(path, content['categories'])
    images = [_image(path, position, image, kind) for position, image in enumerate(content['images'])]
    by_id, known_categories = {image['id']: image for image in images}, {category.id for category in categories}

    usable = [row for row in content['annotations'] if _is_usable(row, by_id.keys(), known_categories)]
    num_keypoints = _num_keypoints(path, categories, usable) if kind.field == KEYPOINTS.field else 0
    shapes: Sequence[dict[str, Any] | None] = [{}] * len(usable)
    if kind.field == MASKS.field:
        shapes = mask_shapes(usable, [by_id[row['image_id']] for row in usable])
    elif kind.field == KEYPOINTS.field:
        shapes = keypoint_shapes(usable, num_keypoints)
    elif kind.field == RBOXES.field:
        shapes = rotated_shapes(usable)
    annotations: list[dict[str, Any]] = []
    for row, shape in zip(usable, shapes, strict=True):
        if shape is None:
            continue
        box = row['bbox']
        annotations.append(
            {
                # Numbered afresh from 1: the evaluator takes the id 0 for "unmatched", and some files start at 0.
                'id': len(annotations) + 1,
                'image_id': int(row['image_id']),
                'category_id': int(row['category_id']),
                'bbox': [float(value) for value in box],
                'area': float(row['area']) if _is_finite(row.get('area')) else float(box[2] * box[3]),
                'iscrowd': int(bool(row.get('iscrowd'))),
                **shape,
            }
        )
    if usable and not annotations:
        raise ValueError(
            f'{path}: none of {len(usable)} annotations has the {kind.field} that are to be compared; '
            'give an annotation file that has them, or compare boxes with CocoMetric'
        )
    if skipped := len(content['annotations']) - len(annotations):
        print_log(f'{path}: {skipped} annotations cannot be matched by any box and are not evaluated', 'current', 30)
    listed = [{'id': category.id, 'name': category.name} for category in categories]
    coco = COCO({'images': images, 'annotations': annotations, 'categories': listed})
    names, ids = (tuple(getattr(category, key) for category in categories) for key in ('name', 'id'))
    limbs = limbs_of(max((category.keypoints for category in categories), default=())) if num_keypoints else ()
    return GroundTruth(coco, names, ids, num_keypoints, limbs)


def is_ignored(row: Mapping[str, Any], kind: Kind) -> bool:
    """Whether an object is asked for by nobody, so that what finds it is neither right nor wrong."""
    return bool(row['iscrowd']) or (kind.field == KEYPOINTS.field and not row['num_keypoints'])


def _image(path: Path, position: int, image: Any, kind: Kind) -> dict[str, Any]:
    """What the evaluation needs of an image: its id, for masks its size, for rotated boxes where it was cut from."""
    sides = ('height', 'width') if kind.field == MASKS.field else ()
    try:
        found = {key: whole_number(image[key]) for key in ('id', *sides)}
    except (KeyError, TypeError, ValueError) as error:
        what = 'whole numbers id, height and width' if sides else 'a whole-number id'
        raise ValueError(
            f'{path}: image at position {position} needs {what} ({type(error).__name__}: {error}); add it'
        ) from error
    if kind.field == RBOXES.field:
        found |= {key: image[key] for key in ('source_image', 'window') if key in image}
    return found


def _num_keypoints(path: Path, categories: Sequence[Category], rows: Sequence[Mapping[str, Any]]) -> int:
    """Keypoints per object, by the names that the categories have, else by the first annotation that has any."""
    stated = {len(category.keypoints) for category in categories if category.keypoints}
    if not stated:
        lists = (row['keypoints'] for row in rows if isinstance(row.get('keypoints'), list))
        stated = {len(next(lists, ())) // 3}
    if stated == {0}:
        raise ValueError(f'{path}: no category names its keypoints, and no annotation has any; add them')
    if len(stated) > 1:
        raise ValueError(f'{path}: categories name {sorted(stated)} keypoints; give all that have any the same number')
    return stated.pop()


def _is_usable(row: Any, images: Set[int], categories: Set[int]) -> bool:
    """Whether an annotation has a box that can be matched, in an image and of a class that are listed."""
    return (
        isinstance(row, dict)
        and _has_area(row.get('bbox'))
        and _is_in(images, row.get('image_id'))
        and _is_in(categories, row.get('category_id'))
    )


def _is_in(ids: Set[int], value: Any) -> bool:
    return isinstance(value, int | float) and value in ids


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _has_area(box: Any) -> bool:
    """Whether it is x, y, width and height with an area."""
    return isinstance(box, list) and len(box) == 4 and all(map(_is_finite, box)) and box[2] > 0 and box[3] > 0
