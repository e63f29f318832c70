"""Whole images from their tiles: each tile gives what it owns, the objects and detections whose centre is in its core.

The cores of an image's tiles part it: a border runs midway through where two neighbours overlap.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import compress, pairwise
from typing import Any, NamedTuple

import numpy as np
from faster_coco_eval import COCO

from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.results import ImageResult

Window = tuple[float, float, float, float]
KEYS = ('source_image', 'window')


class Tile(NamedTuple):
    """One tile; coordinates are pixels of the image that it was cut from.

    source: number of that image, from 1
    name:   that image's
    x, y:   of the tile's upper left corner
    core:   x1, y1, x2, y2 of what the tile owns, the last two not part of it; infinite where there is no neighbour
    """

    source: int
    name: str
    x: float
    y: float
    core: Window

    def owns(self, centres_N2: np.ndarray) -> np.ndarray:
        """Which points (N, 2), in pixels of the tile, lie in its core: bool (N,)."""
        x, y = (centres_N2.astype(np.float64) + np.array([self.x, self.y])).T
        x1, y1, x2, y2 = self.core
        return np.asarray((x >= x1) & (x < x2) & (y >= y1) & (y < y2))


def read_tiles(truth: GroundTruth) -> dict[int, Tile]:
    """The tiles of an annotation file.

    Args:
        truth: Whose images have ``source_image``, a name, and ``window``, x1, y1, x2, y2 of the tile in it.

    Returns:
        By image id; empty where not all images have both.

    Raises:
        ValueError: A window is no rectangle.
    """
    images: Mapping[int, Mapping[str, Any]] = truth.coco.imgs
    if not all(key in image for image in images.values() for key in KEYS):
        return {}
    windows = {image_id: _window(image_id, image['window']) for image_id, image in images.items()}
    by_name: dict[str, list[int]] = {}
    for image_id, image in images.items():
        by_name.setdefault(str(image['source_image']), []).append(image_id)
    tiles = {}
    for number, (name, image_ids) in enumerate(by_name.items(), start=1):
        columns, rows = (
            _cores({(windows[image_id][axis], windows[image_id][axis + 2]) for image_id in image_ids})
            for axis in (0, 1)
        )
        for image_id in image_ids:
            x1, y1, x2, y2 = windows[image_id]
            (left, right), (top, bottom) = columns[x1, x2], rows[y1, y2]
            tiles[image_id] = Tile(number, name, x1, y1, (left, top, right, bottom))
    return tiles


def merged_results(images: Mapping[int, ImageResult], tiles: Mapping[int, Tile]) -> dict[int, ImageResult]:
    """The detections of whole images, those that the tiles own, as many as there are.

    Args:
        images: With rotated boxes, by the ids of the tiles.
        tiles: By the same ids.

    Returns:
        By the numbers of the images that the tiles were cut from.
    """
    parts: dict[int, list[ImageResult]] = {}
    for image_id in sorted(images):  # or equal scores would be in the order in which processes delivered
        result, tile = images[image_id], tiles[image_id]
        assert result.rboxes is not None
        owned = tile.owns(result.rboxes[:, :2])
        parts.setdefault(tile.source, []).append(
            ImageResult(
                image_id=tile.source,
                boxes=result.boxes[owned] + np.array([tile.x, tile.y] * 2),
                scores=result.scores[owned],
                labels=result.labels[owned],
                num_dropped=result.num_dropped,
                file=tile.name,
                rboxes=result.rboxes[owned] + np.array([tile.x, tile.y, 0, 0, 0]),
            )
        )
    return {
        source: ImageResult(
            image_id=source,
            boxes=np.concatenate([one.boxes for one in found]),
            scores=np.concatenate([one.scores for one in found]),
            labels=np.concatenate([one.labels for one in found]),
            num_dropped=sum(one.num_dropped for one in found),
            file=found[0].file,
            rboxes=np.concatenate([one.rboxes for one in found if one.rboxes is not None]),
        )
        for source, found in parts.items()
    }


def merged_truth(truth: GroundTruth, tiles: Mapping[int, Tile], image_ids: Iterable[int]) -> GroundTruth:
    """The objects of whole images, those that the tiles own.

    Args:
        truth: Of the tiles, with rotated boxes.
        tiles: By image id.
        image_ids: Tiles that count.

    Returns:
        Annotations numbered from 1, of images by their numbers.
    """
    wanted = sorted(set(image_ids))
    annotations: list[dict[str, Any]] = []
    for image_id in wanted:
        rows, tile = truth.coco.imgToAnns[image_id], tiles[image_id]
        owned = tile.owns(np.array([row['rbox'][:2] for row in rows]).reshape(-1, 2))
        for row in compress(rows, owned):
            (x, y, width, height), (cx, cy, *rest) = row['bbox'], row['rbox']
            annotations.append(
                {
                    **{key: row[key] for key in ('category_id', 'area', 'iscrowd')},
                    'id': len(annotations) + 1,
                    'image_id': tile.source,
                    'bbox': [x + tile.x, y + tile.y, width, height],
                    'rbox': [cx + tile.x, cy + tile.y, *rest],
                }
            )
    images = [{'id': source} for source in sorted({tiles[image_id].source for image_id in wanted})]
    content = {
        'images': images,
        'annotations': annotations,
        'categories': truth.coco.dataset['categories'],
    }
    return truth._replace(coco=COCO(content))


def _window(image_id: int, values: Any) -> Window:
    if isinstance(values, list) and len(values) == 4:
        numbers = [float(value) if isinstance(value, int | float) else math.nan for value in values]
        x1, y1, x2, y2 = numbers
        if all(map(math.isfinite, numbers)) and x1 < x2 and y1 < y2:
            return x1, y1, x2, y2
    raise ValueError(
        f'image {image_id} of ann_file has the window {values!r:.80}; give x1, y1, x2, y2 of the tile in its source '
        'image, or set merge_tiles=False'
    )


def _cores(spans: set[tuple[float, float]]) -> dict[tuple[float, float], tuple[float, float]]:
    """Per extent of a tile along one axis that of its core."""
    ordered = sorted(spans)
    middles = [(start + end) / 2 for (_, end), (start, _) in pairwise(ordered)]
    bounds = [-math.inf, *middles, math.inf]
    return dict(zip(ordered, pairwise(bounds), strict=True))
