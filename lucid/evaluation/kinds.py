"""What of a detection is compared with the truth: one entry for each kind."""

from typing import NamedTuple


class Kind(NamedTuple):
    """One way to compare.

    field:    key of a prediction that holds what is compared
    iou_type: what the evaluator calls it
    prefix:   what the keys of its figures begin with, behind those of the path
    overlap:  what the measure from 0 to 1 is called
    """

    field: str
    iou_type: str
    prefix: str
    overlap: str


BOXES = Kind('boxes', 'bbox', '', 'IoU')
MASKS = Kind('masks', 'segm', 'mask/', 'mask IoU')
KEYPOINTS = Kind('keypoints', 'keypoints', 'keypoint/', 'OKS')
RBOXES = Kind('rboxes', 'bbox', '', 'rotated IoU')
WHOLE = RBOXES._replace(prefix='whole/')
"""Rotated boxes of whole images, merged from those of their tiles."""
