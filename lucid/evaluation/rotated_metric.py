"""The metric of rotated boxes: average precision by exact polygon IoU, of tiles and of whole images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric

from lucid.evaluation.evaluations import (
    Evaluation,
    Images,
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
from lucid.evaluation.kinds import RBOXES, WHOLE
from lucid.evaluation.metric_options import check_limits, check_output, checked_paths, stated_truth
from lucid.evaluation.results import ImageResult, on_host
from lucid.evaluation.tile_merging import Tile, merged_results, merged_truth, read_tiles
from lucid.registry import METRICS
from lucid.structures.detections import of_path
from lucid.structures.evaluation import EvaluationReport


@METRICS.register_module()
class RotatedMetric(BaseMetric):
    """Rotated box AP over IoU 0.50:0.05:0.95 at 101 recall points; the IoU is that of polygons, exactly.

    Returned keys: ``mAP``, ``mAP50``, ``mAP75``, ``mAP_s``, ``mAP_m``, ``mAP_l``, ``AR``, ``recall50``, and per class
    ``AP/<name>`` and ``AP50/<name>``, as of ``CocoMetric``; those of the path ``nms`` begin with ``nms/``. AP and AR
    count the best ``max_detections`` of an image, all classes together. Truth is the rectangle that fits the four
    corners of an object. A difficult object is ignored: a detection takes an object that is not difficult if it can;
    what lies on a difficult one, however many, is neither right nor wrong. A class without an object that is not
    difficult is NaN and enters no mean.

    Where images are tiles, figures of the whole images stand beside those of the tiles, behind ``whole/``. A tile gives
    the objects and detections whose centre is in its core, up to midway through where it overlaps with a neighbour;
    there is no limit of detections, and no suppression across tiles. An object that no tile shows to 70 % is difficult
    in all of them.

    These are not the figures of DOTA's own evaluation, which has one threshold and another interpolation.

    Source: DOTA, arXiv:1711.10398, for the tiles; the protocol is COCO's, arXiv:1405.0312.

    Args:
        ann_file: COCO JSON of the evaluated images, or its content, whose annotations have ``obb``, four corners in
            turn, else a ``segmentation`` of one ring of four points, and may be ``difficult``; None takes
            ``annotation_file`` of the data set's meta information.
        paths: See ``CocoMetric``.
        max_detections: Detections per image that count.
        merge_tiles: Whether to evaluate whole images too: all images have ``source_image``, a name, and ``window``, x1,
            y1, x2, y2 of the tile in it. None does so where they have, and an image has several tiles.
        outfile: See ``CocoMetric``; a row has ``obb`` too, four corners in turn.
        format_only: See ``CocoMetric``.
        collect_device: ``'cpu'`` or ``'gpu'``, how ranks exchange results.
        prefix: What the keys begin with.

    Raises:
        ValueError: As ``CocoMetric``; no annotation has four corners; or tiles are to be merged and are none.
    """

    def __init__(
        self,
        *,
        ann_file: str | Path | Mapping[str, Any] | None = None,
        paths: Sequence[str] = ('one_to_one',),
        max_detections: int = 300,
        merge_tiles: bool | None = None,
        outfile: str | Path | None = None,
        format_only: bool = False,
        collect_device: str = 'cpu',
        prefix: str = 'rotated',
    ) -> None:
        super().__init__(collect_device=collect_device, prefix=prefix)
        check_output(outfile, format_only=format_only)
        check_limits(max_detections, max_detections)
        self.ann_file = ann_file
        self.paths = checked_paths(paths)
        self.max_detections = max_detections
        self.merge_tiles = merge_tiles
        self.outfile = outfile
        self.format_only = format_only
        self._ground_truth: GroundTruth | None = None
        self._tiles: dict[int, Tile] = {}
        self._evaluations: list[Evaluation] = []

    @BaseMetric.dataset_meta.setter
    def dataset_meta(self, dataset_meta: dict) -> None:
        """Take the data set's classes, and read the ground truth now: a mistake shows before training, not after."""
        self._dataset_meta = dataset_meta
        _ = self.ground_truth

    @property
    def ground_truth(self) -> GroundTruth:
        """The annotations with their rotated boxes, read once for all evaluations, and the tiles with them."""
        if self._ground_truth is None:
            truth = stated_truth('RotatedMetric', self.ann_file, self.dataset_meta or {}, RBOXES)
            tiles = {} if self.merge_tiles is False else read_tiles(truth)
            if self.merge_tiles and not tiles:
                raise ValueError(
                    'merge_tiles=True of RotatedMetric needs source_image and window of every image of ann_file; '
                    'evaluate tiles that tools/tile_dota.py wrote, or set merge_tiles=False'
                )
            several = len({tile.source for tile in tiles.values()}) < len(tiles)
            self._tiles = tiles if several or self.merge_tiles else {}
            self._ground_truth = truth
        return self._ground_truth

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep the detections of a batch on the host; rows that are not finite are dropped and counted."""
        for sample in data_samples:
            self.results.append(tuple(on_host(of_path(sample, path), sample, RBOXES) for path in self.paths))

    @property
    def chief(self) -> str | None:
        """The key that ``save_best='auto'`` follows, without the prefix: the mAP of the first path."""
        return None if self.format_only else chief_key(self.paths[0], RBOXES)

    def keys(self) -> list[str]:
        """What ``compute_metrics`` returns, without the prefix; the data set must be known."""
        truth = self.ground_truth
        kinds = [RBOXES, WHOLE] if self._tiles else [RBOXES]
        return [] if self.format_only else summary_keys(self.paths, kinds, truth)

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Evaluate all images at once; an image that came twice (padding of the sampler) counts once.

        Args:
            results: Of every image, of all ranks, its ``ImageResult`` by each path.

        Returns:
            Figures by key, as the class says; empty with ``format_only``.

        Raises:
            ValueError: A detection of an image or class that the annotation file does not have.
        """
        truth, most = self.ground_truth, self.max_detections
        self._evaluations = []
        for path, images in images_by_path(results, self.paths).items():
            first = path == self.paths[0]
            check_images(images, truth, first=first)
            if first and self.outfile is not None:
                write_images(images, truth, RBOXES, self.outfile, named=is_content(self.ann_file))
            if self.format_only:
                continue
            best = {image_id: _best(result, most) for image_id, result in images.items()}
            self._evaluations.append(evaluate(path, RBOXES, best, truth, limits=(most, most)))
            if self._tiles:
                self._evaluations.append(self._evaluate_whole(path, images))
        return summarise(self._evaluations) if self._evaluations else {}

    def _evaluate_whole(self, path: str, images: Images) -> Evaluation:
        whole = merged_results(images, self._tiles)
        most = max((len(result.scores) for result in whole.values()), default=0) or 1
        truth = merged_truth(self.ground_truth, self._tiles, images)
        return evaluate(path, WHOLE, whole, truth, limits=(most, most))

    def reports(
        self, *, num_worst: int = 8, confusion_rule: tuple[float, float] = (0.25, 0.5)
    ) -> list[EvaluationReport]:
        """What the last evaluation tells of the images as they were predicted; see ``CocoMetric``.

        Args:
            num_worst: Images listed at most.
            confusion_rule: Lowest score of a detection in the confusion matrix, and lowest rotated IoU of a match.

        Returns:
            A report per path.
        """
        return reports_of(self._evaluations, RBOXES, num_worst=num_worst, confusion_rule=confusion_rule)


def _best(result: ImageResult, number: int) -> ImageResult:
    """The detections of the best scores."""
    if len(result.scores) <= number:
        return result
    return result.pick(np.argsort(-result.scores, kind='stable')[:number])
