"""COCO average precision of boxes, by faster-coco-eval.

Array axes of the evaluator: T IoU thresholds, R recall points, K classes, A area ranges, M detection limits.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log

from lucid.evaluation.class_table import class_table
from lucid.evaluation.ground_truth import GroundTruth, read_ground_truth
from lucid.evaluation.results import ImageResult, result_rows, write_results
from lucid.registry import METRICS

IOU_THRESHOLDS_T = np.arange(50, 100, 5) / 100
# Exact hundredths: a linspace exceeds ten of them by one bit, and a recall of exactly 0.35 then misses its point.
RECALL_POINTS_R = np.arange(101) / 100


@METRICS.register_module()
class CocoMetric(BaseMetric):
    """COCO box AP over IoU 0.50:0.05:0.95 at 101 recall points.

    Returned keys: ``mAP``, ``mAP50``, ``mAP75``, ``mAP_s``, ``mAP_m``, ``mAP_l``, ``AR``, ``recall50``, and per class
    ``AP/<name>`` and ``AP50/<name>``, in 0..1. What has no ground truth is NaN and enters no mean. AP and AR count the
    best ``max_detections`` of a class and image: COCO's own figure is 100. ``recall50`` is the share of all boxes that
    a detection of their class found at IoU 0.5, among up to ``recall_detections``: all that an end-to-end head gives.
    Crowd boxes are ignored regions. Only images that were predicted are evaluated; a warning says how many were not.

    Source: COCO, arXiv:1405.0312; the recall grid is exact hundredths.

    Args:
        ann_file: COCO JSON of the evaluated images; None takes ``annotation_file`` of the data set's meta information.
        max_detections: Detections per class and image that AP and AR count.
        recall_detections: Detections per class and image that ``recall50`` counts.
        outfile: Where to write the detections as COCO results JSON; None writes none.
        format_only: Write ``outfile`` and compute nothing, for data without published ground truth.
        collect_device: ``'cpu'`` or ``'gpu'``, how ranks exchange results.
        prefix: What the keys begin with.

    Raises:
        ValueError: No annotation file, one that is none, or classes that differ from those of the data set.
    """

    def __init__(
        self,
        *,
        ann_file: str | Path | None = None,
        max_detections: int = 100,
        recall_detections: int = 300,
        outfile: str | Path | None = None,
        format_only: bool = False,
        collect_device: str = 'cpu',
        prefix: str = 'coco',
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        if format_only and outfile is None:
            raise ValueError('format_only=True computes nothing and outfile=None writes nothing; give outfile a path')
        if not 0 < max_detections <= recall_detections:
            raise ValueError(
                f'max_detections={max_detections} must be in 1..recall_detections={recall_detections}; '
                'raise recall_detections'
            )
        self.ann_file = ann_file
        self.max_detections = max_detections
        self.recall_detections = recall_detections
        self.outfile = outfile
        self.format_only = format_only
        self._ground_truth: GroundTruth | None = None

    @BaseMetric.dataset_meta.setter
    def dataset_meta(self, dataset_meta: dict) -> None:
        """Take the data set's classes, and read the ground truth now: a mistake shows before training, not after."""
        self._dataset_meta = dataset_meta
        _ = self.ground_truth

    @property
    def ground_truth(self) -> GroundTruth:
        """The annotations, read once for all evaluations."""
        if self._ground_truth is None:
            meta = self.dataset_meta or {}
            path = self.ann_file or meta.get('annotation_file')
            if path is None:
                raise ValueError("CocoMetric has no ground truth; set ann_file to the validation set's COCO JSON")
            truth = read_ground_truth(path)
            stated = tuple(meta.get('classes', truth.classes))
            if stated != truth.classes:
                raise ValueError(
                    f'{path} has the classes {list(truth.classes)}, the data set {list(stated)}; '
                    'give CocoMetric the annotation file of the data set that it evaluates'
                )
            self._ground_truth = truth
        return self._ground_truth

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep the detections of a batch on the host; rows with a non-finite box or score are dropped and counted."""
        for sample in data_samples:
            boxes, scores, labels = (sample[key].cpu().numpy() for key in ('boxes', 'scores', 'labels'))
            finite = np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
            self.results.append(
                ImageResult(
                    int(sample['image_id']), boxes[finite], scores[finite], labels[finite], int((~finite).sum())
                )
            )

    def keys(self) -> list[str]:
        """What ``compute_metrics`` returns, without the prefix; the data set must be known."""
        if self.format_only:
            return []
        per_class = (f'{kind}/{name}' for kind in ('AP', 'AP50') for name in _names(self.ground_truth))
        return ['mAP', 'mAP50', 'mAP75', 'AR', 'mAP_s', 'mAP_m', 'mAP_l', 'recall50', *per_class]

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Evaluate all images at once; an image that came twice (padding of the sampler) counts once.

        Args:
            results: The ``ImageResult`` of every image, of all ranks.

        Returns:
            Figures by key, as the class says; empty with ``format_only``.

        Raises:
            ValueError: A detection of an image or class that the annotation file does not have.
        """
        truth = self.ground_truth
        # Rebuilt, because mmengine's device move turns a NamedTuple into a plain tuple.
        images = {row[0]: ImageResult(*row) for row in reversed(results)}
        self._check(images, truth)
        detections = result_rows(images, truth)
        if self.outfile is not None:
            write_results(detections, Path(self.outfile))
            print_log(f'{len(detections)} detections of {len(images)} images written to {self.outfile}', 'current')
        if self.format_only:
            return {}
        return self._evaluate(detections, sorted(images), truth)

    def _check(self, images: dict[int, ImageResult], truth: GroundTruth) -> None:
        if unknown := sorted(images.keys() - truth.coco.imgs.keys()):
            raise ValueError(f'detections of image ids {unknown[:5]}, which ann_file does not list; correct ann_file')
        top = max((int(result.labels.max()) for result in images.values() if len(result.labels)), default=0)
        if top >= len(truth.classes) > 0:
            raise ValueError(
                f'a detection has label {top}, ann_file has {len(truth.classes)} classes; correct ann_file'
            )
        if dropped := sum(result.num_dropped for result in images.values()):
            print_log(f'{dropped} detections are not finite and were dropped', 'current', logging.WARNING)
        if len(images) < len(truth.coco.imgs):
            text = f'{len(images)} of the {len(truth.coco.imgs)} images of the annotation file are evaluated'
            print_log(text, 'current', logging.WARNING)

    def _evaluate(self, detections: list[dict], image_ids: list[int], truth: GroundTruth) -> dict[str, float]:
        precision_TRKAM, recall_TKAM = self._curves(detections, image_ids, truth)
        boxes_K, images_K = _counts(image_ids, truth)
        ap_TRKA = precision_TRKAM[..., 0]
        ap_K, ap50_K, ap75_K = (_mean(ap_TRKA[t, :, :, 0], (0, 1)) for t in (slice(None), [0], [5]))
        ar_K = _mean(recall_TKAM[:, :, 0, 0], 0)
        found_K = np.nan_to_num(recall_TKAM[0, :, 0, 1]) * boxes_K
        sizes = [float(_mean(ap_TRKA[..., area])) for area in (1, 2, 3)]
        summary = dict(
            zip(('mAP', 'mAP50', 'mAP75', 'AR'), (float(_mean(v)) for v in (ap_K, ap50_K, ap75_K, ar_K)), strict=True),
            **dict(zip(('mAP_s', 'mAP_m', 'mAP_l'), sizes, strict=True)),
            recall50=float(found_K.sum() / boxes_K.sum()) if boxes_K.sum() else float('nan'),
        )
        columns = {'images': images_K, 'boxes': boxes_K, 'AP': ap_K, 'AP50': ap50_K, 'AP75': ap75_K, 'AR': ar_K}
        print_log(class_table(_names(truth), columns, summary, num_images=len(image_ids)), 'current')
        for key, values_K in (('AP', ap_K), ('AP50', ap50_K)):
            summary.update({f'{key}/{name}': float(value) for name, value in zip(_names(truth), values_K, strict=True)})
        return summary

    def _curves(
        self, detections: list[dict], image_ids: list[int], truth: GroundTruth
    ) -> tuple[np.ndarray, np.ndarray]:
        """Precision (T, R, K, A, M) and recall (T, K, A, M), NaN where there is no ground truth."""
        if not image_ids or not truth.classes:
            nothing = np.full((len(IOU_THRESHOLDS_T), len(RECALL_POINTS_R), len(truth.classes), 4, 2), np.nan)
            return nothing, nothing[:, 0]
        # Not loadRes: it adds a polygon to each row, half a gigabyte for COCO's 1.5 million rows.
        found = COCO({**truth.coco.dataset, 'annotations': detections})
        evaluation = COCOeval_faster(truth.coco, found, 'bbox', print_function=_silent)
        evaluation.params.imgIds = image_ids
        evaluation.params.maxDets = [self.max_detections, self.recall_detections]
        evaluation.params.iouThrs, evaluation.params.recThrs = IOU_THRESHOLDS_T, RECALL_POINTS_R
        evaluation.evaluate()
        evaluation.accumulate()
        precision, recall = (np.asarray(evaluation.eval[key]) for key in ('precision', 'recall'))
        return np.where(precision < 0, np.nan, precision), np.where(recall < 0, np.nan, recall)


def _names(truth: GroundTruth) -> list[str]:
    """Class names, with the category id where two classes share a name: figures are kept by name."""
    shared = {name for name, count in Counter(truth.classes).items() if count > 1}
    pairs = zip(truth.classes, truth.category_ids, strict=True)
    return [f'{name} (id {category})' if name in shared else name for name, category in pairs]


def _mean(values: np.ndarray, axis: int | tuple[int, ...] | None = None) -> np.ndarray:
    """Mean over what is not NaN; NaN, without numpy's warning, where nothing is left."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    return np.where(count, np.where(known, values, 0).sum(axis=axis) / np.maximum(count, 1), np.nan)


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
