"""The metric of keypoints: average precision by object keypoint similarity, and that of boxes beside it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric

from lucid.evaluation.evaluations import (
    Evaluation,
    check_images,
    chief_key,
    evaluate,
    images_by_path,
    is_content,
    reports_of,
    summarise,
    summary_keys,
    write_images,
)
from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.kinds import BOXES, KEYPOINTS
from lucid.evaluation.metric_options import check_limits, check_output, checked_paths, stated_truth
from lucid.evaluation.results import on_host
from lucid.registry import METRICS
from lucid.structures.detections import of_path
from lucid.structures.evaluation import EvaluationReport
from lucid.structures.points import COCO_SIGMAS

KINDS = (KEYPOINTS, BOXES)
BOX_DETECTIONS = 100
"""Per class and image, that the AP and AR of boxes count."""


@METRICS.register_module()
class CocoKeypointMetric(BaseMetric):
    """COCO keypoint AP over OKS 0.50:0.05:0.95 at 101 recall points, class by class.

    Returned keys: those of ``CocoMetric`` for the boxes, and the same behind ``keypoint/`` for the keypoints, such as
    ``keypoint/mAP``, ``nms/keypoint/mAP`` and ``keypoint/AP/<name>``. The object keypoint similarity (OKS) is the mean
    over an object's labelled points of exp(-d² / (2 · area · (2 sigma)²)), with the object's own ``area``. An object of
    which no point is labelled is ignored like a crowd, and so neither asked for nor counted.

    Source: COCO, arXiv:1405.0312; the recall grid is exact hundredths.

    Args:
        ann_file: COCO JSON of the evaluated images, or its content; None takes ``annotation_file`` of the data set's
            meta information.
        sigmas: How far annotators disagree about each keypoint, relative to the object's size: a number per keypoint,
            or one for all; None takes COCO's, of the 17 keypoints of a person.
        paths: See ``CocoMetric``.
        max_detections: Detections per class and image that AP and AR of keypoints count; those of boxes count 100.
        recall_detections: Detections per class and image that ``recall50`` counts.
        outfile: See ``CocoMetric``; a row has ``keypoints`` too, triples of which the third is 1.
        format_only: See ``CocoMetric``.
        collect_device: ``'cpu'`` or ``'gpu'``, how ranks exchange results.
        prefix: What the keys begin with.

    Raises:
        ValueError: As ``CocoMetric``; no annotation has keypoints; or ``sigmas`` do not fit their number.
    """

    def __init__(
        self,
        *,
        ann_file: str | Path | Mapping[str, Any] | None = None,
        sigmas: Sequence[float] | float | None = None,
        paths: Sequence[str] = ('one_to_one',),
        max_detections: int = 20,
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
        self.sigmas = sigmas
        self.paths = checked_paths(paths)
        self.max_detections = max_detections
        self.recall_detections = recall_detections
        self.outfile = outfile
        self.format_only = format_only
        self._ground_truth: GroundTruth | None = None
        self._evaluations: list[Evaluation] = []

    @BaseMetric.dataset_meta.setter
    def dataset_meta(self, dataset_meta: dict) -> None:
        """Take the data set's classes, and read the ground truth now: a mistake shows before training, not after."""
        self._dataset_meta = dataset_meta
        _ = self.sigmas_J

    @property
    def ground_truth(self) -> GroundTruth:
        """The annotations with their keypoints, read once for all evaluations."""
        if self._ground_truth is None:
            self._ground_truth = stated_truth('CocoKeypointMetric', self.ann_file, self.dataset_meta or {}, KEYPOINTS)
        return self._ground_truth

    @property
    def sigmas_J(self) -> np.ndarray:  # noqa: N802 (a shape)
        """The sigma of each keypoint of the ground truth."""
        return checked_sigmas(self.sigmas, self.ground_truth.num_keypoints)

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep the detections of a batch on the host; rows that are not finite are dropped and counted."""
        for sample in data_samples:
            self.results.append(tuple(on_host(of_path(sample, path), sample, KEYPOINTS) for path in self.paths))

    @property
    def chief(self) -> str | None:
        """The key that ``save_best='auto'`` follows, without the prefix: the mAP of the first path."""
        return None if self.format_only else chief_key(self.paths[0], KEYPOINTS)

    def keys(self) -> list[str]:
        """What ``compute_metrics`` returns, without the prefix; the data set must be known."""
        return [] if self.format_only else summary_keys(self.paths, KINDS, self.ground_truth)

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Evaluate all images at once; an image that came twice (padding of the sampler) counts once.

        Args:
            results: Of every image, of all ranks, its ``ImageResult`` by each path.

        Returns:
            Figures by key, as the class says; empty with ``format_only``.

        Raises:
            ValueError: A detection of an image or class that the annotation file does not have, or another number of
                keypoints.
        """
        truth, sigmas = self.ground_truth, self.sigmas_J
        limits = {KEYPOINTS: self.max_detections, BOXES: min(BOX_DETECTIONS, self.recall_detections)}
        self._evaluations = []
        for path, images in images_by_path(results, self.paths).items():
            first = path == self.paths[0]
            check_images(images, truth, first=first)
            if first and self.outfile is not None:
                write_images(images, truth, KEYPOINTS, self.outfile, named=is_content(self.ann_file))
            if not self.format_only:
                self._evaluations += [
                    evaluate(path, kind, images, truth, limits=(most, self.recall_detections), sigmas=sigmas)
                    for kind, most in limits.items()
                ]
        return summarise(self._evaluations) if self._evaluations else {}

    def reports(
        self, *, num_worst: int = 8, confusion_rule: tuple[float, float] = (0.25, 0.5)
    ) -> list[EvaluationReport]:
        """What the last evaluation tells of the keypoints beyond their figures; see ``CocoMetric``.

        Args:
            num_worst: Images listed at most.
            confusion_rule: Lowest score of a detection in the confusion matrix, and lowest OKS of a match.

        Returns:
            A report per path.
        """
        return reports_of(self._evaluations, KEYPOINTS, num_worst=num_worst, confusion_rule=confusion_rule)


def checked_sigmas(sigmas: Sequence[float] | float | None, num_keypoints: int) -> np.ndarray:
    """A sigma for each keypoint.

    Args:
        sigmas: What a config states.
        num_keypoints: J.

    Returns:
        float64 (J,).

    Raises:
        ValueError: None are stated and there are not 17 keypoints, their number differs, or one is not above 0.
    """
    if sigmas is None:
        if num_keypoints != len(COCO_SIGMAS):
            raise ValueError(
                f'the objects have {num_keypoints} keypoints, and only for the {len(COCO_SIGMAS)} of COCO are the '
                f'sigmas known; give CocoKeypointMetric sigmas, {num_keypoints} numbers or one for all'
            )
        return np.array(COCO_SIGMAS)
    stated = [sigmas] * num_keypoints if isinstance(sigmas, int | float) else list(sigmas)
    if len(stated) != num_keypoints or not all(0 < sigma < math.inf for sigma in stated):
        raise ValueError(
            f'sigmas={sigmas!r} of CocoKeypointMetric must be {num_keypoints} numbers above 0, one for each keypoint, '
            'or one for all; correct them'
        )
    return np.array(stated, np.float64)
