"""The metric of keypoints: average precision by object keypoint similarity, and that of boxes beside it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lucid.evaluation.detection_metric import DetectionMetric
from lucid.evaluation.evaluations import Comparison, Images
from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.kinds import BOXES, KEYPOINTS
from lucid.registry import METRICS
from lucid.structures.points import COCO_SIGMAS

BOX_DETECTIONS = 100
"""Per class and image, that the AP and AR of boxes count."""


@METRICS.register_module()
class CocoKeypointMetric(DetectionMetric):
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
        paths: See ``DetectionMetric``.
        max_detections: Detections per class and image that AP and AR of keypoints count; those of boxes count 100.
        recall_detections: Detections per class and image that ``recall50`` counts.
        outfile: See ``DetectionMetric``; a row has ``keypoints`` too, triples of which the third is 1.
        format_only: See ``DetectionMetric``.
        collect_device: ``'cpu'`` or ``'gpu'``, how ranks exchange results.
        prefix: What the keys begin with.

    Raises:
        ValueError: As ``DetectionMetric``; no annotation has keypoints; or ``sigmas`` do not fit their number.
    """

    kinds = (KEYPOINTS, BOXES)

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
        super().__init__(
            ann_file=ann_file,
            paths=paths,
            max_detections=max_detections,
            recall_detections=recall_detections,
            outfile=outfile,
            format_only=format_only,
            collect_device=collect_device,
            prefix=prefix,
        )
        self.sigmas = sigmas

    def _read_truth(self) -> GroundTruth:
        truth = super()._read_truth()
        checked_sigmas(self.sigmas, truth.num_keypoints)
        return truth

    def _comparisons(self, path: str, images: Images) -> list[Comparison]:
        truth, sigmas_J = self.ground_truth, checked_sigmas(self.sigmas, self.ground_truth.num_keypoints)
        limits = {KEYPOINTS: self.max_detections, BOXES: min(BOX_DETECTIONS, self.recall_detections)}
        return [
            Comparison(path, kind, images, truth, (limits[kind], self.recall_detections), sigmas_J)
            for kind in self.kinds
        ]


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
