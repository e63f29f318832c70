"""The head of the task ``oriented``.

Shape suffixes: B images, A anchors, C classes.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor, nn

from lucid.models.heads.detect import class_tensors, make_branches
from lucid.models.heads.paths import Metas, Rules, Run, rank
from lucid.models.heads.stems import Parallel, apply_stems, lanes_of, make_stems
from lucid.registry import HEADS
from lucid.streams import side_by_side
from lucid.structures import AnchorGrid, OrientedOutputs
from lucid.structures.affine import Float32
from lucid.structures.anchors import gather_anchors, without_broken
from lucid.structures.detections import PATHS, Prediction, pack_rows
from lucid.structures.rotated_decoding import place_rboxes
from lucid.structures.rotated_tensors import compose_rboxes

ANGLE_DIVISOR = 2
"""Of the angle's stem: wider than the others."""


@HEADS.register_module()
class OrientedHead(nn.Module):
    """Boxes, classes and an angle by which each box is turned about its own centre.

    What the head of ``detect`` has is made first and has the same names, so that the same seed draws the same values.

    Attributes: ``paths``, the ways to detections that ``decode`` knows.

    Args:
        in_channels: of each level.
        num_classes: C.
        box_start: as in ``DetectHead``.
        parallel: as in ``DetectHead``.

    Source: arXiv:2606.03748 sec. 3.4.3, Eq. 13; the width of the angle's stem is this project's reading.
    """

    task = 'oriented'
    paths = PATHS

    def __init__(
        self,
        in_channels: Sequence[int],
        *,
        num_classes: int,
        box_start: float | None = None,
        parallel: Parallel | None = None,
    ) -> None:
        super().__init__()
        self.parallel = parallel
        self.one_to_many, self.one_to_one = make_branches(
            in_channels, num_classes=num_classes, box_start=box_start, parallel=parallel
        )
        self.o2m_angles = make_stems(in_channels, out_channels=1, divisor=ANGLE_DIVISOR)
        self.o2o_angles = make_stems(in_channels, out_channels=1, divisor=ANGLE_DIVISOR)

    def forward(self, features: Sequence[Tensor]) -> OrientedOutputs:
        """Both branches over the maps of all levels."""
        many, one, *angles_2 = side_by_side(
            [
                partial(self.one_to_many, features),
                partial(self.one_to_one, features),
                partial(apply_stems, self.o2m_angles, features, parallel=self.parallel),
                partial(apply_stems, self.o2o_angles, features, parallel=self.parallel),
            ],
            lanes=lanes_of(self.parallel),
        )
        return OrientedOutputs(*many, *one, *angles_2)

    @property
    def class_rows(self) -> tuple[str, ...]:
        """Names in the head's state of tensors that have a row per class, by label, in dimension 0."""
        return class_tensors(self)

    def deployed(self) -> 'DeployedOrientedHead':
        """The part that inference needs."""
        return DeployedOrientedHead(self)

    def decode(self, outputs: OrientedOutputs, grid: AnchorGrid, rules: Rules) -> Tensor:
        """Rows with a rotated box each, for NMS of all anchors: the host does it. The anchor of a box gives its angle.

        An anchor whose angle is not finite takes no part.
        """
        if rules.path == 'nms':
            logits_BAC, boxes_BA4, angles_BA1 = outputs[0], outputs[1], outputs.o2m_angles_BA1
        else:
            logits_BAC, boxes_BA4, angles_BA1 = outputs[2], outputs[3], outputs.o2o_angles_BA1
        found = rank(logits_BAC, without_broken(boxes_BA4, angles_BA1), grid, rules)
        angles_BK1 = gather_anchors(angles_BA1.float(), found.anchors_BK)
        return pack_rows(found, compose_rboxes(found.boxes_BK4.float(), angles_BK1))

    def maps(self, outputs: OrientedOutputs) -> None:
        """Rows share nothing."""

    def place(
        self, rows_BKN: Float32, maps_B: Float32 | None, metas: Metas, *, rules: Rules, run: Run
    ) -> Iterable[Prediction]:
        """Predictions in pixels of the original images, with ``rboxes``, whose envelopes ``boxes`` are."""
        nms = rules.iou_threshold if rules.path == 'nms' else None
        return run(partial(place_rboxes, iou_threshold=nms, max_detections=rules.max_detections), rows_BKN, metas)


class DeployedOrientedHead(nn.Module):
    """The one-to-one branch of an ``OrientedHead``, whose modules these are.

    Feature maps to (logits_BAC, distances_BA4, angles_BA1 in radians), all raw.
    """

    def __init__(self, head: OrientedHead) -> None:
        super().__init__()
        self.one_to_one = head.one_to_one
        self.angles = head.o2o_angles

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes and classes, angles."""
        return *self.one_to_one(features), apply_stems(self.angles, features)
