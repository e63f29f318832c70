"""What a person wants to see of an evaluation: the best confidence, the confusion matrix and the worst images."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lucid.evaluation.average_precision import RECALL_POINTS_R, AveragePrecision
from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.kinds import BOXES, Kind
from lucid.evaluation.matching import (
    IGNORED,
    NONE,
    OF_BOXES,
    ImageTruth,
    above,
    match_across_classes,
    match_by_class,
    truths_by_image,
)
from lucid.evaluation.overlaps import Objects, Overlap, overlap_of
from lucid.evaluation.results import ImageResult
from lucid.structures.evaluation import EvaluationReport, ImageErrors

DEFAULT_CONFIDENCE = 0.25
"""Where no detection is right, so that no confidence is better than another."""
MATCHED = 0.5
"""Overlap from which on a detection has found an object of its class."""


def make_report(
    images: Mapping[int, ImageResult],
    figures: AveragePrecision,
    truth: GroundTruth,
    *,
    path: str,
    names: tuple[str, ...],
    num_worst: int = 8,
    confusion_rule: tuple[float, float] = (0.25, 0.5),
    kind: Kind = BOXES,
    sigmas: np.ndarray | None = None,
) -> EvaluationReport:
    """Everything that is drawn of one path.

    Args:
        images: Detections by image id.
        figures: Of the same detections.
        truth: The annotations.
        path: Which path they came by.
        names: Of the classes, by label.
        num_worst: Images listed at most.
        confusion_rule: Lowest score of a detection in the confusion matrix, and lowest overlap of a match.
        kind: What is compared.
        sigmas: (J,), of keypoints.

    Returns:
        Arrays of its own.
    """
    score, iou = confusion_rule
    overlap = overlap_of(kind, sigmas, least=min(iou, MATCHED))
    truths = truths_by_image(images, truth, kind)
    matches = {
        image_id: match_by_class(found, truths[image_id], iou_threshold=MATCHED, overlap=overlap)
        for image_id, found in images.items()
    }
    total = sum(len(one.objects.labels) for one in truths.values())
    confidence, f1 = best_confidence(images, matches, total)
    return EvaluationReport(
        path=path,
        classes=names,
        ap_K=figures.ap_K,
        ap50_K=figures.ap50_K,
        recall_R=RECALL_POINTS_R,
        precision_KR=figures.precision50_KR,
        confidence=confidence,
        f1=f1,
        confusion=confusion_matrix(images, truths, len(names), score=score, iou=iou, overlap=overlap),
        confusion_rule=confusion_rule,
        worst=worst_images(images, truths, matches, confidence=confidence, number=num_worst, limbs=truth.limbs),
        overlap=kind.overlap,
    )


def best_confidence(
    images: Mapping[int, ImageResult], matches: Mapping[int, np.ndarray], num_boxes: int
) -> tuple[float, float]:
    """The score that gives the best F1 if all detections from it on are taken, and that F1; the highest of equals.

    Args:
        images: Detections by image id.
        matches: What ``match_by_class`` returned for each.
        num_boxes: Boxes of the truth.

    Returns:
        ``DEFAULT_CONFIDENCE`` and 0 where no detection is right.
    """
    nothing = np.zeros(0)
    scores = np.concatenate([nothing, *(images[key].scores[matches[key] != IGNORED] for key in images)])
    right = np.concatenate([nothing, *(matches[key][matches[key] != IGNORED] != NONE for key in images)]).astype(bool)
    if not right.any():
        return DEFAULT_CONFIDENCE, 0.0
    order = np.argsort(-scores, kind='stable')
    scores, hits = scores[order], np.cumsum(right[order])
    # 2 TP / (2 TP + FP + FN), where TP + FP are the detections taken and TP + FN the boxes.
    f1 = 2 * hits / (np.arange(1, len(scores) + 1) + num_boxes)
    last_of_equals = np.append(scores[1:] != scores[:-1], True)
    f1 = np.where(last_of_equals, f1, 0)
    best = int(f1.argmax())
    return float(scores[best]), float(f1[best])


def confusion_matrix(
    images: Mapping[int, ImageResult],
    truths: Mapping[int, ImageTruth],
    num_classes: int,
    *,
    score: float = 0.25,
    iou: float = 0.5,
    overlap: Overlap = OF_BOXES,
) -> np.ndarray:
    """Counts of what objects were taken for.

    Args:
        images: Detections by image id.
        truths: Objects by image id.
        num_classes: K.
        score: Lowest score of a detection that counts.
        iou: Lowest overlap of a detection with the object that it was taken for.
        overlap: How they are compared.

    Returns:
        int64 (K + 1, K + 1): row the class of the object, column that of the detection. The last column are objects
        that no detection lies on, the last row detections that lie on no object; detections on an ignored object count
        nowhere.
    """
    counts = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    for image_id, all_found in images.items():
        found, objects = above(all_found, score), truths[image_id].objects
        matched = match_across_classes(found, truths[image_id], iou_threshold=iou, overlap=overlap)
        right = matched >= 0
        missed = np.setdiff1d(np.arange(len(objects.labels)), matched)
        np.add.at(counts, (objects.labels[matched[right]], found.labels[right]), 1)
        np.add.at(counts, (num_classes, found.labels[matched == NONE]), 1)
        np.add.at(counts, (objects.labels[missed], num_classes), 1)
    return counts


def worst_images(
    images: Mapping[int, ImageResult],
    truths: Mapping[int, ImageTruth],
    matches: Mapping[int, np.ndarray],
    *,
    confidence: float,
    number: int,
    limbs: tuple[tuple[int, int], ...] = (),
) -> tuple[ImageErrors, ...]:
    """The images with the most missed boxes and false detections together, of equals the lowest id.

    Args:
        images: Detections by image id.
        truths: Objects by image id.
        matches: What ``match_by_class`` returned for each image.
        confidence: Detections below it do not count.
        number: Images at most; one without an error is none of them.
        limbs: Pairs of keypoints that a picture joins.

    Returns:
        Worst first.
    """
    errors = {}
    for image_id, found in images.items():
        # Better detections never depend on worse ones, so the matches of all hold for those taken.
        matched = matches[image_id][found.scores >= confidence]
        num_false = int((matched == NONE).sum())
        errors[image_id] = len(truths[image_id].objects.labels) - int((matched >= 0).sum()), num_false
    ranked = sorted((key for key in errors if sum(errors[key])), key=lambda key: (-sum(errors[key]), key))
    worst = []
    for image_id in ranked[:number]:
        shown, objects = above(images[image_id], confidence), truths[image_id].objects
        worst.append(
            ImageErrors(
                image_id,
                shown.file,
                *errors[image_id],
                truth_boxes=objects.boxes,
                truth_labels=objects.labels,
                boxes=shown.boxes,
                scores=shown.scores,
                labels=shown.labels,
                truth_shapes=_shapes(objects, limbs),
                shapes=_shapes(shown, limbs),
            )
        )
    return tuple(worst)


def _shapes(rows: ImageResult | Objects, limbs: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """What is drawn of detections or objects beside their boxes."""
    shapes = {'masks': rows.masks, 'rboxes': rows.rboxes, 'keypoints': rows.keypoints, 'limbs': limbs or None}
    return {key: values for key, values in shapes.items() if values is not None}
