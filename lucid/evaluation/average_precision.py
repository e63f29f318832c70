"""COCO average precision of all classes at once, by faster-coco-eval.

Array axes of the evaluator: T IoU thresholds, R recall points, K classes, A area ranges, M detection limits.
"""

from typing import NamedTuple

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster

from lucid.evaluation.ground_truth import GroundTruth

IOU_THRESHOLDS_T = np.arange(50, 100, 5) / 100
# Exact hundredths: a linspace exceeds ten of them by one bit, and a recall of exactly 0.35 then misses its point.
RECALL_POINTS_R = np.arange(101) / 100


class AveragePrecision(NamedTuple):
    """Figures per class, NaN where there is no truth, and counts.

    ap_K, ap50_K, ap75_K, ar_K: over all thresholds, at 0.5, at 0.75; recall over all thresholds
    size_3:                     AP of small, medium and large objects, all classes
    precision50_KR:             interpolated precision at the recall points, IoU 0.5
    found_K:                    boxes found at IoU 0.5 with the larger limit of detections
    boxes_K, images_K:          boxes that count, and images that have one
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
        return {**means, **sizes, 'recall50': float(self.found_K.sum() / total) if total else float('nan')}


SUMMARY = ('mAP', 'mAP50', 'mAP75', 'AR', 'mAP_s', 'mAP_m', 'mAP_l', 'recall50')
"""The keys of ``AveragePrecision.summary``, in their order."""


def average_precision(
    detections: list[dict], image_ids: list[int], truth: GroundTruth, *, limits: tuple[int, int]
) -> AveragePrecision:
    """Evaluate the rows that ``result_rows`` made.

    Args:
        detections: Of all images.
        image_ids: Images that count, whether they have detections or not.
        truth: The annotations.
        limits: Detections per class and image that AP and AR count, and those that ``found_K`` counts.

    Returns:
        Figures and counts by label.
    """
    precision_TRKAM, recall_TKAM = _curves(detections, image_ids, truth, limits)
    boxes_K, images_K = _counts(image_ids, truth)
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
    )


def nan_mean(values: np.ndarray, axis: int | tuple[int, ...] | None = None) -> np.ndarray:
    """Mean over what is not NaN; NaN, without numpy's warning, where nothing is left."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    return np.where(count, np.where(known, values, 0).sum(axis=axis) / np.maximum(count, 1), np.nan)


def _curves(
    detections: list[dict], image_ids: list[int], truth: GroundTruth, limits: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Precision (T, R, K, A, M) and recall (T, K, A, M), NaN where there is no ground truth."""
    if not image_ids or not truth.classes:
        nothing = np.full((len(IOU_THRESHOLDS_T), len(RECALL_POINTS_R), len(truth.classes), 4, 2), np.nan)
        return nothing, nothing[:, 0]
    # Not loadRes: it adds a polygon to each row, half a gigabyte for COCO's 1.5 million rows.
    found = COCO({**truth.coco.dataset, 'annotations': detections})
    evaluation = COCOeval_faster(truth.coco, found, 'bbox', print_function=_silent)
    evaluation.params.imgIds = image_ids
    evaluation.params.maxDets = list(limits)
    evaluation.params.iouThrs, evaluation.params.recThrs = IOU_THRESHOLDS_T, RECALL_POINTS_R
    evaluation.evaluate()
    evaluation.accumulate()
    precision, recall = (np.asarray(evaluation.eval[key]) for key in ('precision', 'recall'))
    return np.where(precision < 0, np.nan, precision), np.where(recall < 0, np.nan, recall)


def _counts(image_ids: list[int], truth: GroundTruth) -> tuple[np.ndarray, np.ndarray]:
    """Boxes that count, and images that have one, per class."""
    wanted, label = set(image_ids), {category: i for i, category in enumerate(truth.category_ids)}
    pairs = [
        (label[row['category_id']], row['image_id'])
        for row in truth.coco.anns.values()
        if row['image_id'] in wanted and not row['iscrowd']
    ]
    num_classes = len(truth.classes)
    boxes_K = np.bincount([k for k, _ in pairs], minlength=num_classes)
    images_K = np.bincount([k for k, _ in set(pairs)], minlength=num_classes)
    return boxes_K, images_K


def _silent(*_: object) -> None:
    """What the evaluator prints its progress with."""
