import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faster_coco_eval import mask as coco_mask

from lucid.structures.rotated import from_corners

Prediction = dict[str, Any]


@pytest.fixture
def coco_json(tmp_path: Path) -> Callable[..., Path]:
    """Writes annotations, each a dict that may leave out its id, class and image, of images of 100 rows by 120."""

    def write(
        rows: Sequence[Mapping[str, Any]],
        *,
        num_images: int = 1,
        classes: Sequence[str] = ('bolt',),
        keypoints: Sequence[str] = (),
        image_keys: Sequence[Mapping[str, Any]] = (),
        name: str = 'truth.json',
    ) -> Path:
        images = [
            {'id': i, 'file_name': f'{i}.jpg', 'width': 120, 'height': 100, **(image_keys[i - 1] if image_keys else {})}
            for i in range(1, num_images + 1)
        ]
        categories = [
            {'id': i, 'name': each, **({'keypoints': [*keypoints]} if keypoints else {})}
            for i, each in enumerate(classes, start=1)
        ]
        annotations = [{'id': i, 'image_id': 1, 'category_id': 1, **row} for i, row in enumerate(rows, start=1)]
        path = tmp_path / name
        path.write_text(json.dumps({'images': images, 'annotations': annotations, 'categories': categories}))
        return path

    return write


@pytest.fixture
def predicted() -> Callable[..., Prediction]:
    """Makes a prediction as a model gives it, from plain lists."""

    def make(
        image_id: int,
        boxes: Sequence = (),
        scores: Sequence[float] = (),
        labels: Sequence[int] | None = None,
        **shapes: Any,
    ) -> Prediction:
        found: Prediction = {
            'image_id': image_id,
            'file': f'{image_id}.jpg',
            'boxes': torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            'scores': torch.tensor(scores, dtype=torch.float32),
            'labels': torch.tensor([0] * len(scores) if labels is None else labels, dtype=torch.int64),
        }
        for key, values in shapes.items():
            found[key] = values if key in ('masks', 'path', 'nms') else torch.tensor(values, dtype=torch.float32)
        return found

    return make


@pytest.fixture
def oracle() -> Callable[..., list[Prediction]]:
    """What a perfect model would say of a COCO JSON: its own objects, or with ``turn`` those with other labels."""

    def tell(path: Path, *, turn: int = 0) -> list[Prediction]:
        content = json.loads(path.read_text())
        known = content['annotations'][0].keys()
        label = {category['id']: i for i, category in enumerate(content['categories'])}
        predictions = []
        for image in content['images']:
            rows = [row for row in content['annotations'] if row['image_id'] == image['id'] and not row.get('iscrowd')]
            boxes = np.array([row['bbox'] for row in rows], np.float32).reshape(-1, 4)
            boxes[:, 2:] += boxes[:, :2]
            found: Prediction = {
                'image_id': image['id'],
                'file': image['file_name'],
                'boxes': torch.from_numpy(boxes),
                'scores': torch.linspace(0.9, 0.5, len(rows)),
                'labels': torch.tensor(
                    [(label[row['category_id']] + turn) % len(label) for row in rows], dtype=torch.int64
                ),
            }
            if 'segmentation' in known:
                found['masks'] = [_mask(row['segmentation'], image) for row in rows]
            if 'keypoints' in known:
                number = len(content['annotations'][0]['keypoints']) // 3
                points = np.array([row['keypoints'] for row in rows], np.float32).reshape(-1, number, 3)
                # Of what is not labelled a perfect model says something inside the object.
                middle = (boxes[:, None, :2] + boxes[:, None, 2:]) / 2
                found['keypoints'] = torch.from_numpy(np.where(points[..., 2:] > 0, points[..., :2], middle))
            if 'obb' in known:
                rings = np.array([row['obb'] for row in rows], np.float64).reshape(-1, 4, 2)
                found['rboxes'] = torch.from_numpy(from_corners(rings))
            predictions.append(found)
        return predictions

    def _mask(rings: list, image: Mapping[str, Any]) -> dict[str, Any]:
        parts = coco_mask.frPyObjects(rings, image['height'], image['width'])
        merged = coco_mask.merge(parts)
        return {'size': merged['size'], 'counts': merged['counts'].decode()}

    return tell


Overlap = Callable[[int, int, int], float]


@pytest.fixture
def reference_ap() -> Callable[..., float]:
    """AP of one class from the definition: greedy by score, the best free object, envelope at 101 recalls."""

    def compute(
        scores: Mapping[int, Sequence[float]], numbers: Mapping[int, int], overlap: Overlap, threshold: float
    ) -> float:
        """``scores`` of the detections and ``numbers`` of the objects by image; overlap(image, detection, object)."""
        found = [(score, image, d) for image, row in scores.items() for d, score in enumerate(row)]
        used: set[tuple[int, int]] = set()
        hits = []
        for _, image, d in sorted(found, key=lambda row: -row[0]):
            free = [(overlap(image, d, n), n) for n in range(numbers[image]) if (image, n) not in used]
            best = max(free, default=(0.0, 0))
            hits.append(best[0] >= threshold)
            if hits[-1]:
                used.add((image, best[1]))
        true = np.cumsum(hits)
        recall, precision = true / sum(numbers.values()), true / np.arange(1, len(hits) + 1)
        return sum(precision[recall >= i / 100].max(initial=0) for i in range(101)) / 101

    return compute
