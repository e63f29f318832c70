"""The head of the task ``segment``.

Shape suffixes: B images, A anchors, C classes, K prototypes, H, W cells of a map.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor, nn

from lucid.models.heads.detect import class_tensors, make_branches
from lucid.models.heads.paths import Metas, Rules, Run, decode
from lucid.models.heads.prototypes import ProtoFusion, ProtoNet
from lucid.models.heads.stems import Parallel, apply_stems, init_prior, lanes_of, make_stems
from lucid.registry import HEADS
from lucid.streams import side_by_side
from lucid.structures import AnchorGrid, Candidates, SegmentOutputs
from lucid.structures.affine import Float32
from lucid.structures.detections import PATHS, Prediction
from lucid.structures.mask_decoding import place_masks


@HEADS.register_module()
class SegmentHead(nn.Module):
    """Boxes, classes and masks: per anchor the coefficients of a sum of prototypes, which all anchors share.

    A semantic classifier of the fused map helps training alone: it runs in training mode and not in evaluation mode,
    with gradients or without. What the head of ``detect`` has is made first and has the same names, so that the same
    seed draws the same values.

    Attributes: ``paths``, the ways to detections that ``decode`` knows.

    Args:
        in_channels: of each level, each half as fine as the one before.
        num_classes: C.
        num_prototypes: K.
        box_start: as in ``DetectHead``.
        parallel: as in ``DetectHead``.

    Source: arXiv:2606.03748 sec. 3.4.1, Eq. 7 to 9; YOLACT (arXiv:1904.02689).
    """

    task = 'segment'
    paths = PATHS

    def __init__(
        self,
        in_channels: Sequence[int],
        *,
        num_classes: int,
        num_prototypes: int = 32,
        box_start: float | None = None,
        parallel: Parallel | None = None,
    ) -> None:
        super().__init__()
        if num_prototypes < 1:
            raise ValueError(f'model.head.num_prototypes={num_prototypes} leaves no mask; the published number is 32')
        self.parallel = parallel
        self.one_to_many, self.one_to_one = make_branches(
            in_channels, num_classes=num_classes, box_start=box_start, parallel=parallel
        )
        self.o2m_coefficients = make_stems(in_channels, out_channels=num_prototypes)
        self.o2o_coefficients = make_stems(in_channels, out_channels=num_prototypes)
        self.fusion = ProtoFusion(in_channels)
        self.prototypes = ProtoNet(in_channels[0], num_prototypes=num_prototypes)
        self.semantic = nn.Conv2d(in_channels[0], num_classes, kernel_size=1)
        init_prior(self.semantic)

    def forward(self, features: Sequence[Tensor]) -> SegmentOutputs:
        """Both branches over the maps of all levels, and the maps that they share."""
        fused = self.fusion(features)
        many, one, *others = side_by_side(
            [
                partial(self.one_to_many, features),
                partial(self.one_to_one, features),
                partial(apply_coefficient_stems, self.o2m_coefficients, features, parallel=self.parallel),
                partial(apply_coefficient_stems, self.o2o_coefficients, features, parallel=self.parallel),
                partial(self.prototypes, fused),
                *([partial(self.semantic, fused)] if self.training else ()),
            ],
            lanes=lanes_of(self.parallel),
        )
        return SegmentOutputs(*many, *one, *others, *(() if self.training else (None,)))

    @property
    def class_rows(self) -> tuple[str, ...]:
        """Names in the head's state of tensors that have a row per class, by label, in dimension 0."""
        return (*class_tensors(self), 'semantic.weight', 'semantic.bias')

    def deployed(self) -> 'DeployedSegmentHead':
        """The part that inference needs."""
        return DeployedSegmentHead(self)

    def decode(self, outputs: SegmentOutputs, grid: AnchorGrid, rules: Rules) -> Tensor | Candidates:
        """Boxes, classes and coefficients; the anchor of a box gives these too, and one that is not finite neither."""
        if rules.path == 'nms':
            logits_BAC, boxes_BA4, coefficients_BAK = outputs[0], outputs[1], outputs.o2m_coefficients_BAK
        else:
            logits_BAC, boxes_BA4, coefficients_BAK = outputs[2], outputs[3], outputs.o2o_coefficients_BAK
        return decode(logits_BAC, boxes_BA4, coefficients_BAK, grid, rules)

    def maps(self, outputs: SegmentOutputs) -> Tensor:
        """The prototypes, float32 (B, K, H, W)."""
        return outputs.prototypes_BKHW.float()

    def place(
        self, rows_BKN: Float32, maps_B: Float32 | None, metas: Metas, *, rules: Rules, run: Run
    ) -> Iterable[Prediction]:
        """Predictions in pixels of the original images, with ``masks`` at their resolution."""
        return run(place_masks, rows_BKN, maps_B, metas)


class DeployedSegmentHead(nn.Module):
    """The one-to-one branch and the prototypes of a ``SegmentHead``, whose modules these are.

    Feature maps to (logits_BAC, distances_BA4, coefficients_BAK after tanh, prototypes_BKHW).
    """

    def __init__(self, head: SegmentHead) -> None:
        super().__init__()
        self.one_to_one = head.one_to_one
        self.coefficients = head.o2o_coefficients
        self.fusion = head.fusion
        self.prototypes = head.prototypes

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Boxes and classes, coefficients, prototypes."""
        coefficients_BAK = apply_coefficient_stems(self.coefficients, features)
        return *self.one_to_one(features), coefficients_BAK, self.prototypes(self.fusion(features))


def apply_coefficient_stems(
    stems: nn.ModuleList, features: Sequence[Tensor], *, parallel: Parallel | None = None
) -> Tensor:
    """Coefficients (B, A, K) in anchor order, in -1..1."""
    return apply_stems(stems, features, parallel=parallel).tanh()
