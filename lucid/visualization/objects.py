"""All that is known of objects, in one picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lucid.visualization.boxes import draw_boxes
from lucid.visualization.outlines import draw_outlines


def draw_objects(
    image: np.ndarray, objects: Mapping[str, Any], *, classes: Sequence[str] = (), scale: float = 1.0
) -> np.ndarray:
    """Draw objects and their names on a copy of an image; the frame of an upright box only where no rotated one is.

    Args:
        image: uint8 (H, W, 3), RGB; stays as it is.
        objects: ``boxes`` and ``labels`` as ``draw_boxes`` takes them, ``scores`` if they are predicted, and what else
            ``draw_outlines`` draws.
        classes: Names by label.
        scale: Pixels of ``image`` per unit of the objects' coordinates.

    Returns:
        uint8 (H, W, 3), RGB, owned by the caller.
    """
    boxes = np.asarray(objects['boxes'], dtype=np.float64).reshape(-1, 4) * scale
    return draw_boxes(
        draw_outlines(image, objects, scale=scale),
        boxes,
        objects['labels'],
        scores=objects.get('scores'),
        classes=classes,
        frames=objects.get('rboxes') is None,
    )
