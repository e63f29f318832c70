"""The head of the task ``keypoint``.

Shape suffixes: B images, A anchors, C classes, J keypoints.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from lucid.models.heads.detect import class_tensors, make_branches
from lucid.models.heads.paths import decode_by
from lucid.models.heads.stems import Parallel, apply_stems, lanes_of, make_stems
from lucid.registry import HEADS
from lucid.streams import side_by_side
from lucid.structures import AnchorGrid, KeypointOutputs
from lucid.structures.anchors import decode_points, gather_anchors, without_broken
from lucid.structures.detections import PATHS, Prediction, place_detections
from lucid.structures.point_decoding import place_points


@HEADS.register_module()
class KeypointHead(nn.Module):
    """Boxes, classes and the keypoints of each object, each with a spread that only the loss uses.

    A stem gives four numbers per point, point after point: x, y, and the spread along x and y. What the head of
    ``detect`` has is made first and has the same names, so that the same seed draws the same values.

    Attributes: ``paths``, the ways to detections that ``predict`` knows.

    Args:
        in_channels: of each level.
        num_classes: C.
        num_keypoints: J.
        box_start: as in ``DetectHead``.
        parallel: as in ``DetectHead``.

    Raises:
        ValueError: ``num_keypoints`` is not positive.

    Source: arXiv:2606.03748 sec. 3.4.2; RLE (arXiv:2107.11291).
    """

    task = 'keypoint'
    paths = PATHS

    def __init__(
        self,
        in_channels: Sequence[int],
        *,
        num_classes: int,
        num_keypoints: int,
        box_start: float | None = None,
        parallel: Parallel | None = None,
    ) -> None:
        if num_keypoints < 1:
            raise ValueError(f'num_keypoints={num_keypoints} leaves no point to find; make it 1 or more')
        super().__init__()
        self.num_keypoints = num_keypoints
        self.parallel = parallel
        self.one_to_many, self.one_to_one = make_branches(
            in_channels, num_classes=num_classes, box_start=box_start, parallel=parallel
        )
        self.o2m_points = make_stems(in_channels, out_channels=4 * num_keypoints)
        self.o2o_points = make_stems(in_channels, out_channels=4 * num_keypoints)

    def forward(self, features: Sequence[Tensor]) -> KeypointOutputs:
        """Both branches over the maps of all levels."""
        o2m_numbers, o2o_numbers, o2m, o2o = side_by_side(
            [
                partial(apply_point_stems, self.o2m_points, features, parallel=self.parallel),
                partial(apply_point_stems, self.o2o_points, features, parallel=self.parallel),
                partial(self.one_to_many, features),
                partial(self.one_to_one, features),
            ],
            lanes=lanes_of(self.parallel),
        )
        (o2m_points_BAJ2, o2m_sigmas_BAJ2), (o2o_points_BAJ2, o2o_sigmas_BAJ2) = o2m_numbers, o2o_numbers
        (o2m_logits_BAC, o2m_boxes_BA4), (o2o_logits_BAC, o2o_boxes_BA4) = o2m, o2o
        return KeypointOutputs(
            o2m_logits_BAC,
            o2m_boxes_BA4,
            o2o_logits_BAC,
            o2o_boxes_BA4,
            o2m_points_BAJ2,
            o2o_points_BAJ2,
            o2m_sigmas_BAJ2,
            o2o_sigmas_BAJ2,
        )

    @property
    def class_rows(self) -> tuple[str, ...]:
        """Names in the head's state of tensors that have a row per class, by label, in dimension 0."""
        return class_tensors(self)

    def deployed(self) -> 'DeployedKeypointHead':
        """The part that inference needs."""
        return DeployedKeypointHead(self)

    def predict(
        self,
        outputs: KeypointOutputs,
        grid: AnchorGrid,
        metas: Sequence[Mapping[str, Any]],
        *,
        max_detections: int,
        score_threshold: float,
        path: str = 'one_to_one',
        iou_threshold: float = 0.7,
    ) -> list[Prediction]:
        """Predictions with ``keypoints`` in pixels of the original images, by one of ``paths``.

        The anchor of a box gives its points too; one with a point that is not finite gives neither.

        Args:
            outputs: of the whole batch.
            grid: of its input size.
            metas: per image, as ``to_predictions`` wants them.
            max_detections: rows kept per image.
            score_threshold: detections below it are dropped.
            path: ``'one_to_one'`` the one-to-one branch as it is, ``'nms'`` the one-to-many branch through NMS.
            iou_threshold: of the boxes, for the NMS.

        Returns:
            One per image.
        """
        if path == 'nms':
            logits_BAC, boxes_BA4 = outputs.o2m_logits_BAC, outputs.o2m_boxes_BA4
            offsets_BAJ2 = outputs.o2m_points_BAJ2
        else:
            logits_BAC, boxes_BA4 = outputs.o2o_logits_BAC, outputs.o2o_boxes_BA4
            offsets_BAJ2 = outputs.o2o_points_BAJ2
        found = decode_by(
            path,
            logits_BAC,
            without_broken(boxes_BA4, offsets_BAJ2),
            grid,
            max_detections=max_detections,
            score_threshold=score_threshold,
            iou_threshold=iou_threshold,
        )
        points_BKJ2 = gather_anchors(decode_points(offsets_BAJ2, grid), found.anchors_BK)
        return place_points(place_detections(found, metas), points_BKJ2, metas)


class DeployedKeypointHead(nn.Module):
    """The one-to-one branch of a ``KeypointHead``, whose modules these are.

    Feature maps to (logits_BAC, distances_BA4, offsets_BAJ2 from the anchor in stride units), all raw.
    """

    def __init__(self, head: KeypointHead) -> None:
        super().__init__()
        self.one_to_one = head.one_to_one
        self.points = head.o2o_points

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes and classes, points."""
        return *self.one_to_one(features), apply_point_stems(self.points, features)[0]


def apply_point_stems(
    stems: nn.ModuleList, features: Sequence[Tensor], *, parallel: Parallel | None = None
) -> tuple[Tensor, Tensor]:
    """Offsets (B, A, J, 2) and spreads (B, A, J, 2) in anchor order, each in memory of its own."""
    numbers_BAJ4 = apply_stems(stems, features, parallel=parallel).unflatten(2, (-1, 4))
    # Contiguous, as a recording's copies are: on other strides a sum may be taken in another order.
    return numbers_BAJ4[..., :2].contiguous(), numbers_BAJ4[..., 2:].contiguous()
