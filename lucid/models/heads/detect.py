"""The head of the task ``detect``.

Shape suffixes: B images, A anchors, C classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lucid.models.heads.stems import apply_stems, init_box_start, init_class_prior, make_stems
from lucid.registry import HEADS
from lucid.structures import AnchorGrid, RawOutputs
from lucid.structures.detections import Prediction, decode_end_to_end, to_predictions


class DetectBranch(nn.Module):
    """Box and class stems of one branch; feature maps to (logits_BAC, distances_BA4), both without activation."""

    def __init__(self, in_channels: Sequence[int], *, num_classes: int, box_start: float | None = None) -> None:
        super().__init__()
        self.boxes = make_stems(in_channels, out_channels=4)
        self.classes = make_stems(in_channels, out_channels=num_classes)
        if box_start is not None:
            init_box_start(self.boxes, distance=box_start)
        init_class_prior(self.classes)

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Class logits and left, top, right, bottom distances in stride units."""
        return apply_stems(self.classes, features), apply_stems(self.boxes, features)


@HEADS.register_module()
class DetectHead(nn.Module):
    """Boxes and classes from two branches with parameters of their own, which read the same features, not detached.

    Args:
        in_channels: of each level.
        num_classes: C.
        box_start: distance of each side of a box from its anchor at the start, in strides; None leaves torch's own
            start near zero, as published. 2.0 learns faster at first: docs/records/2026-11-29-shapes.md.

    Source: arXiv:2405.14458 sec. 3.1; arXiv:2606.03748 sec. 3.2.
    """

    task = 'detect'

    def __init__(self, in_channels: Sequence[int], *, num_classes: int, box_start: float | None = None) -> None:
        super().__init__()
        self.one_to_many = DetectBranch(in_channels, num_classes=num_classes, box_start=box_start)
        self.one_to_one = DetectBranch(in_channels, num_classes=num_classes, box_start=box_start)

    def forward(self, features: Sequence[Tensor]) -> RawOutputs:
        """Both branches over the maps of all levels."""
        return RawOutputs(*self.one_to_many(features), *self.one_to_one(features))

    def deployed(self) -> nn.Module:
        """The part that inference needs."""
        return self.one_to_one

    def predict(
        self,
        outputs: RawOutputs,
        grid: AnchorGrid,
        metas: Sequence[Mapping[str, Any]],
        *,
        max_detections: int,
        score_threshold: float,
    ) -> list[Prediction]:
        """The one-to-one branch as predictions in pixels of the original images."""
        detections = decode_end_to_end(
            outputs.o2o_logits_BAC,
            outputs.o2o_boxes_BA4,
            grid,
            max_detections=max_detections,
            score_threshold=score_threshold,
        )
        return to_predictions(detections, metas)
