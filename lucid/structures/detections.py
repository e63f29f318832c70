"""From raw outputs of a branch to detections, and from those to predictions in the original image.

Shape suffixes: B images, A anchors, C classes, K detections per image, N columns of a row or kept rows.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lucid.structures.affine import clip_boxes, warp_boxes
from lucid.structures.anchors import decode_boxes
from lucid.structures.targets import AnchorGrid, Detections

PATHS = ('one_to_one', 'nms')
"""Ways from one forward to detections: the one-to-one branch as it is, the one-to-many branch through NMS."""


class RunLengths(TypedDict):
    """A mask in COCO's compressed run-length form: ``size`` is [height, width]."""

    size: list[int]
    counts: str


class Prediction(TypedDict):
    """What the metric, the drawing and the user receive for one image. Tensors are on the CPU.

    Where several paths were asked for, these are the first one's, and each further one has an entry of its own name.

    boxes:  float32 (K, 4), xyxy, pixels of the original image, clipped to it
    scores: float32 (K,), 0..1, falling
    labels: int64 (K,)
    path:   of ``PATHS``; a model that has one way only need not say it

    With the task that predicts them, row i the same object:

    masks:     K run-length masks of the original image, COCO's compressed form: ``size`` (H, W) and ``counts`` str
    rboxes:    float32 (K, 5), cx, cy, w, h, theta in the long-edge convention, pixels of the original image, unclipped
    keypoints: float32 (K, J, 2), x and y in pixels of the original image, unclipped
    """

    image_id: int
    file: str
    boxes: Tensor
    scores: Tensor
    labels: Tensor
    path: NotRequired[str]
    masks: NotRequired[list['RunLengths']]
    rboxes: NotRequired[Tensor]
    keypoints: NotRequired[Tensor]
    one_to_one: NotRequired['Prediction']
    nms: NotRequired['Prediction']


def decode_end_to_end(
    logits_BAC: Tensor,
    distances_BA4: Tensor,
    grid: AnchorGrid,
    *,
    max_detections: int = 300,
    score_threshold: float = 0.0,
) -> Detections:
    """The best ``max_detections`` anchors of each image, one class each, without NMS; on the device, no host read.

    Equal scores go to the lowest anchor and equal classes to the lowest class, on every device: ``topk`` promises no
    order, so all anchors are sorted stably (CPU, 16 images of 8,400 anchors, one thread: 9 ms, where ``topk`` takes
    1.4). Anchors below ``score_threshold`` and anchors whose logit or box is not finite become padding.

    Source: YOLOv10 (arXiv:2405.14458), YOLO26 (arXiv:2606.03748) sec. 3.2.1.
    """
    logits_BA, labels_BA = logits_BAC.max(dim=-1)
    scores_BA = logits_BA.to(torch.promote_types(logits_BA.dtype, torch.float32)).sigmoid()
    boxes_BA4 = decode_boxes(distances_BA4, grid)
    # NaN fails every comparison, so that a NaN score is padding too.
    usable_BA = (scores_BA >= score_threshold) & boxes_BA4.isfinite().all(dim=-1)
    scores_BA = torch.where(usable_BA, scores_BA, 0.0)

    scores_BK, anchors_BK = scores_BA.sort(dim=1, descending=True, stable=True)
    scores_BK, anchors_BK = scores_BK[:, :max_detections], anchors_BK[:, :max_detections]
    found_BK = scores_BK > 0
    boxes_BK4 = boxes_BA4.gather(1, anchors_BK.unsqueeze(-1).expand(-1, -1, 4))
    boxes_BK4 = torch.where(found_BK.unsqueeze(-1), boxes_BK4, 0.0)
    labels_BK = torch.where(found_BK, labels_BA.gather(1, anchors_BK), 0)
    anchors_BK = torch.where(found_BK, anchors_BK, -1)

    missing = max_detections - scores_BK.shape[1]
    return Detections(
        boxes_BK4=F.pad(boxes_BK4, (0, 0, 0, missing)),
        scores_BK=F.pad(scores_BK, (0, missing)),
        labels_BK=F.pad(labels_BK, (0, missing)),
        anchors_BK=F.pad(anchors_BK, (0, missing), value=-1),
    )


class Placed(NamedTuple):
    """A prediction, and where it came from.

    rows_N: int64, per row of the prediction its row in ``Detections``, rising
    """

    prediction: Prediction
    rows_N: NDArray[np.int64]


def pack_rows(detections: Detections, numbers_BKN: Tensor | None = None) -> Tensor:
    """Detections, and what else their rows hold, as one float32 (B, K, 6 + N) on the device, so that one transfer does.

    Columns: the box, the score, the label, the N numbers. A label survives float32 up to 2 ** 24.
    """
    columns = [detections.boxes_BK4, detections.scores_BK.unsqueeze(-1), detections.labels_BK.unsqueeze(-1)]
    if numbers_BKN is not None:
        columns.append(numbers_BKN)
    return torch.cat([column.float() for column in columns], dim=-1)


def place_detections(rows_KN: NDArray[np.float32], meta: Mapping[str, Any]) -> Prediction:
    """The prediction that ``place_rows`` makes."""
    return place_rows(rows_KN, meta).prediction


def place_rows(rows_KN: NDArray[np.float32], meta: Mapping[str, Any]) -> Placed:
    """The detections of one image, as ``pack_rows`` gives them, in pixels of the original image.

    Padding rows are dropped, and so are boxes that are empty: inverted, or wholly outside the image.

    Args:
        rows_KN: on the host; what is behind the label is not looked at.
        meta: ``image_id``, ``file``, ``original_hw`` and ``matrix`` (3x3, original pixels to input pixels).

    Returns:
        The prediction, whose tensors are the caller's, and the rows that it kept.
    """
    boxes_K4 = warp_boxes(np.linalg.inv(np.asarray(meta['matrix'], dtype=np.float64)), rows_KN[:, :4])
    usable_K = (rows_KN[:, 4] > 0) & has_area(rows_KN)
    return place_boxes(boxes_K4, rows_KN[:, 4], rows_KN[:, 5], usable_K=usable_K, meta=meta)


def place_boxes(
    boxes_K4: NDArray[np.float32],
    scores_K: NDArray[np.float32],
    labels_K: NDArray[np.floating],
    *,
    usable_K: NDArray[np.bool_],
    meta: Mapping[str, Any],
) -> Placed:
    """Boxes in pixels of the original image as a prediction, clipped to it.

    Args:
        boxes_K4: xyxy.
        scores_K: best first.
        labels_K: whole numbers.
        usable_K: the others are dropped, and so are boxes wholly outside the image.
        meta: as ``place_rows`` wants it.

    Returns:
        The prediction, whose tensors are the caller's, and the rows that it kept.
    """
    height, width = meta['original_hw']
    boxes_K4 = clip_boxes(boxes_K4, (0, 0, width, height))
    rows_N = np.flatnonzero(usable_K & has_area(boxes_K4))
    prediction = Prediction(
        image_id=int(meta['image_id']),
        file=str(meta['file']),
        boxes=torch.from_numpy(boxes_K4[rows_N]),
        scores=torch.from_numpy(scores_K[rows_N]),
        labels=torch.from_numpy(labels_K[rows_N].astype(np.int64)),
    )
    return Placed(prediction, rows_N)


def has_area(boxes_K4: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which boxes are neither empty nor inverted."""
    return np.asarray((boxes_K4[:, 2] > boxes_K4[:, 0]) & (boxes_K4[:, 3] > boxes_K4[:, 1]))


def of_path(prediction: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The part of a prediction that came by ``path``.

    Args:
        prediction: of one image.
        path: of ``PATHS``.

    Returns:
        A part of ``prediction`` itself, or all of it.

    Raises:
        ValueError: It has none.
    """
    if prediction.get('path', PATHS[0]) == path:
        return prediction
    if path not in prediction:
        raise ValueError(
            f'predictions have no path {path!r}: the model gives {prediction.get("path", PATHS[0])!r} only. Evaluate '
            "with lucid's ValLoop or TestLoop, which ask the model for the paths of their metrics, or take "
            f'{path!r} out of the paths of the metric'
        )
    found: Mapping[str, Any] = prediction[path]
    return found
