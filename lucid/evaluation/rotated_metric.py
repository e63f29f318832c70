"""The metric of rotated boxes: average precision by exact polygon IoU, of tiles and of whole images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lucid.evaluation.detection_metric import DetectionMetric
from lucid.evaluation.evaluations import Comparison, Images
from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.kinds import RBOXES, WHOLE, Kind
from lucid.evaluation.results import ImageResult
from lucid.evaluation.tile_merging import Tile, merged_results, merged_truth, read_tiles
from lucid.registry import METRICS


@METRICS.register_module()
class RotatedMetric(DetectionMetric):
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
        paths: See ``DetectionMetric``.
        max_detections: Detections per image that count.
        merge_tiles: Whether to evaluate whole images too: all images have ``source_image``, a name, and ``window``, x1,
            y1, x2, y2 of the tile in it. None does so where they have, and an image has several tiles.
        outfile: See ``DetectionMetric``; a row has ``obb`` too, four corners in turn.
        format_only: See ``DetectionMetric``.
        collect_device: ``'cpu'`` or ``'gpu'``, how ranks exchange results.
        prefix: What the keys begin with.

    Raises:
        ValueError: As ``DetectionMetric``; no annotation has four corners; or tiles are to be merged and are none.
    """

    kinds = (RBOXES,)

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
        super().__init__(
            ann_file=ann_file,
            paths=paths,
            max_detections=max_detections,
            recall_detections=max_detections,
            outfile=outfile,
            format_only=format_only,
            collect_device=collect_device,
            prefix=prefix,
        )
        self.merge_tiles = merge_tiles
        self._tiles: dict[int, Tile] = {}

    def _read_truth(self) -> GroundTruth:
        truth = super()._read_truth()
        tiles = {} if self.merge_tiles is False else read_tiles(truth)
        if self.merge_tiles and not tiles:
            raise ValueError(
                'merge_tiles=True of RotatedMetric needs source_image and window of every image of ann_file; '
                'evaluate tiles that tools/tile_dota.py wrote, or set merge_tiles=False'
            )
        several = len({tile.source for tile in tiles.values()}) < len(tiles)
        self._tiles = tiles if several or self.merge_tiles else {}
        return truth

    def _compared(self) -> Sequence[Kind]:
        _ = self.ground_truth  # tells whether images are tiles
        return (RBOXES, WHOLE) if self._tiles else self.kinds

    def _comparisons(self, path: str, images: Images) -> list[Comparison]:
        truth, most = self.ground_truth, self.max_detections
        best = {image_id: _best(result, most) for image_id, result in images.items()}
        found = [Comparison(path, RBOXES, best, truth, (most, most))]
        return [*found, self._whole(path, images)] if self._tiles else found

    def _whole(self, path: str, images: Images) -> Comparison:
        whole = merged_results(images, self._tiles)
        most = max((len(result.scores) for result in whole.values()), default=0) or 1
        truth = merged_truth(self.ground_truth, self._tiles, images)
        return Comparison(path, WHOLE, whole, truth, (most, most))


def _best(result: ImageResult, number: int) -> ImageResult:
    """The detections of the best scores."""
    if len(result.scores) <= number:
        return result
    return result.pick(np.argsort(-result.scores, kind='stable')[:number])
