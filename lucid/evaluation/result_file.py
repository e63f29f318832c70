"""Detections as COCO results JSON."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lucid.structures.rotated import exact_corners


class Names(NamedTuple):
    """What ids stand for that no file of the user's says: ``files`` by image id, ``classes`` by category id."""

    files: Mapping[int, str]
    classes: Mapping[int, str]

    def of(self, row: Mapping) -> dict[str, str]:
        """File and class of a row of ``result_rows``."""
        return {'file': self.files[row['image_id']], 'class': self.classes[row['category_id']]}


def write_results(detections: Sequence[dict], path: Path, names: Names | None = None) -> None:
    """Write rows as COCO results JSON, whole or not at all; coordinates to a thousandth of a pixel.

    Beside the box a row has what was compared: ``segmentation``, ``keypoints``, or ``obb``, the four corners of a
    rotated box in turn, as annotation files have it.

    Args:
        detections: What ``result_rows`` returned.
        path: The file.
        names: Written beside the ids, as ``file`` and ``class``; None writes none.
    """
    rows = [
        {
            'image_id': row['image_id'],
            'category_id': row['category_id'],
            'bbox': _rounded(row['bbox']),
            'score': row['score'],
            **_more(row),
            **({} if names is None else names.of(row)),
        }
        for row in detections
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'{path.name}.part')
    part.write_text(json.dumps(rows))
    os.replace(part, path)


def _more(row: Mapping[str, Any]) -> dict[str, Any]:
    if 'segmentation' in row:
        return {'segmentation': row['segmentation']}
    if 'keypoints' in row:
        return {'keypoints': _rounded(row['keypoints'])}
    if 'rbox' in row:
        return {'obb': _rounded(exact_corners(np.array([row['rbox']])).reshape(-1).tolist())}
    return {}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in values]
