"""What annotations hold beside a box: masks, keypoints, and the corners of rotated boxes; None where it is unusable."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from faster_coco_eval import mask as coco_mask

from lucid.structures.polygons import clip_rings
from lucid.structures.rotated import from_corners

Row = Mapping[str, Any]
Shape = dict[str, Any] | None


def mask_shapes(rows: Sequence[Row], images: Sequence[Row]) -> list[Shape]:
    """Masks as ``segmentation``, compressed run lengths; polygons are filled as COCO does, all rings of an object.

    Args:
        rows: Annotations whose ``segmentation`` is a list of rings, or run lengths, compressed or not.
        images: Of each row, with ``height`` and ``width``.

    Returns:
        None for what is no mask of the image's size, and for a mask without a pixel.
    """
    sizes = [(image['height'], image['width']) for image in images]
    return [_mask(row.get('segmentation'), size) for row, size in zip(rows, sizes, strict=True)]


def keypoint_shapes(rows: Sequence[Row], num_keypoints: int) -> list[Shape]:
    """Keypoints as flat triples, and ``num_keypoints``, how many are labelled; an object without any has none.

    Args:
        rows: Annotations.
        num_keypoints: J.

    Returns:
        None for what is no list of J finite triples.
    """
    found: list[Shape] = []
    for row in rows:
        values = row.get('keypoints')
        triples = [0.0] * 3 * num_keypoints if values is None else _numbers(values, 3 * num_keypoints)
        shape = {'keypoints': triples, 'num_keypoints': sum(v > 0 for v in triples[2::3])} if triples else None
        found.append(shape)
    return found


def rotated_shapes(rows: Sequence[Row]) -> list[Shape]:
    """The rotated boxes that fit four corners each, as ``rbox``; difficult objects are ignored like crowds.

    Args:
        rows: Annotations with ``obb``, eight numbers, else a ``segmentation`` of one ring of four points.

    Returns:
        None for what has no four finite corners, or no area.
    """
    corners = [_corners(row) for row in rows]
    known = [position for position, values in enumerate(corners) if values is not None]
    rboxes_N5 = from_corners(np.array([corners[position] for position in known], np.float64).reshape(-1, 4, 2))
    found: list[Shape] = [None] * len(rows)
    for position, rbox in zip(known, rboxes_N5.astype(np.float64).tolist(), strict=True):
        row = rows[position]
        if rbox[2] > 0 and rbox[3] > 0:
            ignored = int(bool(row.get('iscrowd')) or bool(row.get('difficult')))
            found[position] = {'rbox': rbox, 'area': rbox[2] * rbox[3], 'iscrowd': ignored}
    return found


def _mask(segmentation: Any, size: tuple[int, int]) -> Shape:
    height, width = size
    try:
        if isinstance(segmentation, Mapping):
            mask = {'size': [*segmentation['size']], 'counts': segmentation['counts']}
            if mask['size'] != [height, width]:
                return None
            if isinstance(mask['counts'], list):
                if sum(mask['counts']) != height * width or min(mask['counts']) < 0:
                    return None
                mask = coco_mask.frPyObjects(mask, height, width)
            else:
                coco_mask.decode(mask)  # whether it fills the image, which nothing else asks
        else:
            rings = [_numbers(ring, None) for ring in segmentation]
            if not all(ring and len(ring) >= 6 and len(ring) % 2 == 0 for ring in rings):
                return None
            # Far beyond the image a ring is cut: the evaluator walks along every pixel of it.
            points = [np.array(ring, np.float64).reshape(-1, 2) for ring in rings]
            near: Sequence[Any] = clip_rings(points, (-width, -height, 2 * width, 2 * height))  # type: ignore[arg-type]
            if not near:
                return None
            mask = coco_mask.merge(coco_mask.frPyObjects([ring.ravel().tolist() for ring in near], height, width))
        counts = mask['counts']
        mask['counts'] = counts.decode() if isinstance(counts, bytes) else counts
        return {'segmentation': mask} if coco_mask.area(mask) else None
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _corners(row: Row) -> list[float] | None:
    values, segmentation = row.get('obb'), row.get('segmentation')
    if values is None and isinstance(segmentation, list) and len(segmentation) == 1:
        values = segmentation[0]
    return _numbers(values, 8)


def _numbers(values: Any, length: int | None) -> list[float] | None:
    """Finite numbers, of which there must be ``length`` unless it is None."""
    if not isinstance(values, list) or (length is not None and len(values) != length):
        return None
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        return None
    return [float(value) for value in values]
