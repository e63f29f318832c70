"""The objects of COCO JSON: checking one annotation."""

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from lucid.datasets.annotations import Box, Row
from lucid.datasets.content import LARGEST, THINNEST, AnnotationError, ImageRow, checked_box, checked_corners
from lucid.structures.affine import Float32
from lucid.structures.coco_json import MOST
from lucid.structures.masks import mask_envelope, mask_rings
from lucid.structures.polygons import Rings
from lucid.structures.run_lengths import decode_run_lengths


def checked_object(
    entry: Any,
    index: int,
    images: Sequence[ImageRow],
    label_of: dict[int, int],
    targets: Sequence[str],
    num_keypoints: int,
) -> Row:
    """Check one annotation.

    Args:
        entry: As the file has it.
        index: Of its image, -1 for none of them.
        images: All.
        label_of: Labels by category id.
        targets: Kinds to read: boxes, polygons, masks, rboxes, keypoints.
        num_keypoints: Of every object.

    Returns:
        What is usable of it; a crowd is a box alone.

    Raises:
        AnnotationError: Something is wrong with it.
    """
    if not isinstance(entry, dict):
        raise AnnotationError('malformed_annotation', f'{entry!r} is no object')
    if index < 0:
        raise AnnotationError('unknown_image', f'image_id {entry.get("image_id")!r} is not listed')
    label = lookup(label_of, entry.get('category_id'))
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
        rings=_rings(entry.get('segmentation'), images[index], targets) if wanted else (),
        corners=_corners(entry) if wanted and 'rboxes' in targets else None,
        keypoints=_keypoints(entry.get('keypoints'), num_keypoints) if wanted and 'keypoints' in targets else None,
        difficult=bool(entry.get('difficult')),
    )


def _box(bbox: Any, image: ImageRow) -> Box:
    """Corners of an x, y, width, height box, clipped to the image."""
    x, y, width, height = checked_numbers('malformed_box', 'bbox', bbox, 4)
    # At a large x a small width would vanish in the sum.
    if 0 <= width < THINNEST or 0 <= height < THINNEST:
        raise AnnotationError('empty_box', f'bbox {bbox} has no area')
    return checked_box((x, y, x + width, y + height), (image.height, image.width), text=f'bbox {bbox}')


def _rings(segmentation: Any, image: ImageRow, targets: Sequence[str]) -> Rings:
    """The outlines of an object, if they are asked for; those of a run-length mask run along its pixels."""
    if {'polygons', 'masks'}.isdisjoint(targets):
        return []
    if isinstance(segmentation, dict):
        rings = _outlines(segmentation, image)
    elif isinstance(segmentation, list | None):
        rings = [_ring(ring) for ring in segmentation or ()]
    else:
        raise AnnotationError('malformed_polygon', f'segmentation {segmentation!r:.80} is no list of rings')
    if not rings and 'masks' in targets:
        raise AnnotationError('missing_outline', f'segmentation {segmentation!r:.80} has no outline, which masks need')
    return rings


def _ring(values: Any) -> Float32:
    points = checked_numbers('malformed_polygon', 'segmentation', values, None)
    if len(points) < 6 or len(points) % 2 or not all(map(math.isfinite, points)):
        raise AnnotationError('malformed_polygon', f'a ring of {len(points)} numbers is no polygon of finite points')
    return np.array(points, dtype=np.float32).reshape(-1, 2)


def _outlines(segmentation: dict[str, Any], image: ImageRow) -> Rings:
    """The rings of a run-length mask, which filled give it back."""
    try:
        mask = decode_run_lengths(segmentation, (image.height, image.width))
    except ValueError as error:
        raise AnnotationError('malformed_mask', f'segmentation: {error}') from error
    extent = mask_envelope(mask)
    if extent is None:
        return []
    left, top, right, bottom = extent.astype(int).tolist()
    return mask_rings(mask[top:bottom, left:right], origin=(left, top))


def _corners(entry: dict[str, Any]) -> NDArray[np.float64]:
    """The corners of ``obb``, four in turn, else of a segmentation with one ring of four points."""
    values = entry.get('obb')
    segmentation = entry.get('segmentation')
    if values is None and isinstance(segmentation, list) and len(segmentation) == 1:
        values = segmentation[0]
    points = checked_numbers('malformed_rbox', 'obb (else a segmentation of one ring)', values, 8)
    if not all(map(math.isfinite, points)):
        raise AnnotationError('malformed_rbox', f'corners {points} are not finite')
    return checked_corners(points, text=f'corners {points}')


def _keypoints(values: Any, num_keypoints: int) -> Float32:
    """Triples x, y, visibility; an object without any has none labelled."""
    if values is None:
        return np.zeros((num_keypoints, 3), dtype=np.float32)
    triples = checked_numbers('malformed_keypoints', 'keypoints', values, 3 * num_keypoints)
    keypoints = np.array(triples, dtype=np.float32).reshape(-1, 3)
    if not np.isfinite(keypoints).all() or not np.isin(keypoints[:, 2], (0, 1, 2)).all():
        raise AnnotationError('malformed_keypoints', 'keypoints are not finite, or their visibility is none of 0, 1, 2')
    return keypoints


def stated_box(entry: Any) -> Box | None:
    """Corners of a bad annotation's box, unclipped, if it has four numbers."""
    try:
        x, y, width, height = checked_numbers('malformed_box', 'bbox', entry['bbox'], 4)
    except (AnnotationError, TypeError, KeyError):
        return None
    return x, y, x + width, y + height


def lookup(indices: dict[int, int], key: Any) -> int:
    """The index of a key of the file, -1 where it is unknown or no number."""
    return indices.get(key, -1) if isinstance(key, int | float) else -1  # type: ignore[arg-type]


def checked_numbers(kind: str, name: str, values: Any, length: int | None) -> list[float]:
    """Check a list of numbers and, unless ``length`` is None, how many there are."""
    right = isinstance(values, list) and (length is None or len(values) == length)
    if not right or not all(isinstance(value, int | float) for value in values):
        wanted = 'numbers' if length is None else f'{length} numbers'
        text = repr(values)
        text = f'{text[:76]} ...' if len(text) > 80 else text
        found = f', but of {len(values)}' if isinstance(values, list) and length not in (None, len(values)) else ''
        raise AnnotationError(kind, f'{name} {text} is no list of {wanted}{found}')
    try:
        return [float(value) for value in values]
    except OverflowError as error:
        raise AnnotationError(kind, f'{name} {values!r:.80} has a number that is too large') from error


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a number that can be an area."""
    return isinstance(value, int | float) and abs(value) <= LARGEST**2
