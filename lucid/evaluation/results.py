"""Detections of a whole data set, as the evaluator and COCO's result files want them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from faster_coco_eval import mask as coco_mask

from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.kinds import BOXES, KEYPOINTS, MASKS, Kind
from lucid.structures.detections import RunLengths

# The kind apart, predictions hold more than a metric compares.
_HEADS = {'masks': 'SegmentHead', 'rboxes': 'OrientedHead', 'keypoints': 'KeypointHead'}


class ImageResult(NamedTuple):
    """Detections of one image on the host.

    boxes:       float32 (K, 4), xyxy, pixels of the original image
    scores:      float32 (K,)
    labels:      int64 (K,)
    num_dropped: rows that were not finite and are left out of the others
    file:        the image's, for drawing
    masks:       K run-length masks; None, as the following two, where the metric compares none
    rboxes:      float32 (K, 5), long-edge convention
    keypoints:   float32 (K, J, 2)
    """

    image_id: int
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    num_dropped: int
    file: str = ''
    masks: list[RunLengths] | None = None
    rboxes: np.ndarray | None = None
    keypoints: np.ndarray | None = None

    def pick(self, rows: np.ndarray) -> 'ImageResult':
        """Some detections, by a mask or by their numbers."""
        return self._replace(
            boxes=self.boxes[rows],
            scores=self.scores[rows],
            labels=self.labels[rows],
            masks=None if self.masks is None else [self.masks[i] for i in np.arange(len(self.masks))[rows]],
            rboxes=None if self.rboxes is None else self.rboxes[rows],
            keypoints=None if self.keypoints is None else self.keypoints[rows],
        )


def on_host(found: Mapping[str, Any], sample: Mapping[str, Any], kind: Kind = BOXES) -> ImageResult:
    """What a metric keeps of the prediction of one image; rows that are not finite are left out and counted.

    Args:
        found: The part of ``sample`` that came by one path.
        sample: The prediction.
        kind: What is compared.

    Returns:
        Arrays on the host.

    Raises:
        ValueError: The prediction does not hold what is compared, row by row.
    """
    boxes, scores, labels = (found[key].cpu().numpy() for key in ('boxes', 'scores', 'labels'))
    finite = np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
    more: dict[str, Any] = {}
    if kind.field != BOXES.field:
        if (values := found.get(kind.field)) is None or len(values) != len(boxes):
            held = 'none' if values is None else f'{len(values)} for {len(boxes)} boxes'
            raise ValueError(
                f'predictions must hold {kind.field}, one for each box, and have {held} (image '
                f'{sample["image_id"]}); evaluate a model with {_HEADS[kind.field]}, or boxes alone with CocoMetric'
            )
        if kind.field == MASKS.field:
            more['masks'] = [_plain(mask) for mask in values]
        else:
            more[kind.field] = values.cpu().numpy()
            finite &= np.isfinite(more[kind.field]).all(axis=tuple(range(1, more[kind.field].ndim)))
    dropped = int((~finite).sum())
    result = ImageResult(int(sample['image_id']), boxes, scores, labels, dropped, str(sample.get('file', '')), **more)
    return result.pick(finite) if dropped else result


def result_rows(images: Mapping[int, ImageResult], truth: GroundTruth, kind: Kind = BOXES) -> list[dict]:
    """Rows as the evaluator indexes them, best first inside an image; the first four keys are COCO's result format.

    Behind those of boxes comes what ``kind`` compares: ``segmentation``, a run-length mask; ``keypoints``, triples
    whose third is 1; or ``rbox``. ``area`` is that of the mask, of the upright rectangle around the points, or of the
    rotated box, as COCO parts small detections from large.

    Args:
        images: Detections by image id.
        truth: For the ids of the categories.
        kind: What is compared.

    Returns:
        Rows numbered from 1.
    """
    rows: list[dict] = []
    for image_id in sorted(images):
        result = images[image_id]
        result = result.pick(np.argsort(-result.scores, kind='stable'))
        boxes = result.boxes.astype(np.float64)
        boxes[:, 2:] -= boxes[:, :2]
        more, areas = _compared(result, kind, boxes)
        columns = (boxes, areas, result.scores, result.labels)
        rows += [
            {
                'image_id': image_id,
                'category_id': truth.category_ids[label],
                'bbox': box,
                'score': score,
                'id': number,
                'area': area,
                'iscrowd': 0,
                **part,
            }
            for number, (box, area, score, label, part) in enumerate(
                zip(*(column.tolist() for column in columns), more, strict=True), start=len(rows) + 1
            )
        ]
    return rows


def _compared(result: ImageResult, kind: Kind, boxes_K4: np.ndarray) -> tuple[Sequence[dict], np.ndarray]:
    """Per detection what its row has beside a box, and its area; boxes are x, y, width and height."""
    if kind.field == BOXES.field:
        return [{}] * len(boxes_K4), boxes_K4[:, 2] * boxes_K4[:, 3]
    if kind.field == MASKS.field:
        masks = result.masks or []
        areas_K = np.asarray(coco_mask.area(list(masks)), np.float64).reshape(-1)
        return [{'segmentation': mask} for mask in masks], areas_K
    if kind.field == KEYPOINTS.field:
        assert result.keypoints is not None
        points_KJ2 = result.keypoints.astype(np.float64)
        triples_KJ3 = np.concatenate([points_KJ2, np.ones_like(points_KJ2[..., :1])], axis=2)
        sides_K2 = points_KJ2.max(axis=1) - points_KJ2.min(axis=1)
        return [{'keypoints': triples.ravel().tolist()} for triples in triples_KJ3], sides_K2.prod(axis=1)
    assert result.rboxes is not None
    rboxes_K5 = result.rboxes.astype(np.float64)
    return [{'rbox': rbox} for rbox in rboxes_K5.tolist()], rboxes_K5[:, 2] * rboxes_K5[:, 3]


def _plain(mask: Mapping[str, Any]) -> RunLengths:
    """A run-length mask with plain numbers and text, whatever it came with."""
    counts = mask['counts']
    return {
        'size': [int(side) for side in mask['size']],
        'counts': counts.decode() if isinstance(counts, bytes) else str(counts),
    }
