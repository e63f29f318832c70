"""What the files say of an image, for evaluation, samplers and statistics.

Shape suffixes: N annotations, K keypoints.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lucid.structures.affine import Float32
from lucid.structures.rotated import corners

Content = dict[str, list[dict[str, Any]]]


class GroundTruth(NamedTuple):
    """All annotations of one image, crowds included, in pixels of its file.

    boxes:        float32 (N, 4), xyxy, clipped to the image
    labels:       int64 (N,)
    iscrowd:      bool (N,), a region in which detections are ignored
    areas:        float32 (N,), square pixels
    ids:          int64 (N,), of the annotations
    difficult:    bool (N,), trained on, and ignored by the metric of rotated boxes; None is none
    num_rings:    int64 (N,), rings of each outline; None where no outlines were asked for
    rboxes:       float32 (N, 5), may reach beyond the image, zeros for a crowd; None where not asked for
    keypoints:    float32 (N, K, 3), zeros for a crowd; None where not asked for
    source_image: of a tile, the image that it was cut from; else the file's own name
    window:       xyxy, pixels of ``source_image``, where the tile lies in it; else all of it
    """

    image_id: int
    file: str
    original_hw: tuple[int, int]
    boxes: Float32
    labels: NDArray[np.int64]
    iscrowd: NDArray[np.bool_]
    areas: Float32
    ids: NDArray[np.int64]
    difficult: NDArray[np.bool_] | None = None
    num_rings: NDArray[np.int64] | None = None
    rboxes: Float32 | None = None
    keypoints: Float32 | None = None
    source_image: str = ''
    window: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


def coco_content(truths: Sequence[GroundTruth], category_ids: Sequence[int], classes: Sequence[str]) -> Content:
    """The boxes of images as the content of COCO instances JSON, without polygons and keypoints.

    Where rotated boxes were loaded, annotations have ``obb`` (eight numbers, four corners in turn; a crowd has none)
    and ``difficult``, images ``source_image`` and ``window`` (xyxy): the keys that tiles have in their files.

    Args:
        truths: Of each image.
        category_ids: By label.
        classes: Names by label.

    Returns:
        ``images``, ``annotations``, numbered from 1, and ``categories``.
    """
    annotations: list[dict[str, Any]] = []
    for truth in truths:
        for row in _annotations(truth, category_ids):
            annotations.append({'id': len(annotations) + 1, **row})
    return {
        'images': [_image(truth) for truth in truths],
        'annotations': annotations,
        'categories': [{'id': number, 'name': name} for number, name in zip(category_ids, classes, strict=True)],
    }


def _image(truth: GroundTruth) -> dict[str, Any]:
    height, width = truth.original_hw
    image = {'id': truth.image_id, 'file_name': truth.file, 'height': height, 'width': width}
    if truth.rboxes is not None:
        image |= {'source_image': truth.source_image, 'window': [*truth.window]}
    return image


def _annotations(truth: GroundTruth, category_ids: Sequence[int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            'image_id': truth.image_id,
            'category_id': category_ids[label],
            'bbox': [x1, y1, x2 - x1, y2 - y1],
            'area': area,
            'iscrowd': int(crowd),
        }
        for (x1, y1, x2, y2), label, area, crowd in zip(
            truth.boxes.tolist(), truth.labels.tolist(), truth.areas.tolist(), truth.iscrowd.tolist(), strict=True
        )
    ]
    if truth.rboxes is not None:
        difficult_N = np.zeros(len(rows), dtype=bool) if truth.difficult is None else truth.difficult
        for row, ring, difficult in zip(rows, corners(truth.rboxes), difficult_N.tolist(), strict=True):
            row |= {'difficult': int(difficult)} | ({} if row['iscrowd'] else {'obb': ring.ravel().tolist()})
    return rows
