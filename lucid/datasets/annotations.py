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
    difficult_N:    bool, an object that is hard to see, and of a cut one that most of it is elsewhere
    points_P2, ring_offsets_R1, row_offsets_N1: all polygons; None where neither they nor masks were asked for
    rboxes_N5:      float32, long-edge convention; zeros for a crowd; None where not asked for
    keypoints_NK3:  float32; None where not asked for
    """

    offsets_I1: NDArray[np.int64]
    ids_N: NDArray[np.int64]
    boxes_N4: Float32
    labels_N: NDArray[np.int64]
    crowd_N: NDArray[np.bool_]
    areas_N: Float32
    difficult_N: NDArray[np.bool_]
    points_P2: Float32 | None
    ring_offsets_R1: NDArray[np.int64] | None
    row_offsets_N1: NDArray[np.int64] | None
    rboxes_N5: Float32 | None
    keypoints_NK3: Float32 | None

    def rows(self, image: int) -> NDArray[np.int64]:
        """The rows of an image."""
        return np.arange(self.offsets_I1[image], self.offsets_I1[image + 1])

    def num_rings(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """How many polygon rings each of some rows has; None where they were not asked for."""
        return None if self.row_offsets_N1 is None else self.row_offsets_N1[rows + 1] - self.row_offsets_N1[rows]

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
    difficult: hard to see; trained on all the same
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
    difficult: bool = False


def pack(rows: Sequence[Row], num_images: int, targets: Sequence[str], num_keypoints: int) -> Annotations:
    """Sort checked annotations by image, keeping their order inside one, and pack them.

    Args:
        rows: Annotations of all images.
        num_images: Images of the data set, those without annotations included.
        targets: Which of polygons, masks, rboxes and keypoints to keep.
        num_keypoints: K.

    Returns:
        Arrays that hold no Python objects.
    """
    rows = sorted(rows, key=lambda row: row.image)
    images = np.array([row.image for row in rows], dtype=np.int64)
    rings = [ring for row in rows for ring in row.rings]
    polygons = not {'polygons', 'masks'}.isdisjoint(targets)
    return Annotations(
        offsets_I1=np.searchsorted(images, np.arange(num_images + 1)),
        ids_N=np.array([row.id for row in rows], dtype=np.int64),
        boxes_N4=np.array([row.box for row in rows], dtype=np.float32).reshape(-1, 4),
        labels_N=np.array([row.label for row in rows], dtype=np.int64),
        crowd_N=np.array([row.crowd for row in rows], dtype=bool),
        areas_N=np.array([row.area for row in rows], dtype=np.float32),
        difficult_N=np.array([row.difficult for row in rows], dtype=bool),
        points_P2=np.concatenate([np.zeros((0, 2), np.float32), *rings]) if polygons else None,
        ring_offsets_R1=_offsets([len(ring) for ring in rings]) if polygons else None,
        row_offsets_N1=_offsets([len(row.rings) for row in rows]) if polygons else None,
        rboxes_N5=_rboxes([row.corners for row in rows]) if 'rboxes' in targets else None,
        keypoints_NK3=_stacked([row.keypoints for row in rows], (num_keypoints, 3)) if 'keypoints' in targets else None,
    )


def _rboxes(corners: Sequence[NDArray[np.float64] | None]) -> Float32:
    """The rectangles that fit the corners of each object, zeros where there are none."""
    known = [row for row, points in enumerate(corners) if points is not None]
    rboxes_N5 = np.zeros((len(corners), 5), dtype=np.float32)
    if known:
        rboxes_N5[known] = from_corners(np.stack([points for points in corners if points is not None]))
    return rboxes_N5


def _offsets(counts: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _stacked(values: Sequence[Any], shape: tuple[int, ...]) -> Float32:
    """Values of one shape, zeros where there is none."""
    stacked = np.zeros((len(values), *shape), dtype=np.float32)
    for row, value in enumerate(values):
        if value is not None:
            stacked[row] = value
    return stacked
