"""The head of the task ``detect``.

Shape suffixes: B images, A anchors, C classes.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor, nn

from lucid.models.heads.paths import Metas, Rules, Run, decode
from lucid.models.heads.stems import (
    Parallel,
    apply_stems,
    check_parallel,
    init_box_start,
    init_class_prior,
    lanes_of,
    make_stems,
)
from lucid.registry import HEADS
from lucid.streams import side_by_side
from lucid.structures import AnchorGrid, Candidates, RawOutputs
from lucid.structures.affine import Float32
from lucid.structures.detections import PATHS, Prediction, place_detections


class DetectBranch(nn.Module):
    """Box and class stems of one branch; feature maps to (logits_BAC, distances_BA4), both without activation."""

    def __init__(
        self,
        in_channels: Sequence[int],
        *,
        num_classes: int,
        box_start: float | None = None,
        parallel: Parallel | None = None,
    ) -> None:
        check_parallel(parallel)
        super().__init__()
        self.parallel = parallel
        self.boxes = make_stems(in_channels, out_channels=4)
        self.classes = make_stems(in_channels, out_channels=num_classes)
        if box_start is not None:
            init_box_start(self.boxes, distance=box_start)
        init_class_prior(self.classes)

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Class logits and left, top, right, bottom distances in stride units."""
        calls = [partial(apply_stems, stems, features, parallel=self.parallel) for stems in (self.classes, self.boxes)]
        logits_BAC, distances_BA4 = side_by_side(calls, lanes=lanes_of(self.parallel))
        return logits_BAC, distances_BA4


@HEADS.register_module()
class DetectHead(nn.Module):
    """Boxes and classes from two branches with parameters of their own, which read the same features, not detached.

    Attributes: ``paths``, the ways to detections that ``decode`` knows.

    Args:
        in_channels: of each level.
        num_classes: C.
        box_start: distance of each side of a box from its anchor at the start, in strides; None leaves torch's own
            start near zero, as published. 2.0 learns faster at first: docs/records/2026-11-29-shapes.md.
        parallel: what runs on streams of its own on a card: ``'branches'``, each kind of output of each branch;
            ``'stems'``, each of their levels too; None, nothing. The numbers are the same.

    Raises:
        ValueError: ``parallel`` is another word.

    Source: arXiv:2405.14458 sec. 3.1; arXiv:2606.03748 sec. 3.2.
    """

    task = 'detect'
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

    def forward(self, features: Sequence[Tensor]) -> RawOutputs:
        """Both branches over the maps of all levels."""
        calls = [partial(branch, features) for branch in (self.one_to_many, self.one_to_one)]
        many, one = side_by_side(calls, lanes=lanes_of(self.parallel))
        return RawOutputs(*many, *one)

    @property
    def class_rows(self) -> tuple[str, ...]:
        """Names in the head's state of tensors that have a row per class, by label, in dimension 0."""
        return class_tensors(self)

    def deployed(self) -> nn.Module:
        """The part that inference needs."""
        return self.one_to_one

    def decode(self, outputs: RawOutputs, grid: AnchorGrid, rules: Rules) -> Tensor | Candidates:
        """Boxes and classes of the branch that belongs to the path."""
        logits_BAC, boxes_BA4 = outputs[:2] if rules.path == 'nms' else outputs[2:4]
        return decode(logits_BAC, boxes_BA4, None, grid, rules)

    def maps(self, outputs: RawOutputs) -> None:
        """Rows share nothing."""

    def place(
        self, rows_BKN: Float32, maps_B: Float32 | None, metas: Metas, *, rules: Rules, run: Run
    ) -> Iterable[Prediction]:
        """Predictions in pixels of the original images."""
        return run(place_detections, rows_BKN, metas)


def make_branches(
    in_channels: Sequence[int], *, num_classes: int, box_start: float | None, parallel: Parallel | None
) -> tuple[DetectBranch, DetectBranch]:
    """The one-to-many and the one-to-one branch of a head, drawn in this order."""
    many, one = (
        DetectBranch(in_channels, num_classes=num_classes, box_start=box_start, parallel=parallel) for _ in range(2)
    )
    return many, one


def class_tensors(head: nn.Module) -> tuple[str, ...]:
    """Names in a head's state of the tensors of both branches that have a row per class in dimension 0."""
    finals = [
        f'{branch}.classes.{level}.{len(stem) - 1}'
        for branch in ('one_to_many', 'one_to_one')
        for level, stem in enumerate(getattr(head, branch).classes)
    ]
    return tuple(f'{final}.{kind}' for final in finals for kind in ('weight', 'bias'))
