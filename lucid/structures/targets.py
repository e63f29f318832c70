"""What travels between data, model and metric: tuples of tensors, which pinning, device moves and capture understand.

Shape suffixes: B images, N boxes of the whole batch, M capacity (padded boxes per image), A anchors, C classes,
K detections per image.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class PackedTargets(NamedTuple):
    """Ragged ground truth of a batch as collate makes it: the rows of all images, one after the other.

    boxes_N4: float32, xyxy, pixels of the network input
    labels_N: int64, 0..C-1
    image_N:  int64, the row's image in the batch, 0..B-1
    slot_N:   int64, the row's place inside its image, 0..count-1
    counts:   Python ints, rows per image; stay on the host, because they decide a shape
    """

    boxes_N4: Tensor
    labels_N: Tensor
    image_N: Tensor
    slot_N: Tensor
    counts: Sequence[int]


class Targets(NamedTuple):
    """Ground truth of a batch, padded to a fixed capacity M.

    boxes_BM4: float32, xyxy, pixels of the network input; zeros where not valid
    labels_BM: int64, 0..C-1; zero where not valid
    valid_BM:  bool, True for a real box
    """

    boxes_BM4: Tensor
    labels_BM: Tensor
    valid_BM: Tensor


class AnchorGrid(NamedTuple):
    """The anchor points of one input size, level by level, row-major inside a level.

    centers_A2: float32, x and y of each cell's centre, (i + 0.5) * stride, pixels of the network input
    strides_A:  float32, pixels
    """

    centers_A2: Tensor
    strides_A: Tensor


class RawOutputs(NamedTuple):
    """What ``detector.network`` returns for detection: both branches, unactivated.

    o2m_logits_BAC, o2o_logits_BAC: class logits
    o2m_boxes_BA4, o2o_boxes_BA4:   left, top, right, bottom distances from the anchor, in stride units, unbounded
    """

    o2m_logits_BAC: Tensor
    o2m_boxes_BA4: Tensor
    o2o_logits_BAC: Tensor
    o2o_boxes_BA4: Tensor


class Assignment(NamedTuple):
    """Which ground truth each anchor learns.

    foreground_BA: bool
    index_BA:      int64, row of ``Targets`` (0..M-1), -1 for background
    labels_BA:     int64, class of that row, -1 for background
    boxes_BA4:     xyxy pixels of that row, zeros for background
    weight_BA:     soft weight q in 0..1, zero for background
    """

    foreground_BA: Tensor
    index_BA: Tensor
    labels_BA: Tensor
    boxes_BA4: Tensor
    weight_BA: Tensor


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
