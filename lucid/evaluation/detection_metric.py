"""What the metrics of boxes, masks, keypoints and rotated boxes share; they differ in what they compare."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mmengine.evaluator import BaseMetric

from lucid.evaluation.evaluations import (
    Comparison,
    Evaluation,
    Images,
    Run,
    check_images,
    chief_key,
    evaluations_of,
    images_by_path,
    is_content,
    reports_of,
    summarise,
    summary_keys,
    write_images,
)
from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.kinds import Kind
from lucid.evaluation.metric_options import check_limits, check_output, checked_paths, stated_truth
from lucid.evaluation.results import on_host
from lucid.structures.detections import of_path
from lucid.structures.evaluation import EvaluationReport


class DetectionMetric(BaseMetric):
    """Average precision of what a subclass compares, ``kinds``, of every path from one forward to detections.

    The first of ``kinds`` is what is kept of a prediction, written to ``outfile`` and reported.

    Attributes: ``run``, what calls a function for each path and kind at the end of an evaluation, as ``map`` does; a
    loop with processes of its own puts theirs there.

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
        ValueError: No annotation file, one that is none, or without what is compared; classes that differ from those of
            the data set; or no path.
    """

    kinds: ClassVar[tuple[Kind, ...]]

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
        check_output(outfile, format_only=format_only)
        check_limits(max_detections, recall_detections)
        self.ann_file = ann_file
        self.paths = checked_paths(paths)
        self.max_detections = max_detections
        self.recall_detections = recall_detections
        self.outfile = outfile
        self.format_only = format_only
        self._ground_truth: GroundTruth | None = None
        self.run: Run = map
        self._evaluations: list[Evaluation] = []

    @BaseMetric.dataset_meta.setter
    def dataset_meta(self, dataset_meta: dict) -> None:
        """Take the data set's classes, and read the ground truth now: a mistake shows before training, not after."""
        self._dataset_meta = dataset_meta
        _ = self.ground_truth

    @property
    def ground_truth(self) -> GroundTruth:
        """The annotations with what is compared, read once for all evaluations."""
        if self._ground_truth is None:
            self._ground_truth = self._read_truth()
        return self._ground_truth

    def _read_truth(self) -> GroundTruth:
        return stated_truth(type(self).__name__, self.ann_file, self.dataset_meta or {}, self.kinds[0])

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep the detections of a batch on the host; rows that are not finite are dropped and counted."""
        for sample in data_samples:
            # One item per image, whatever the number of paths: mmengine cuts the items of all ranks by it.
            self.results.append(tuple(on_host(of_path(sample, path), sample, self.kinds[0]) for path in self.paths))

    @property
    def chief(self) -> str | None:
        """The key that ``save_best='auto'`` follows, without the prefix: the mAP of the first path."""
        return None if self.format_only else chief_key(self.paths[0], self.kinds[0])

    def keys(self) -> list[str]:
        """What ``compute_metrics`` returns, without the prefix; the data set must be known."""
        return [] if self.format_only else summary_keys(self.paths, self._compared(), self.ground_truth)

    def _compared(self) -> Sequence[Kind]:
        """The kinds that have figures."""
        return self.kinds

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Evaluate all images at once; an image that came twice (padding of the sampler) counts once.

        Args:
            results: Of every image, of all ranks, its ``ImageResult`` by each path.

        Returns:
            Figures by key, as the class says; empty with ``format_only``.

        Raises:
            ValueError: A detection of an image or class that the annotation file does not have, a mask of another size
                than its image, or another number of keypoints.
        """
        truth, kind = self.ground_truth, self.kinds[0]
        comparisons: list[Comparison] = []
        for path, images in images_by_path(results, self.paths).items():
            first = path == self.paths[0]
            check_images(images, truth, first=first)
            if first and self.outfile is not None:
                write_images(images, truth, kind, self.outfile, named=is_content(self.ann_file))
            if not self.format_only:
                comparisons += self._comparisons(path, images)
        self._evaluations = evaluations_of(comparisons, run=self.run)
        return summarise(self._evaluations) if self._evaluations else {}

    def _comparisons(self, path: str, images: Images) -> list[Comparison]:
        """Every way in which the detections of one path are compared."""
        limits = self.max_detections, self.recall_detections
        return [Comparison(path, kind, images, self.ground_truth, limits) for kind in self.kinds]

    def reports(
        self, *, num_worst: int = 8, confusion_rule: tuple[float, float] = (0.25, 0.5)
    ) -> list[EvaluationReport]:
        """What the last evaluation tells beyond its figures, of the first of ``kinds`` and of images as predicted.

        What a subclass reports differently, it changes in ``reporter``.

        Args:
            num_worst: Images listed at most.
            confusion_rule: Lowest score of a detection in the confusion matrix, and lowest overlap of a match.

        Returns:
            A report per path, in their order; none before an evaluation, and on other ranks than the first.
        """
        return self.reporter(num_worst=num_worst, confusion_rule=confusion_rule)()

    def reporter(
        self, *, num_worst: int = 8, confusion_rule: tuple[float, float] = (0.25, 0.5)
    ) -> Callable[[], list[EvaluationReport]]:
        """``reports``, put off: of the evaluation that is the last one now, whenever and in what process it is called.

        Args:
            num_worst: As of ``reports``.
            confusion_rule: As of ``reports``.

        Returns:
            A function that can be pickled.
        """
        kind = self.kinds[0]
        return partial(reports_of, self._evaluations, kind, num_worst=num_worst, confusion_rule=confusion_rule)
