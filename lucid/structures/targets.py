"""What travels between data, model and metric: tuples of tensors, which pinning, device moves and capture understand.

Shape suffixes: B images, N boxes of the whole batch, M capacity (padded boxes per image), A anchors,
K detections per image, J keypoints, P anchors that a box may keep, H, W cells of the mask grid, N further numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

MASK_STRIDE = 4
"""Pixels of the network input along a side of a mask's cell."""


class PackedTargets(NamedTuple):
    """Ragged ground truth of a batch as collate makes it: the rows of all images, one after the other.

    boxes_N4: float32, xyxy, pixels of the network input
    labels_N: int64, 0..C-1
    image_N:  int64, the row's image in the batch, 0..B-1
    slot_N:   int64, the row's place inside its image, 0..count-1
    counts:   Python ints, rows per image; stay on the host, because they decide a shape

    Of the other kinds, row i is the same object; None where the task does not ask for them.

    masks_NHW:     bool, cells of ``MASK_STRIDE`` pixels whose centre the object covers
    rboxes_N5:     float32, cx, cy, w, h, theta in the long-edge convention, pixels of the network input
    keypoints_NJ3: float32, x and y in pixels of the network input, visibility 0, 1 or 2
    """

    boxes_N4: Tensor
    labels_N: Tensor
    image_N: Tensor
    slot_N: Tensor
    counts: Sequence[int]
    masks_NHW: Tensor | None = None
    rboxes_N5: Tensor | None = None
    keypoints_NJ3: Tensor | None = None


class Targets(NamedTuple):
    """Ground truth of a batch, padded to a fixed capacity M; units as in ``PackedTargets``.

    boxes_BM4: float32, xyxy, pixels of the network input; zeros where not valid
    labels_BM: int64, 0..C-1; zero where not valid
    valid_BM:  bool, True for a real box

    Of the other kinds, row m is the same object, zeros where not valid; None where the task does not ask for them.

    masks_BMHW:     bool
    rboxes_BM5:     float32
    keypoints_BMJ3: float32
    """

    boxes_BM4: Tensor
    labels_BM: Tensor
    valid_BM: Tensor
    masks_BMHW: Tensor | None = None
    rboxes_BM5: Tensor | None = None
    keypoints_BMJ3: Tensor | None = None


class AnchorGrid(NamedTuple):
    """The anchor points of one input size, level by level, row-major inside a level.

    centers_A2: float32, x and y of each cell's centre, (i + 0.5) * stride, pixels of the network input
    strides_A:  float32, pixels
    """

    centers_A2: Tensor
    strides_A: Tensor


class Assignment(NamedTuple):
    """Which ground truth each anchor learns.

    foreground_BA: bool
    index_BA:      int64, row of ``Targets`` (0..M-1), -1 for background
    labels_BA:     int64, class of that row, -1 for background
    boxes_BA4:     xyxy pixels of that row, zeros for background
    weight_BA:     soft weight q in 0..1, zero for background
    picks_BMP:     int64, the anchors that each box picked, the best first, 0..A-1 whether kept or not; P is fixed
    kept_BMP:      bool, which of them it does keep: no two kept picks of an image are the same anchor
    """

    foreground_BA: Tensor
    index_BA: Tensor
    labels_BA: Tensor
    boxes_BA4: Tensor
    weight_BA: Tensor
    picks_BMP: Tensor
    kept_BMP: Tensor


class Detections(NamedTuple):
    """Decoded detections of a batch, best first, padded to K with zero rows.

    boxes_BK4:  xyxy, pixels of the network input
    scores_BK:  0..1; zero in padding rows
    labels_BK:  int64
    anchors_BK: int64, the anchor a row came from, -1 in padding rows
    """

    boxes_BK4: Tensor
    scores_BK: Tensor
    labels_BK: Tensor
    anchors_BK: Tensor


class Candidates(NamedTuple):
    """What an NMS chooses from: every anchor of a batch, the best first, and what else each of them predicts.

    ranked:      of all A anchors
    numbers_BAN: in the order of the grid, not of ``ranked``; None where there is nothing else
    """

    ranked: Detections
    numbers_BAN: Tensor | None
