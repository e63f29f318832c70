"""What an evaluation tells about a detector beyond its figures, for drawing.

Array axes: K classes, R recall points, N boxes of one image.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]
NOTHING: Mapping[str, Any] = MappingProxyType({})


class ImageErrors(NamedTuple):
    """One image with its truth, and its detections at or above the confidence of the report.

    num_missed:   objects that no detection of their class found
    num_false:    detections that found no object of their class, or one that a better detection had found
    truth_boxes:  (N, 4), boxes: (N, 4), xyxy, pixels of the original image
    truth_shapes, shapes: what was compared, by ``masks``, ``rboxes`` or ``keypoints``, these with the ``limbs`` that
                  join them; empty where it was boxes
    """

    image_id: int
    file: str
    num_missed: int
    num_false: int
    truth_boxes: Floats
    truth_labels: Ints
    boxes: Floats
    scores: Floats
    labels: Ints
    truth_shapes: Mapping[str, Any] = NOTHING
    shapes: Mapping[str, Any] = NOTHING


class EvaluationReport(NamedTuple):
    """One path of one evaluation.

    path:           of ``PATHS``
    classes:        names by label
    ap_K, ap50_K:   average precision of each class; NaN without truth
    recall_R:       recall points, 0..1
    precision_KR:   interpolated precision at them, overlap 0.5; NaN without truth
    confidence:     score with the best F1 of all classes together at overlap 0.5, and ``f1`` there
    confusion:      (K + 1, K + 1) counts: rows truth, columns detection, the last of both background
    confusion_rule: lowest score and lowest overlap that the counts rest on
    worst:          images with the most errors at ``confidence``, worst first
    overlap:        what the overlap of a detection with an object is called
    """

    path: str
    classes: tuple[str, ...]
    ap_K: Floats
    ap50_K: Floats
    recall_R: Floats
    precision_KR: Floats
    confidence: float
    f1: float
    confusion: Ints
    confusion_rule: tuple[float, float]
    worst: tuple[ImageErrors, ...]
    overlap: str = 'IoU'
