"""The head of the task ``keypoint``.

Shape suffixes: B images, A anchors, C classes, J keypoints.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor, nn

from lucid.models.heads.detect import class_tensors, make_branches
from lucid.models.heads.paths import Metas, Rules, Run, decode
from lucid.models.heads.stems import Parallel, apply_stems, lanes_of, make_stems
from lucid.registry import HEADS
from lucid.streams import side_by_side
from lucid.structures import AnchorGrid, Candidates, KeypointOutputs
from lucid.structures.affine import Float32
from lucid.structures.anchors import decode_points
from lucid.structures.detections import PATHS, Prediction
from lucid.structures.point_decoding import place_points


@HEADS.register_module()
class KeypointHead(nn.Module):
    """Boxes, classes and the keypoints of each object, each with a spread that only the loss uses.

    A stem gives four numbers per point, point after point: x, y, and the spread along x and y. What the head of
    ``detect`` has is made first and has the same names, so that the same seed draws the same values.

    Attributes: ``paths``, the ways to detections that ``decode`` knows.

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

    def decode(self, outputs: KeypointOutputs, grid: AnchorGrid, rules: Rules) -> Tensor | Candidates:
        """Boxes, classes and points; the anchor of a box gives its points too, and one that is not finite neither."""
        if rules.path == 'nms':
            logits_BAC, boxes_BA4, offsets_BAJ2 = outputs[0], outputs[1], outputs.o2m_points_BAJ2
        else:
            logits_BAC, boxes_BA4, offsets_BAJ2 = outputs[2], outputs[3], outputs.o2o_points_BAJ2
        return decode(logits_BAC, boxes_BA4, decode_points(offsets_BAJ2, grid).flatten(2), grid, rules)

    def maps(self, outputs: KeypointOutputs) -> None:
        """Rows share nothing."""

    def place(
        self, rows_BKN: Float32, maps_B: Float32 | None, metas: Metas, *, rules: Rules, run: Run
    ) -> Iterable[Prediction]:
        """Predictions in pixels of the original images, with ``keypoints``."""
        return run(place_points, rows_BKN, metas)


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
