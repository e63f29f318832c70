"""From raw outputs to detections, by the paths that all heads of upright boxes have.

Shape suffixes: B images, A anchors, C classes.
"""

from torch import Tensor

from lucid.structures import AnchorGrid, Detections
from lucid.structures.detections import decode_end_to_end
from lucid.structures.suppression import decode_with_nms


def decode_by(
    path: str,
    logits_BAC: Tensor,
    distances_BA4: Tensor,
    grid: AnchorGrid,
    *,
    max_detections: int,
    score_threshold: float,
    iou_threshold: float,
) -> Detections:
    """Detections of the branch that belongs to ``path``: ``'nms'`` suppresses what overlaps, any other ranks alone."""
    if path == 'nms':
        return decode_with_nms(
            logits_BAC,
            distances_BA4,
            grid,
            max_detections=max_detections,
            score_threshold=score_threshold,
            iou_threshold=iou_threshold,
        )
    return decode_end_to_end(
        logits_BAC, distances_BA4, grid, max_detections=max_detections, score_threshold=score_threshold
    )
