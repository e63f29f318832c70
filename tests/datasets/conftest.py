"""Small data sets on disk, and painted samples whose targets can be checked against their pixels."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from lucid.datasets.picture import Picture
from lucid.datasets.sample import Sample
from lucid.structures.affine import envelopes
from lucid.structures.rotated import canonical, corners

CATEGORIES = ({'id': 7, 'name': 'cat'}, {'id': 3, 'name': 'ant'}, {'id': 20, 'name': 'dog'})


@pytest.fixture
def coco(tmp_path: Path) -> Callable[..., Path]:
    """Writes a data set: annotations in annotations/train.json, images of (name, height, width) in train/."""

    def write(
        annotations: Sequence[dict[str, Any]] = (),
        images: Sequence[tuple[str, int, int]] = (('a.jpg', 40, 60), ('b.png', 50, 30)),
        categories: Sequence[dict[str, Any]] = CATEGORIES,
        split: str = 'train',
        file: str = 'annotations/{split}.json',
        folder: str = '{split}',
    ) -> Path:
        rng = np.random.default_rng(0)
        for name, height, width in images:
            path = tmp_path / folder.format(split=split) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            smooth = cv2.resize(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8), (width, height))
            cv2.imwrite(str(path), smooth)
        rows = [
            {'id': order, 'image_id': 1, 'category_id': 7, 'bbox': [1, 2, 10, 20], **row}
            for order, row in enumerate(annotations, 100)
        ]
        entries = [
            {'id': order, 'file_name': name, 'height': height, 'width': width}
            for order, (name, height, width) in enumerate(images, 1)
        ]
        target = tmp_path / file.format(split=split)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({'images': entries, 'annotations': rows, 'categories': list(categories)}))
        return tmp_path

    return write


@pytest.fixture
def paint() -> Callable[..., Sample]:
    """Makes a sample of rotated rectangles on black.

    Object i is painted in color channel ``labels[i]`` alone, above those before it; its keypoints are its corners.
    """

    def make(size: tuple[int, int], boxes: Sequence[tuple[float, ...]], labels: Sequence[int]) -> Sample:
        rboxes = canonical(np.array(boxes, dtype=np.float64).reshape(-1, 5))
        rings = corners(rboxes)
        image = np.zeros((*size, 3), np.uint8)
        for ring, label in zip(rings, labels, strict=True):
            color = [255 if channel == label else 0 for channel in range(3)]
            cv2.fillPoly(image, [np.round((ring - 0.5) * 16).astype(np.int32)], color, lineType=cv2.LINE_AA, shift=4)
        keypoints = np.concatenate([rings, np.full((len(rings), 4, 1), 2)], axis=2)
        return Sample(
            picture=Picture.of(image),
            boxes=envelopes(rings) if len(rings) else np.zeros((0, 4), np.float32),
            labels=np.array(labels, dtype=np.int64),
            polygons=[[ring] for ring in rings],
            rboxes=rboxes,
            keypoints=keypoints.astype(np.float32),
            original_hw=size,
        )

    return make


@pytest.fixture
def misplaced() -> Callable[[Sample], float]:
    """Measures, over all rows, how far targets lie from what is painted, in pixels; at most one object per label.

    For boxes: the largest distance of a side from the envelope of the painted pixels. For polygons and rotated boxes:
    the mean width of the strip in which outline and paint differ. For keypoints: the distance to the nearest corner.
    """

    def measure(sample: Sample) -> float:
        kinds = (sample.boxes, sample.labels, sample.polygons, sample.rboxes, sample.keypoints)
        assert len({len(kind) for kind in kinds}) == 1
        worst = 0.0
        for row, label in enumerate(sample.labels):
            others = [channel for channel in range(3) if channel != label]
            painted = (sample.image[..., label] > 127) & (sample.image[..., others] < 100).all(axis=-1)
            y, x = np.nonzero(painted)
            seen = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1])
            worst = max(worst, np.abs(sample.boxes[row] - seen).max())
            ring = corners(sample.rboxes[row : row + 1])[0]
            for outline in (sample.polygons[row][0], ring):
                drawn = np.zeros(painted.shape, np.uint8)
                cv2.fillPoly(drawn, [np.round((outline - 0.5) * 16).astype(np.int32)], 1, shift=4)
                length = np.linalg.norm(outline - np.roll(outline, 1, axis=0), axis=1).sum()
                worst = max(worst, (painted != (drawn > 0)).sum() / length)
            distances = np.linalg.norm(ring[:, None] - sample.keypoints[row, None, :, :2], axis=-1)
            worst = max(worst, distances.min(axis=1).max())
        return worst

    return measure
