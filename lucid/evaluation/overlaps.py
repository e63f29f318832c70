"""How much detections overlap with objects, by what is compared; each function gives (D, N), 0 to 1.

Array axes: D detections, N objects of one image, J keypoints.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from faster_coco_eval import mask as coco_mask
from torchvision.ops import box_iou

from lucid.evaluation.kinds import BOXES, MASKS, RBOXES, Kind
from lucid.evaluation.results import ImageResult
from lucid.structures.detections import RunLengths
from lucid.structures.rotated_overlap import rotated_ious


class Objects(NamedTuple):
    """Objects of one image, in pixels of it.

    boxes:     float64 (N, 4), xyxy
    labels:    int64 (N,)
    areas:     float64 (N,), square pixels; None, as the following, where it is not compared
    masks:     N run-length masks
    rboxes:    float64 (N, 5)
    keypoints: float64 (N, J, 3)
    """

    boxes: np.ndarray
    labels: np.ndarray
    areas: np.ndarray | None = None
    masks: list[RunLengths] | None = None
    rboxes: np.ndarray | None = None
    keypoints: np.ndarray | None = None

    def pick(self, rows: np.ndarray) -> 'Objects':
        """Some objects, by a mask or by their numbers."""
        return Objects(
            boxes=self.boxes[rows],
            labels=self.labels[rows],
            areas=None if self.areas is None else self.areas[rows],
            masks=None if self.masks is None else [self.masks[i] for i in np.arange(len(self.masks))[rows]],
            rboxes=None if self.rboxes is None else self.rboxes[rows],
            keypoints=None if self.keypoints is None else self.keypoints[rows],
        )


Measure = Callable[[ImageResult, Objects], np.ndarray]


class Overlap(NamedTuple):
    """Two measures: ``of_objects`` with an object, and ``of_ignored`` with one that is ignored, such as a crowd."""

    of_objects: Measure
    of_ignored: Measure


def overlap_of(kind: Kind, sigmas: np.ndarray | None = None, *, least: float = 0.0) -> Overlap:
    """What a kind of detections is matched by, the same as in its average precision.

    Args:
        kind: What is compared.
        sigmas: (J,), of keypoints.
        least: Overlaps below it may be given as 0: those of polygons cost much.

    Returns:
        For boxes and masks the IoU, and with a crowd the share of the detection that lies on it.
    """
    if kind.field == BOXES.field:
        return Overlap(box_overlaps, box_shares)
    if kind.field == MASKS.field:
        return Overlap(
            lambda found, objects: _masks(found, objects, 0), lambda found, objects: _masks(found, objects, 1)
        )
    if kind.field == RBOXES.field:
        return Overlap(*(2 * [partial(rotated_overlaps, least=least)]))
    assert sigmas is not None
    return Overlap(*(2 * [lambda found, objects: keypoint_similarity(found, objects, sigmas)]))


def box_overlaps(found: ImageResult, objects: Objects) -> np.ndarray:
    """IoU of upright boxes."""
    boxes_D4 = torch.from_numpy(found.boxes.astype(np.float64))
    return np.asarray(box_iou(boxes_D4, torch.from_numpy(objects.boxes)).numpy())


def box_shares(found: ImageResult, objects: Objects) -> np.ndarray:
    """The share of a detection's box that lies on a region; 0 where it has no area."""
    boxes_D4 = found.boxes[:, None].astype(np.float64)
    low = np.maximum(boxes_D4[..., :2], objects.boxes[None, :, :2])
    high = np.minimum(boxes_D4[..., 2:], objects.boxes[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=-1)
    area = (boxes_D4[..., 2:] - boxes_D4[..., :2]).prod(axis=-1)
    return np.where(area > 0, shared / np.where(area > 0, area, 1), 0)


def rotated_overlaps(found: ImageResult, objects: Objects, *, least: float = 0.0) -> np.ndarray:
    """IoU of rotated boxes."""
    assert found.rboxes is not None
    assert objects.rboxes is not None
    return rotated_ious(found.rboxes, objects.rboxes, least=least)


def keypoint_similarity(found: ImageResult, objects: Objects, sigmas: np.ndarray) -> np.ndarray:
    """Object keypoint similarity: mean over the labelled points of exp(-d² / (2 · area · (2 sigma)²)).

    Of an object without labelled points d is how far a point lies outside of the object's box, enlarged on each side
    by its own width or height.

    Source: COCO, arXiv:1405.0312, and the evaluation that its site describes.
    """
    assert found.keypoints is not None
    assert objects.keypoints is not None
    assert objects.areas is not None
    points_D1J2 = found.keypoints.astype(np.float64)[:, None]
    labelled_NJ = np.asarray(objects.keypoints[..., 2] > 0)
    away_DNJ2 = points_D1J2 - objects.keypoints[None, ..., :2]
    low_N12, high_N12 = objects.boxes[:, None, :2], objects.boxes[:, None, 2:]
    sides_N12 = high_N12 - low_N12
    beyond_DNJ2 = np.maximum(low_N12 - sides_N12 - points_D1J2, 0) + np.maximum(points_D1J2 - (high_N12 + sides_N12), 0)
    none_N = np.asarray(~labelled_NJ.any(axis=1))
    squares_DNJ = np.square(np.where(none_N[None, :, None, None], beyond_DNJ2, away_DNJ2)).sum(axis=-1)
    scale_NJ = 2 * (objects.areas[:, None] + np.spacing(1)) * np.square(2 * sigmas)
    counted_NJ = np.asarray(labelled_NJ | none_N[:, None])
    likeness_DNJ = np.where(counted_NJ, np.exp(-squares_DNJ / scale_NJ), 0)
    return np.asarray(likeness_DNJ.sum(axis=-1) / np.maximum(counted_NJ.sum(axis=1), 1))


def _masks(found: ImageResult, objects: Objects, crowd: int) -> np.ndarray:
    """IoU of masks, or with a crowd the share of the detection on it."""
    first, second = list(found.masks or ()), list(objects.masks or ())
    if not first or not second:
        return np.zeros((len(first), len(second)))
    return np.asarray(coco_mask.iou(first, second, [crowd] * len(second)), np.float64)
