"""The metric of boxes: COCO average precision of every path from one forward to detections."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log

from lucid.evaluation.average_precision import SUMMARY, AveragePrecision, average_precision
from lucid.evaluation.class_table import class_table
from lucid.evaluation.ground_truth import GroundTruth, read_ground_truth
from lucid.evaluation.report import make_report
from lucid.evaluation.results import ImageResult, Names, result_rows, write_results
from lucid.registry import METRICS
from lucid.structures.detections import PATHS, of_path
from lucid.structures.evaluation import EvaluationReport


@METRICS.register_module()
class CocoMetric(BaseMetric):
    """COCO box AP over IoU 0.50:0.05:0.95 at 101 recall points.

    Returned keys: ``mAP``, ``mAP50``, ``mAP75``, ``mAP_s``, ``mAP_m``, ``mAP_l``, ``AR``, ``recall50``, and per class
    ``AP/<name>`` and ``AP50/<name>``, in 0..1; those of the path ``nms`` begin with ``nms/``, and only the first of
    ``paths`` has figures per class (the table shows all). What has no ground truth is NaN and enters no mean. AP and
    AR count the best ``max_detections`` of a class and image: COCO's own figure is 100. ``recall50`` is the share of
    all boxes that a detection of their class found at IoU 0.5, among up to ``recall_detections``: all that an
    end-to-end head gives. Crowd boxes are ignored regions. Only images that were predicted are evaluated; a warning
    says how many were not.

    Source: COCO, arXiv:1405.0312; the recall grid is exact hundredths.

    Args:
        ann_file: COCO JSON of the evaluated images, or its content; None takes ``annotation_file`` of the data set's
            meta information.
        paths: Which ways from the one forward to detections are evaluated, of ``one_to_one`` and ``nms``: the loop asks
            the model for them. The first one is written to ``outfile``.
        max_detections: Detections per class and image that AP and AR count.
        recall_detections: Detections per class and image that ``recall50`` counts.
        outfile: Where to write the detections of the first path as COCO results JSON, with ``file`` and ``class``
            beside the ids where ``ann_file`` is content; None writes none.
        format_only: Write ``outfile`` and compute nothing, for data without published ground truth.
        collect_device: ``'cpu'`` or ``'gpu'``, how ranks exchange results.
        prefix: What the keys begin with.

    Raises:
        ValueError: No annotation file, one that is none, classes that differ from those of the data set, or no path.
    """

    def __init__(
        self,
        *,
        ann_file: str | Path | Mapping[str, Any] | None = None,
        paths: Sequence[str] = ('one_to_one',),
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
        if not paths or len(set(paths)) < len(paths) or not set(paths) <= set(PATHS):
            raise ValueError(f'paths={tuple(paths)!r} must name one or more of {PATHS}, each once; correct it')
        self.ann_file = ann_file
        self.paths = tuple(paths)
        self.max_detections = max_detections
        self.recall_detections = recall_detections
        self.outfile = outfile
        self.format_only = format_only
        self._ground_truth: GroundTruth | None = None
        self._evaluated: dict[str, tuple[dict[int, ImageResult], AveragePrecision]] = {}

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
                source = 'the ground truth' if isinstance(path, Mapping) else path
                raise ValueError(
                    f'{source} has the classes {list(truth.classes)}, the data set {list(stated)}; '
                    'give CocoMetric the annotation file of the data set that it evaluates'
                )
            self._ground_truth = truth
        return self._ground_truth

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep the detections of a batch on the host; rows with a non-finite box or score are dropped and counted."""
        for sample in data_samples:
            # One item per image, whatever the number of paths: mmengine cuts the items of all ranks by it.
            self.results.append(tuple(_on_host(of_path(sample, path), sample) for path in self.paths))

    def keys(self) -> list[str]:
        """What ``compute_metrics`` returns, without the prefix; the data set must be known."""
        if self.format_only:
            return []
        prefix = _prefix(self.paths[0])
        per_class = (f'{prefix}{kind}/{name}' for kind in ('AP', 'AP50') for name in _names(self.ground_truth))
        return [*(f'{_prefix(path)}{key}' for path in self.paths for key in SUMMARY), *per_class]

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Evaluate all images at once; an image that came twice (padding of the sampler) counts once.

        Args:
            results: Of every image, of all ranks, its ``ImageResult`` by each path.

        Returns:
            Figures by key, as the class says; empty with ``format_only``.

        Raises:
            ValueError: A detection of an image or class that the annotation file does not have.
        """
        truth = self.ground_truth
        self._evaluated = {}
        # Rebuilt, because mmengine's device move turns a NamedTuple into a plain tuple.
        images = {
            path: {row[i][0]: ImageResult(*row[i]) for row in reversed(results)} for i, path in enumerate(self.paths)
        }
        for i, (path, found) in enumerate(images.items()):
            self._check(found, truth, first=i == 0)
            detections = result_rows(found, truth)
            if i == 0 and self.outfile is not None:
                write_results(detections, Path(self.outfile), self._names_beside(found))
                print_log(f'{len(detections)} detections of {len(found)} images written to {self.outfile}', 'current')
            if not self.format_only:
                limits = self.max_detections, self.recall_detections
                self._evaluated[path] = found, average_precision(detections, sorted(found), truth, limits=limits)
        return self._summary() if self._evaluated else {}

    def _names_beside(self, images: Mapping[int, ImageResult]) -> Names | None:
        """What the ids stand for, where no COCO JSON of the user's says it."""
        if not isinstance(self.ann_file, Mapping):
            return None
        truth = self.ground_truth
        files = {image_id: result.file for image_id, result in images.items()}
        return Names(files, dict(zip(truth.category_ids, truth.classes, strict=True)))

    def reports(
        self, *, num_worst: int = 8, confusion_rule: tuple[float, float] = (0.25, 0.5)
    ) -> list[EvaluationReport]:
        """What the last evaluation tells beyond its figures.

        Args:
            num_worst: Images listed at most.
            confusion_rule: Lowest score of a detection in the confusion matrix, and lowest IoU of a match.

        Returns:
            A report per path, in their order; none before an evaluation, and on other ranks than the first.
        """
        names = tuple(_names(self.ground_truth)) if self._evaluated else ()
        return [
            make_report(
                images,
                figures,
                self.ground_truth,
                path=path,
                names=names,
                num_worst=num_worst,
                confusion_rule=confusion_rule,
            )
            for path, (images, figures) in self._evaluated.items()
        ]

    def _check(self, images: dict[int, ImageResult], truth: GroundTruth, *, first: bool) -> None:
        if unknown := sorted(images.keys() - truth.coco.imgs.keys()):
            raise ValueError(f'detections of image ids {unknown[:5]}, which ann_file does not list; correct ann_file')
        top = max((int(result.labels.max()) for result in images.values() if len(result.labels)), default=0)
        if top >= len(truth.classes) > 0:
            raise ValueError(
                f'a detection has label {top}, ann_file has {len(truth.classes)} classes; correct ann_file'
            )
        if dropped := sum(result.num_dropped for result in images.values()):
            print_log(f'{dropped} detections are not finite and were dropped', 'current', logging.WARNING)
        if first and len(images) < len(truth.coco.imgs):
            text = f'{len(images)} of the {len(truth.coco.imgs)} images of the annotation file are evaluated'
            print_log(text, 'current', logging.WARNING)

    def _summary(self) -> dict[str, float]:
        """Log the table of all paths side by side, and return its figures by key."""
        names = _names(self.ground_truth)
        images, first = self._evaluated[self.paths[0]]
        columns = {'images': first.images_K, 'boxes': first.boxes_K}
        summary: dict[str, float] = {}
        for path, (_, found) in self._evaluated.items():
            prefix = _prefix(path)
            columns |= {f'{prefix}AP': found.ap_K, f'{prefix}AP50': found.ap50_K}
            columns |= {f'{prefix}AP75': found.ap75_K, f'{prefix}AR': found.ar_K}
            summary |= {f'{prefix}{key}': value for key, value in found.summary().items()}
        print_log(class_table(names, columns, summary, num_images=len(images)), 'current')
        prefix = _prefix(self.paths[0])
        for key, values_K in (('AP', first.ap_K), ('AP50', first.ap50_K)):
            summary |= {f'{prefix}{key}/{name}': float(value) for name, value in zip(names, values_K, strict=True)}
        return summary


def _on_host(found: Mapping[str, Any], sample: Mapping[str, Any]) -> ImageResult:
    boxes, scores, labels = (found[key].cpu().numpy() for key in ('boxes', 'scores', 'labels'))
    finite = np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
    return ImageResult(
        int(sample['image_id']),
        boxes[finite],
        scores[finite],
        labels[finite],
        int((~finite).sum()),
        str(sample.get('file', '')),
    )


def _prefix(path: str) -> str:
    """What the keys of a path begin with; those of the end-to-end one with nothing."""
    return '' if path == PATHS[0] else f'{path}/'


def _names(truth: GroundTruth) -> list[str]:
    """Class names, with the category id where two classes share a name: figures are kept by name."""
    shared = {name for name, count in Counter(truth.classes).items() if count > 1}
    pairs = zip(truth.classes, truth.category_ids, strict=True)
    return [f'{name} (id {category})' if name in shared else name for name, category in pairs]
