"""Which detection is which object: by class as average precision has it, and across classes for the confusion matrix.

Array axes: N objects of the truth, D detections of one image.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from lucid.evaluation.ground_truth import GroundTruth, is_ignored
from lucid.evaluation.kinds import BOXES, KEYPOINTS, MASKS, RBOXES, Kind
from lucid.evaluation.overlaps import Measure, Objects, Overlap, overlap_of
from lucid.evaluation.results import ImageResult

NONE, IGNORED = -1, -2
"""Instead of the number of an object: found none; lies on an ignored one of its class: neither right nor wrong."""

OF_BOXES = overlap_of(BOXES)


class ImageTruth(NamedTuple):
    """What one image holds.

    objects: that are to be found
    ignored: crowds, regions full of objects that nobody counted; difficult objects; and where keypoints are compared,
             objects with none labelled
    """

    objects: Objects
    ignored: Objects


def truths_by_image(image_ids: Iterable[int], truth: GroundTruth, kind: Kind = BOXES) -> dict[int, ImageTruth]:
    """The objects of each image, in the order of the file."""
    rows: dict[int, list[dict]] = defaultdict(list)
    for row in truth.coco.anns.values():
        rows[row['image_id']].append(row)
    found = {}
    for image_id in image_ids:
        ignored = np.array([is_ignored(row, kind) for row in rows[image_id]], bool)
        objects = _objects(rows[image_id], truth, kind)
        found[image_id] = ImageTruth(objects.pick(~ignored), objects.pick(ignored))
    return found


def match_by_class(
    found: ImageResult, truth: ImageTruth, *, iou_threshold: float = 0.5, overlap: Overlap = OF_BOXES
) -> np.ndarray:
    """The object that each detection found, best score first: the free one of its class that it overlaps most.

    Args:
        found: Of the image, in any order.
        truth: Of the image.
        iou_threshold: Lowest overlap of a detection with its object.
        overlap: How they are compared.

    Returns:
        int64 (D,), in the order of ``found``: row of the objects, ``NONE`` or ``IGNORED``.
    """
    ious_DN = _of_one_class(overlap.of_objects, found, truth.objects)
    order = np.argsort(-found.scores, kind='stable')
    matched_D = np.full(len(found.scores), NONE)
    matched_D[order] = take_best(ious_DN[order], iou_threshold=iou_threshold)
    return _with_ignored(matched_D, found, truth, iou_threshold, overlap)


def match_across_classes(
    found: ImageResult, truth: ImageTruth, *, iou_threshold: float = 0.5, overlap: Overlap = OF_BOXES
) -> np.ndarray:
    """The object that each detection lies on, whatever their classes: pairs in the order of falling overlap.

    Of pairs with one overlap those of one class come first, then those of the better score.

    Args:
        found: Of the image, in any order.
        truth: Of the image.
        iou_threshold: Lowest overlap of a pair.
        overlap: How they are compared.

    Returns:
        int64 (D,): row of the objects, ``NONE`` or ``IGNORED``.
    """
    ious_DN = overlap.of_objects(found, truth.objects)
    detections, objects = np.nonzero(ious_DN >= iou_threshold)
    other_class = found.labels[detections] != truth.objects.labels[objects]
    order = np.lexsort((-found.scores[detections], other_class, -ious_DN[detections, objects]))
    matched_D = np.full(len(found.scores), NONE)
    free_N = np.ones(len(truth.objects.labels), bool)
    for d, n in zip(detections[order].tolist(), objects[order].tolist(), strict=True):
        if matched_D[d] == NONE and free_N[n]:
            matched_D[d], free_N[n] = n, False
    return _with_ignored(matched_D, found, truth, iou_threshold, overlap)


def take_best(ious_DN: np.ndarray, *, iou_threshold: float) -> np.ndarray:
    """In the order of the rows, each takes the free column that it overlaps most, if it does by the threshold.

    Args:
        ious_DN: Best detection first.
        iou_threshold: Lowest overlap of a match.

    Returns:
        int64 (D,): the column, or ``NONE``.
    """
    matched_D = np.full(len(ious_DN), NONE)
    free_N = np.ones(ious_DN.shape[1], bool)
    for d in np.flatnonzero(np.any(ious_DN >= iou_threshold, axis=1)):
        ious_N = np.where(free_N, ious_DN[d], 0)
        best = int(ious_N.argmax())
        if ious_N[best] >= iou_threshold:
            matched_D[d], free_N[best] = best, False
    return matched_D


def above(found: ImageResult, score: float) -> ImageResult:
    """The detections of at least a score."""
    return found.pick(found.scores >= score)


def _objects(rows: list[dict], truth: GroundTruth, kind: Kind) -> Objects:
    label = {category: i for i, category in enumerate(truth.category_ids)}
    boxes = np.array([row['bbox'] for row in rows], np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    compared: dict = {}
    if kind.field == MASKS.field:
        compared['masks'] = [row['segmentation'] for row in rows]
    elif kind.field == RBOXES.field:
        compared['rboxes'] = np.array([row['rbox'] for row in rows], np.float64).reshape(-1, 5)
    elif kind.field == KEYPOINTS.field:
        points = np.array([row['keypoints'] for row in rows], np.float64)
        compared['keypoints'] = points.reshape(-1, truth.num_keypoints, 3)
        compared['areas'] = np.array([row['area'] for row in rows], np.float64)
    return Objects(boxes, np.array([label[row['category_id']] for row in rows], np.int64), **compared)


def _of_one_class(measure: Measure, found: ImageResult, objects: Objects) -> np.ndarray:
    """Overlaps (D, N), 0 where the classes differ; masks of different classes are never laid on each other."""
    overlaps_DN = np.zeros((len(found.labels), len(objects.labels)))
    for label in np.intersect1d(found.labels, objects.labels):
        rows, columns = np.flatnonzero(found.labels == label), np.flatnonzero(objects.labels == label)
        overlaps_DN[np.ix_(rows, columns)] = measure(found.pick(rows), objects.pick(columns))
    return overlaps_DN


def _with_ignored(
    matched_D: np.ndarray, found: ImageResult, truth: ImageTruth, threshold: float, overlap: Overlap
) -> np.ndarray:
    """Detections that found nothing and lie on an ignored object of their class are ignored."""
    if len(truth.ignored.labels):
        on_ignored_D = (_of_one_class(overlap.of_ignored, found, truth.ignored) >= threshold).any(axis=1)
        matched_D[(matched_D == NONE) & on_ignored_D] = IGNORED
    return matched_D
