"""The annotations of a data set as compact arrays.

The objects that a reader made of them are not kept: reading a Python object writes its reference count, and every
loader worker would come to own a copy of all.

Shape suffixes: I images, N annotations of all images, R rings, P polygon points, K keypoints.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lucid.structures.affine import Float32
from lucid.structures.polygons import Rings
from lucid.structures.rotated import from_corners

Box = tuple[float, float, float, float]


class Categories(NamedTuple):
    """The classes of a data set: label i is ``ids[i]``, named ``names[i]``; keypoint names are those of all classes."""

    ids: tuple[int, ...]
    names: tuple[str, ...]
    keypoints: tuple[str, ...]


class Annotations(NamedTuple):
    """Annotations sorted by image; those of image i are the rows ``offsets_I1[i]`` to ``offsets_I1[i + 1]``.

    ids_N:          int64, as COCO JSON has them; in other layouts the line in the image's label file
    boxes_N4:       float32, xyxy, pixels of the file's image, clipped to it
    labels_N:       int64, 0..C-1
    crowd_N:        bool, an ignored region
    areas_N:        float32, square pixels, as the file says, else of the box
    points_P2, ring_offsets_R1, row_offsets_N1: all polygons; None where they were not asked for
    rboxes_N5:      float32, long-edge convention; zeros for a crowd; None where not asked for
    keypoints_NK3:  float32; None where not asked for
    """

    offsets_I1: NDArray[np.int64]
    ids_N: NDArray[np.int64]
    boxes_N4: Float32
    labels_N: NDArray[np.int64]
    crowd_N: NDArray[np.bool_]
    areas_N: Float32
    points_P2: Float32 | None
    ring_offsets_R1: NDArray[np.int64] | None
    row_offsets_N1: NDArray[np.int64] | None
    rboxes_N5: Float32 | None
    keypoints_NK3: Float32 | None

    def rows(self, image: int) -> NDArray[np.int64]:
        """The rows of an image."""
        return np.arange(self.offsets_I1[image], self.offsets_I1[image + 1])

    def rings(self, row: int) -> Rings:
        """The polygon rings of one row."""
        assert self.points_P2 is not None, 'polygons were asked for'
        assert self.ring_offsets_R1 is not None
        assert self.row_offsets_N1 is not None
        bounds = self.ring_offsets_R1[self.row_offsets_N1[row] : self.row_offsets_N1[row + 1] + 1]
        return [self.points_P2[start:end] for start, end in pairwise(bounds)]


class Row(NamedTuple):
    """One checked annotation, before it is packed; in the precision of its file.

    image:     index of its image
    id:        as COCO JSON numbers it, else -1; in other layouts the line in its file
    label:     0..C-1
    box:       xyxy, pixels, inside the image
    crowd:     an ignored region
    area:      square pixels
    corners:   four corners in turn, pixels, of an object that is a rotated rectangle
    """

    image: int
    id: int
    label: int
    box: Box
    crowd: bool
    area: float
    rings: Sequence[Float32] = ()
    corners: NDArray[np.float64] | None = None
    keypoints: Float32 | None = None


def pack(rows: Sequence[Row], num_images: int, targets: Sequence[str], num_keypoints: int) -> Annotations:
    """Sort checked annotations by image, keeping their order inside one, and pack them.

    Args:
        rows: Annotations of all images.
        num_images: Images of the data set, those without annotations included.
        targets: Which of polygons, rboxes and keypoints to keep.
        num_keypoints: K.

    Returns:
        Arrays that hold no Python objects.
    """
    rows = sorted(rows, key=lambda row: row.image)
    images = np.array([row.image for row in rows], dtype=np.int64)
    rings = [ring for row in rows for ring in row.rings]
    polygons = 'polygons' in targets
    return Annotations(
        offsets_I1=np.searchsorted(images, np.arange(num_images + 1)),
        ids_N=np.array([row.id for row in rows], dtype=np.int64),
        boxes_N4=np.array([row.box for row in rows], dtype=np.float32).reshape(-1, 4),
        labels_N=np.array([row.label for row in rows], dtype=np.int64),
        crowd_N=np.array([row.crowd for row in rows], dtype=bool),
        areas_N=np.array([row.area for row in rows], dtype=np.float32),
        points_P2=np.concatenate([np.zeros((0, 2), np.float32), *rings]) if polygons else None,
        ring_offsets_R1=_offsets([len(ring) for ring in rings]) if polygons else None,
        row_offsets_N1=_offsets([len(row.rings) for row in rows]) if polygons else None,
        rboxes_N5=_stacked([_rbox(row) for row in rows], (5,)) if 'rboxes' in targets else None,
        keypoints_NK3=_stacked([row.keypoints for row in rows], (num_keypoints, 3)) if 'keypoints' in targets else None,
    )


def _rbox(row: Row) -> Float32 | None:
    return None if row.corners is None else from_corners(row.corners[None])[0]


def _offsets(counts: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _stacked(values: Sequence[Any], shape: tuple[int, ...]) -> Float32:
    """Values of one shape, zeros where there is none."""
    stacked = np.zeros((len(values), *shape), dtype=np.float32)
    for row, value in enumerate(values):
        if value is not None:
            stacked[row] = value
    return stacked
