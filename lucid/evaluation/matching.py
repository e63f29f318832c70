"""Which detection is which object: by class as average precision has it, and across classes for the confusion matrix.

Array axes: N boxes of the truth, D detections of one image.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torchvision.ops import box_iou

from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.results import ImageResult

NONE, IGNORED = -1, -2
"""Instead of the number of a box: found none; lies on a crowd of its class, so that it is neither right nor wrong."""


class ImageTruth(NamedTuple):
    """Objects of one image; boxes are xyxy, pixels of the original image.

    boxes, labels:             float64 (N, 4), int64 (N,)
    crowd_boxes, crowd_labels: regions full of objects that nobody counted
    """

    boxes: np.ndarray
    labels: np.ndarray
    crowd_boxes: np.ndarray
    crowd_labels: np.ndarray


def truths_by_image(image_ids: Iterable[int], truth: GroundTruth) -> dict[int, ImageTruth]:
    """The objects of each image, in the order of the file."""
    label = {category: i for i, category in enumerate(truth.category_ids)}
    rows: dict[int, list[dict]] = defaultdict(list)
    for row in truth.coco.anns.values():
        rows[row['image_id']].append(row)
    found = {}
    for image_id in image_ids:
        boxes = np.array([row['bbox'] for row in rows[image_id]], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = np.array([label[row['category_id']] for row in rows[image_id]], np.int64)
        crowd = np.array([bool(row['iscrowd']) for row in rows[image_id]], bool)
        found[image_id] = ImageTruth(boxes[~crowd], labels[~crowd], boxes[crowd], labels[crowd])
    return found


def match_by_class(found: ImageResult, truth: ImageTruth, *, iou_threshold: float = 0.5) -> np.ndarray:
    """The box that each detection found, best score first: the free one of its class that it overlaps most.

    Args:
        found: Of the image, in any order.
        truth: Of the image.
        iou_threshold: Lowest IoU of a detection with its box.

    Returns:
        int64 (D,), in the order of ``found``: row of ``truth``, ``NONE`` or ``IGNORED``.
    """
    ious_DN = _ious(found.boxes, truth.boxes)
    ious_DN[found.labels[:, None] != truth.labels[None]] = 0
    matched_D = np.full(len(found.scores), NONE)
    free_N = np.ones(len(truth.boxes), bool)
    order = np.argsort(-found.scores, kind='stable')
    near_D = np.any(ious_DN >= iou_threshold, axis=1)
    for d in order[near_D[order]]:
        ious_N = np.where(free_N, ious_DN[d], 0)
        best = int(ious_N.argmax())
        if ious_N[best] >= iou_threshold:
            matched_D[d], free_N[best] = best, False
    matched_D[(matched_D == NONE) & _on_crowd(found, truth, iou_threshold)] = IGNORED
    return matched_D


def match_across_classes(found: ImageResult, truth: ImageTruth, *, iou_threshold: float = 0.5) -> np.ndarray:
    """The box that each detection lies on, whatever their classes: pairs in the order of falling IoU.

    Of pairs with one IoU those of one class come first, then those of the better score.

    Args:
        found: Of the image, in any order.
        truth: Of the image.
        iou_threshold: Lowest IoU of a pair.

    Returns:
        int64 (D,): row of ``truth``, ``NONE`` or ``IGNORED``.
    """
    ious_DN = _ious(found.boxes, truth.boxes)
    detections, boxes = np.nonzero(ious_DN >= iou_threshold)
    other_class = found.labels[detections] != truth.labels[boxes]
    order = np.lexsort((-found.scores[detections], other_class, -ious_DN[detections, boxes]))
    matched_D = np.full(len(found.scores), NONE)
    free_N = np.ones(len(truth.boxes), bool)
    for d, n in zip(detections[order].tolist(), boxes[order].tolist(), strict=True):
        if matched_D[d] == NONE and free_N[n]:
            matched_D[d], free_N[n] = n, False
    matched_D[(matched_D == NONE) & _on_crowd(found, truth, iou_threshold)] = IGNORED
    return matched_D


def above(found: ImageResult, score: float) -> ImageResult:
    """The detections of at least a score."""
    kept = found.scores >= score
    return found._replace(boxes=found.boxes[kept], scores=found.scores[kept], labels=found.labels[kept])


def _ious(boxes_D4: np.ndarray, truth_N4: np.ndarray) -> np.ndarray:
    return box_iou(torch.from_numpy(boxes_D4.astype(np.float64)), torch.from_numpy(truth_N4)).numpy()


def _on_crowd(found: ImageResult, truth: ImageTruth, share: float) -> np.ndarray:
    """Whether at least a share of a detection's area lies on a crowd of its class."""
    boxes_D4 = found.boxes[:, None].astype(np.float64)
    low = np.maximum(boxes_D4[..., :2], truth.crowd_boxes[None, :, :2])
    high = np.minimum(boxes_D4[..., 2:], truth.crowd_boxes[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=-1)
    area = (boxes_D4[..., 2:] - boxes_D4[..., :2]).prod(axis=-1)
    same = found.labels[:, None] == truth.crowd_labels[None]
    return (same & (shared >= share * area) & (area > 0)).any(axis=1)
