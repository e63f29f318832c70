"""Detections of a whole data set, as the evaluator and COCO's result files want them."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lucid.evaluation.ground_truth import GroundTruth


class ImageResult(NamedTuple):
    """Detections of one image on the host.

    boxes:       float32 (K, 4), xyxy, pixels of the original image
    scores:      float32 (K,)
    labels:      int64 (K,)
    num_dropped: rows that were not finite and are left out of the others
    file:        the image's, for drawing
    """

    image_id: int
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    num_dropped: int
    file: str = ''


class Names(NamedTuple):
    """What ids stand for that no file of the user's says: ``files`` by image id, ``classes`` by category id."""

    files: Mapping[int, str]
    classes: Mapping[int, str]

    def of(self, row: Mapping) -> dict[str, str]:
        """File and class of a row of ``result_rows``."""
        return {'file': self.files[row['image_id']], 'class': self.classes[row['category_id']]}


def result_rows(images: Mapping[int, ImageResult], truth: GroundTruth) -> list[dict]:
    """Rows as the evaluator indexes them, best first inside an image; the first four keys are COCO's result format."""
    rows: list[dict] = []
    for image_id in sorted(images):
        result = images[image_id]
        order = np.argsort(-result.scores, kind='stable')
        boxes = result.boxes[order].astype(np.float64)
        boxes[:, 2:] -= boxes[:, :2]
        areas = boxes[:, 2] * boxes[:, 3]
        columns = (boxes, areas, result.scores[order], result.labels[order])
        rows += [
            {
                'image_id': image_id,
                'category_id': truth.category_ids[label],
                'bbox': box,
                'score': score,
                'id': number,
                'area': area,
                'iscrowd': 0,
            }
            for number, (box, area, score, label) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True), start=len(rows) + 1
            )
        ]
    return rows


def write_results(detections: Sequence[dict], path: Path, names: Names | None = None) -> None:
    """Write rows as COCO results JSON, whole or not at all; boxes to a thousandth of a pixel.

    Args:
        detections: What ``result_rows`` returned.
        path: The file.
        names: Written beside the ids, as ``file`` and ``class``; None writes none.
    """
    rows = [
        {
            'image_id': row['image_id'],
            'category_id': row['category_id'],
            'bbox': [round(value, 3) for value in row['bbox']],
            'score': row['score'],
            **({} if names is None else names.of(row)),
        }
        for row in detections
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'{path.name}.part')
    part.write_text(json.dumps(rows))
    os.replace(part, path)
