"""One image with its targets, on its way through the transforms.

Shape suffixes: H, W pixels, N objects, K keypoints.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lucid.datasets.layers import Image, Window
from lucid.datasets.picture import Picture
from lucid.datasets.samplers import SampleKey
from lucid.structures.affine import (
    IDENTITY,
    Float32,
    Matrix,
    box_areas,
    clip_boxes,
    envelopes,
    keeps_axes,
    warp_boxes,
    warp_points,
)
from lucid.structures.masks import Mask, fill_rings, mask_envelope, mask_rings
from lucid.structures.points import warp_keypoints
from lucid.structures.polygons import Rings, clip_rings, rings_envelope
from lucid.structures.rotated import corners, warp_rboxes

FIRST = SampleKey.of(0)


@dataclass
class Sample:
    """An image and its targets; row i of every kind is the same object, and a kind that was not loaded is None.

    picture:     how the image comes about; ``image`` are its pixels, drawn when they are first asked for
    boxes:       float32 (N, 4), xyxy, pixels of the image
    labels:      int64 (N,)
    polygons:    N lists of float32 (P, 2) rings, pixels
    rboxes:      float32 (N, 5), cx, cy, w, h, theta in the long-edge convention; may reach beyond the image
    keypoints:   float32 (N, K, 3), x, y, visibility; may lie outside the image
    original_hw: height and width of the file's image
    matrix:      float64 (3, 3), pixels of the file's image to pixels of the image; of a mosaic, for its first image
    window:      xyxy part of the image that the next letterbox fits to the network input; None is all of it
    key, rng:    which sample this is, and what its transforms draw from; a mosaic's partners draw nothing
    """

    picture: Picture
    boxes: Float32
    labels: NDArray[np.int64]
    polygons: list[Rings] | None = None
    rboxes: Float32 | None = None
    keypoints: Float32 | None = None
    image_id: int = -1
    file: str = ''
    original_hw: tuple[int, int] = (0, 0)
    matrix: Matrix = field(default_factory=lambda: IDENTITY)
    window: Window | None = None
    key: SampleKey = FIRST
    rng: np.random.Generator | None = None

    @property
    def image(self) -> Image:
        """The pixels, uint8 (H, W, 3), RGB; may be shared with a cache: a transform writes into a new array."""
        return self.picture.pixels

    @image.setter
    def image(self, pixels: Image) -> None:
        self.picture = Picture.of(pixels)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image, known before it is read."""
        return self.picture.size

    def view(self) -> Window:
        """The part of the image that the next letterbox fits."""
        height, width = self.size
        return self.window or (0.0, 0.0, float(width), float(height))

    def _with(self, **changes: Any) -> 'Sample':
        """What ``dataclasses.replace`` makes, without looking at every field: it is called a dozen times a sample."""
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__, **changes)
        return changed

    def moved(self, matrix: Matrix, size: tuple[int, int]) -> 'Sample':
        """The sample after ``matrix`` carried its pixels onto a canvas of ``size``; no row is clipped or dropped.

        Boxes become the envelopes of what is known of their objects: of their own corners, and where a map turns or
        slants, of polygon or rotated box too, because the envelope of a turned envelope is too wide.
        """
        boxes = warp_boxes(matrix, self.boxes)
        rboxes = None if self.rboxes is None else warp_rboxes(matrix, self.rboxes)
        polygons = (
            None
            if self.polygons is None
            else [[warp_points(matrix, ring) for ring in rings] for rings in self.polygons]
        )
        if not keeps_axes(matrix):
            if self.rboxes is not None:
                boxes = _common(boxes, envelopes(warp_points(matrix, corners(self.rboxes))))
            for row, rings in enumerate(polygons or ()):
                if rings:
                    boxes[row] = _common(boxes[row], rings_envelope(rings))
        return self._with(
            picture=self.picture.warped(matrix, size),
            boxes=boxes,
            rboxes=rboxes,
            polygons=polygons,
            keypoints=None if self.keypoints is None else warp_keypoints(matrix, self.keypoints),
            matrix=matrix @ self.matrix,
            window=None,
        )

    def clipped(self, window: Window, *, min_side: float, min_visible: float) -> 'Sample':
        """Cut boxes and polygons to a window, and drop the objects of which too little is left, in every kind.

        Where polygons are known, the box of a cut object is that of the part inside, and one whose box alone reaches
        inside is dropped. Rotated boxes and keypoints of kept objects stay as they are, even outside.

        Args:
            window: xyxy, pixels of the image.
            min_side: Smallest width and height of a kept box, in pixels.
            min_visible: Smallest share of a kept box's area inside the window.

        Returns:
            The sample with the rows that are left.
        """
        boxes = clip_boxes(self.boxes, window)
        keep = box_areas(boxes) >= min_visible * box_areas(self.boxes)
        polygons = None if self.polygons is None else [clip_rings(rings, window) for rings in self.polygons]
        for row, (whole, inside) in enumerate(zip(self.polygons or (), polygons or (), strict=True)):
            if whole and not inside:
                keep[row] = False
            elif whole:
                boxes[row] = _cut(boxes[row], rings_envelope(whole), rings_envelope(inside))
        keep &= (boxes[:, 2:] - boxes[:, :2] >= min_side).all(axis=1)
        return self._with(boxes=boxes, polygons=polygons).selected(keep)

    def covered(self, mask: Mask, *, min_side: float, min_visible: float) -> 'Sample':
        """Cut what lies behind a mask from boxes and polygons, and drop the objects of which too little is seen.

        An object that the mask does not touch stays bit for bit. Of the others, polygons become the outlines of the
        pixels that are still seen, and each side of the box moves in as far as the object's pixels behind it are
        hidden. An object without polygons is taken to fill its box. Visible keypoints behind the mask become hidden
        ones (2 becomes 1); rotated boxes stay.

        Args:
            mask: bool (H, W), the pixels that lie in front of every object.
            min_side: Smallest width and height of a kept box, in pixels, if the mask touches it.
            min_visible: Smallest share of a kept object's pixels that is seen.

        Returns:
            The sample with the rows that are left, on the same image.
        """
        boxes, keep = self.boxes.copy(), np.ones(len(self.boxes), dtype=np.bool_)
        polygons = None if self.polygons is None else list(self.polygons)
        for row in range(len(boxes)):
            rings = self.polygons[row] if self.polygons is not None else []
            part = _seen(rings or [self.boxes[row, [[0, 1], [2, 1], [2, 3], [0, 3]]]], mask)
            if part is None:
                continue
            if part.share < min_visible or part.envelope is None:
                keep[row] = False
                continue
            boxes[row] = _cut(boxes[row], part.whole, part.envelope)
            keep[row] = (boxes[row, 2:] - boxes[row, :2] >= min_side).all()
            if polygons is not None and rings:
                polygons[row] = part.rings
        return self._with(boxes=boxes, polygons=polygons, keypoints=_hide(self.keypoints, mask)).selected(keep)

    def selected(self, keep: NDArray[np.bool_]) -> 'Sample':
        """The rows where ``keep`` is true, of every kind."""
        if keep.all():
            return self._with()
        return self._with(
            boxes=self.boxes[keep],
            labels=self.labels[keep],
            rboxes=None if self.rboxes is None else self.rboxes[keep],
            keypoints=None if self.keypoints is None else self.keypoints[keep],
            polygons=None if self.polygons is None else [self.polygons[row] for row in np.flatnonzero(keep)],
        )

    def joined(self, others: Sequence['Sample'], picture: Picture) -> 'Sample':
        """The sample on ``picture`` with the rows of others after its own; all hold the same kinds."""
        parts = [self, *others]
        return self._with(
            picture=picture,
            boxes=np.concatenate([part.boxes for part in parts]),
            labels=np.concatenate([part.labels for part in parts]),
            rboxes=None if self.rboxes is None else np.concatenate([part.rboxes for part in parts]),
            keypoints=None if self.keypoints is None else np.concatenate([part.keypoints for part in parts]),
            polygons=None if self.polygons is None else [rings for part in parts for rings in part.polygons or ()],
        )


def _cut(box: Float32, whole: Float32, left: Float32) -> Float32:
    """Move the sides of a box (4,) in to what is left of its object, from the envelopes of all of it and of that part.

    A side on which nothing was cut keeps its value: the box may be more exact than the outline.
    """
    x1, y1, x2, y2 = left.tolist()
    return np.where(left == whole, box, clip_boxes(box, (x1, y1, x2, y2)))


class _Part(NamedTuple):
    """What is seen of an object behind a mask: share of its pixels, envelopes of those and of all, outlines."""

    share: float
    envelope: Float32 | None
    whole: Float32
    rings: Rings


def _seen(rings: Rings, mask: Mask) -> _Part | None:
    """What a mask leaves of an object; None where it hides nothing of it."""
    height, width = mask.shape
    left, top, right, bottom = np.clip(rings_envelope(rings), 0, (width, height, width, height)).tolist()
    origin = math.floor(left), math.floor(top)
    hidden = mask[origin[1] : math.ceil(bottom), origin[0] : math.ceil(right)]
    if not hidden.any():
        return None
    whole = fill_rings(rings, hidden.shape, origin=origin)
    if not (whole & hidden).any():
        return None
    seen = whole & ~hidden
    extent, total = mask_envelope(seen), mask_envelope(whole)
    assert total is not None, 'some of its pixels are hidden'
    shift = np.array([*origin, *origin], np.float32)
    return _Part(
        share=float(seen.sum() / whole.sum()),
        envelope=None if extent is None else extent + shift,
        whole=total + shift,
        rings=mask_rings(seen, origin=origin),
    )


def _hide(keypoints_NK3: Float32 | None, mask: Mask) -> Float32 | None:
    """Keypoints of which those behind a mask are no longer visible."""
    if keypoints_NK3 is None:
        return None
    height, width = mask.shape
    x, y = np.floor(keypoints_NK3[..., :2]).astype(np.int64).transpose(2, 0, 1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    behind = inside & mask[np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)]
    result = keypoints_NK3.copy()
    result[..., 2] = np.where(behind, np.minimum(result[..., 2], 1), result[..., 2])
    return result


def _common(boxes: Float32, others: Float32) -> Float32:
    """Intersections of boxes (..., 4) that are known to overlap."""
    low = np.maximum(boxes[..., :2], others[..., :2])
    return np.concatenate([low, np.minimum(boxes[..., 2:], others[..., 2:])], axis=-1)
