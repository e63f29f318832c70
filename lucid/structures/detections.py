"""From raw outputs of a branch to detections, and from those to predictions in the original image.

Shape suffixes: B images, A anchors, C classes, K detections per image.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

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


def to_predictions(detections: Detections, metas: Sequence[Mapping[str, Any]]) -> list[Prediction]:
    """Detections in pixels of each original image, in one transfer from the device.

    Padding rows are dropped, and so are boxes that are empty: inverted, or wholly outside the image.

    Args:
        detections: of the whole batch.
        metas: per image ``image_id``, ``file``, ``original_hw`` and ``matrix`` (3x3, original pixels to input pixels).

    Returns:
        One prediction per image; its tensors are the caller's.
    """
    # One tensor, one transfer; a label survives float32 up to 2 ** 24.
    rows_BK6 = torch.cat(
        (
            detections.boxes_BK4.float(),
            detections.scores_BK.float().unsqueeze(-1),
            detections.labels_BK.float().unsqueeze(-1),
        ),
        dim=-1,
    ).cpu()
    return [_to_prediction(rows_K6.numpy(), meta) for rows_K6, meta in zip(rows_BK6, metas, strict=True)]


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


def _to_prediction(rows_K6: NDArray[np.float32], meta: Mapping[str, Any]) -> Prediction:
    height, width = meta['original_hw']
    kept = (rows_K6[:, 4] > 0) & _has_area(rows_K6)
    boxes_K4 = warp_boxes(np.linalg.inv(np.asarray(meta['matrix'], dtype=np.float64)), rows_K6[:, :4])
    boxes_K4 = clip_boxes(boxes_K4, (0, 0, width, height))
    kept &= _has_area(boxes_K4)
    return Prediction(
        image_id=int(meta['image_id']),
        file=str(meta['file']),
        boxes=torch.from_numpy(boxes_K4[kept]),
        scores=torch.from_numpy(rows_K6[kept, 4]),
        labels=torch.from_numpy(rows_K6[kept, 5].astype(np.int64)),
    )


def _has_area(boxes_K: NDArray[np.float32]) -> NDArray[np.bool_]:
    return np.asarray((boxes_K[:, 2] > boxes_K[:, 0]) & (boxes_K[:, 3] > boxes_K[:, 1]))
