"""COCO average precision of all classes at once, by faster-coco-eval.

Array axes of the evaluator: T IoU thresholds, R recall points, K classes, A area ranges, M detection limits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster

from lucid.evaluation.ground_truth import GroundTruth, is_ignored
from lucid.evaluation.kinds import BOXES, KEYPOINTS, MASKS, RBOXES, Kind
from lucid.evaluation.matching import NONE, take_best
from lucid.structures.rotated_overlap import rotated_ious

IOU_THRESHOLDS_T = np.arange(50, 100, 5) / 100
# Exact hundredths: a linspace exceeds ten of them by one bit, and a recall of exactly 0.35 then misses its point.
RECALL_POINTS_R = np.arange(101) / 100
AREAS = {'all': [0, 1e10], 'small': [0, 32**2], 'medium': [32**2, 96**2], 'large': [96**2, 1e10]}
"""Square pixels. Of all kinds the same, where the evaluator itself knows no small objects with keypoints."""


class AveragePrecision(NamedTuple):
    """Figures per class, NaN where there is no truth, and counts.

    ap_K, ap50_K, ap75_K, ar_K: over all thresholds, at 0.5, at 0.75; recall over all thresholds
    size_3:                     AP of small, medium and large objects, all classes
    precision50_KR:             interpolated precision at the recall points, threshold 0.5
    found_K:                    objects found at 0.5 with the larger limit of detections
    boxes_K, images_K:          objects that count, and images that have one
    mean_iou:                   of masks: mean over all objects of the IoU with what found them; else None
    """

    ap_K: np.ndarray
    ap50_K: np.ndarray
    ap75_K: np.ndarray
    ar_K: np.ndarray
    size_3: np.ndarray
    precision50_KR: np.ndarray
    found_K: np.ndarray
    boxes_K: np.ndarray
    images_K: np.ndarray
    mean_iou: float | None = None

    def summary(self) -> dict[str, float]:
        """Means over classes, by the names that the metric returns."""
        means = {
            name: float(nan_mean(values_K))
            for name, values_K in zip(
                ('mAP', 'mAP50', 'mAP75', 'AR'), (self.ap_K, self.ap50_K, self.ap75_K, self.ar_K), strict=True
            )
        }
        sizes = dict(zip(('mAP_s', 'mAP_m', 'mAP_l'), self.size_3.tolist(), strict=True))
        total = self.boxes_K.sum()
        figures = {**means, **sizes, 'recall50': float(self.found_K.sum() / total) if total else float('nan')}
        return figures if self.mean_iou is None else {**figures, 'IoU': self.mean_iou}


SUMMARY = ('mAP', 'mAP50', 'mAP75', 'AR', 'mAP_s', 'mAP_m', 'mAP_l', 'recall50')
"""The keys of ``AveragePrecision.summary``, in their order; behind them, of masks, ``IoU``."""


def average_precision(
    detections: list[dict],
    image_ids: list[int],
    truth: GroundTruth,
    *,
    limits: tuple[int, int],
    kind: Kind = BOXES,
    sigmas: np.ndarray | None = None,
) -> AveragePrecision:
    """Evaluate the rows that ``result_rows`` made.

    Args:
        detections: Of all images, and of no others.
        image_ids: Images that count, whether they have detections or not.
        truth: The annotations.
        limits: Detections per class and image that AP and AR count, and those that ``found_K`` counts.
        kind: What is compared.
        sigmas: (J,), of keypoints.

    Returns:
        Figures and counts by label.
    """
    boxes_K, images_K = _counts(image_ids, truth, kind)
    evaluation = _evaluated(detections, image_ids, truth, limits, kind, sigmas)
    precision_TRKAM, recall_TKAM = _curves(evaluation, len(truth.classes))
    ap_TRKA = precision_TRKAM[..., 0]
    ap_K, ap50_K, ap75_K = (nan_mean(ap_TRKA[t, :, :, 0], (0, 1)) for t in (slice(None), [0], [5]))
    return AveragePrecision(
        ap_K=ap_K,
        ap50_K=ap50_K,
        ap75_K=ap75_K,
        ar_K=nan_mean(recall_TKAM[:, :, 0, 0], 0),
        size_3=np.array([float(nan_mean(ap_TRKA[..., area])) for area in (1, 2, 3)]),
        precision50_KR=ap_TRKA[0, :, :, 0].T,
        found_K=np.nan_to_num(recall_TKAM[0, :, 0, 1]) * boxes_K,
        boxes_K=boxes_K,
        images_K=images_K,
        mean_iou=_mean_iou(evaluation, int(boxes_K.sum())) if kind.field == MASKS.field else None,
    )


def nan_mean(values: np.ndarray, axis: int | tuple[int, ...] | None = None) -> np.ndarray:
    """Mean over what is not NaN; NaN, without numpy's warning, where nothing is left."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    return np.where(count, np.where(known, values, 0).sum(axis=axis) / np.maximum(count, 1), np.nan)


class _Found(COCO):
    """Detections, all of which the evaluator is to take: what it asks for by image and class it gets as it is."""

    def __init__(self, rows: list[dict], images: dict[int, dict]) -> None:
        super().__init__()
        self.imgs, self._rows = images, rows

    def getAnnIds(self, *_: object, **__: object) -> list[dict]:  # noqa: N802 (the library's name)
        return self._rows

    def loadAnns(self, ids: list[dict]) -> list[dict]:  # noqa: N802 (the library's name)
        return ids


class _RotatedEvaluation(COCOeval_faster):
    """COCO's evaluation of rotated boxes: rows have ``rbox``, and an ignored object is no region but a box too."""

    def computeIoU(self, imgId: int, catId: int) -> np.ndarray | list:  # noqa: N802 (the evaluator's name)
        objects, found = (data.get(imgId, catId) for data in (self.gt_dataset, self.dt_dataset))
        rboxes_N5, rboxes_D5 = (np.array([row['rbox'] for row in rows]) for rows in (objects, found))
        # The rows of an image come best first, as the evaluator sorts them.
        return rotated_ious(rboxes_D5[: self.params.maxDets[-1]], rboxes_N5, least=IOU_THRESHOLDS_T[0])


def _evaluated(
    detections: list[dict],
    image_ids: list[int],
    truth: GroundTruth,
    limits: tuple[int, int],
    kind: Kind,
    sigmas: np.ndarray | None,
) -> COCOeval_faster | None:
    """The evaluator when it is done; None where there is nothing to evaluate."""
    if not image_ids or not truth.classes:
        return None
    # Not loadRes: it adds a polygon to each row, half a gigabyte for COCO's 1.5 million rows. Nor an index of them.
    found = _Found(detections, truth.coco.imgs)
    evaluator = _RotatedEvaluation if kind.field == RBOXES.field else COCOeval_faster
    more: dict[str, Any] = {'kpt_oks_sigmas': sigmas} if kind.field == KEYPOINTS.field else {}
    evaluation = evaluator(truth.coco, found, kind.iou_type, print_function=_silent, **more)
    # Of keypoints it would leave out classes without an annotation, and then the axis of classes is no longer ours.
    evaluation.params.imgIds, evaluation.params.catIds = image_ids, list(truth.category_ids)
    evaluation.params.maxDets = list(limits)
    evaluation.params.iouThrs, evaluation.params.recThrs = IOU_THRESHOLDS_T, RECALL_POINTS_R
    evaluation.params.areaRngLbl, evaluation.params.areaRng = list(AREAS), list(AREAS.values())
    evaluation.evaluate()
    evaluation.accumulate()
    return evaluation


def _curves(evaluation: COCOeval_faster | None, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Precision (T, R, K, A, M) and recall (T, K, A, M), NaN where there is no ground truth."""
    if evaluation is None:
        nothing = np.full((len(IOU_THRESHOLDS_T), len(RECALL_POINTS_R), num_classes, len(AREAS), 2), np.nan)
        return nothing, nothing[:, 0]
    precision, recall = (np.asarray(evaluation.eval[key]) for key in ('precision', 'recall'))
    return np.where(precision < 0, np.nan, precision), np.where(recall < 0, np.nan, recall)


def _mean_iou(evaluation: COCOeval_faster | None, num_objects: int) -> float:
    """Mean over the objects of the overlap with the detection that found them at 0.5; what nothing found counts 0."""
    if evaluation is None or not num_objects:
        return float('nan')
    total = 0.0
    for (image_id, category), overlaps in evaluation.ious.items():
        if len(overlaps):
            objects = evaluation.gt_dataset.get(image_id, category)
            counts_N = np.array([not row['iscrowd'] for row in objects])
            ious_DN = np.asarray(overlaps)[:, counts_N]
            matched_D = take_best(ious_DN, iou_threshold=IOU_THRESHOLDS_T[0])
            total += ious_DN[matched_D != NONE, matched_D[matched_D != NONE]].sum()
    return float(total / num_objects)


def _counts(image_ids: Sequence[int], truth: GroundTruth, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Objects that count, and images that have one, per class."""
    wanted, label = set(image_ids), {category: i for i, category in enumerate(truth.category_ids)}
    pairs = [
        (label[row['category_id']], row['image_id'])
        for row in truth.coco.anns.values()
        if row['image_id'] in wanted and not is_ignored(row, kind)
    ]
    num_classes = len(truth.classes)
    boxes_K = np.bincount([k for k, _ in pairs], minlength=num_classes)
    images_K = np.bincount([k for k, _ in set(pairs)], minlength=num_classes)
    return boxes_K, images_K


def _silent(*_: object) -> None:
    """What the evaluator prints its progress with."""
