"""What ``detector.network`` returns, per task: tuples of tensors, both branches, unactivated unless it says so.

All begin with the four fields of ``RawOutputs``, so that what reads boxes and classes reads those of every task.

Shape suffixes: B images, A anchors, C classes, K mask coefficients, J keypoints, H, W cells of a map.
"""

from typing import NamedTuple

from torch import Tensor


class RawOutputs(NamedTuple):
    """Of the task ``detect``.

    o2m_logits_BAC, o2o_logits_BAC: class logits
    o2m_boxes_BA4, o2o_boxes_BA4:   left, top, right, bottom distances from the anchor, in stride units, unbounded
    """

    o2m_logits_BAC: Tensor
    o2m_boxes_BA4: Tensor
    o2o_logits_BAC: Tensor
    o2o_boxes_BA4: Tensor


class SegmentOutputs(NamedTuple):
    """Of the task ``segment``: what ``RawOutputs`` has, and masks as sums of prototypes.

    o2m_coefficients_BAK, o2o_coefficients_BAK: -1..1, tanh was applied
    prototypes_BKHW: of both branches, a cell is ``MASK_STRIDE`` pixels
    semantic_BCHW:   class logits at the first stride, for the training loss alone; None in evaluation mode
    """

    o2m_logits_BAC: Tensor
    o2m_boxes_BA4: Tensor
    o2o_logits_BAC: Tensor
    o2o_boxes_BA4: Tensor
    o2m_coefficients_BAK: Tensor
    o2o_coefficients_BAK: Tensor
    prototypes_BKHW: Tensor
    semantic_BCHW: Tensor | None


class OrientedOutputs(NamedTuple):
    """Of the task ``oriented``: what ``RawOutputs`` has, and the angle that turns each box about its centre.

    o2m_angles_BA1, o2o_angles_BA1: radians from +x towards +y, unbounded
    """

    o2m_logits_BAC: Tensor
    o2m_boxes_BA4: Tensor
    o2o_logits_BAC: Tensor
    o2o_boxes_BA4: Tensor
    o2m_angles_BA1: Tensor
    o2o_angles_BA1: Tensor


class KeypointOutputs(NamedTuple):
    """Of the task ``keypoint``: what ``RawOutputs`` has, and the points of each object.

    o2m_points_BAJ2, o2o_points_BAJ2: x and y offsets from the anchor, in stride units, unbounded
    o2m_sigmas_BAJ2, o2o_sigmas_BAJ2: spread along x and y, before the sigmoid
    """

    o2m_logits_BAC: Tensor
    o2m_boxes_BA4: Tensor
    o2o_logits_BAC: Tensor
    o2o_boxes_BA4: Tensor
    o2m_points_BAJ2: Tensor
    o2o_points_BAJ2: Tensor
    o2m_sigmas_BAJ2: Tensor
    o2o_sigmas_BAJ2: Tensor


DenseOutputs = RawOutputs | SegmentOutputs | OrientedOutputs | KeypointOutputs
