"""From raw outputs to predictions: on the device in fixed shapes, on the device with reads, then on the host.

A head's ``decode`` has no host read and no shape that depends on values, so that it can be captured together with the
network. ``select`` is the NMS of upright boxes and reads the device. A head's ``place`` is the rest, image by image and
on arrays alone, so that it can run in another process.

Shape suffixes: B images, A anchors, C classes, K rows per image, N columns of a row, or further numbers of an anchor.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from lucid.structures import AnchorGrid, Candidates, Detections
from lucid.structures.affine import Float32
from lucid.structures.anchors import gather_anchors, without_broken
from lucid.structures.detections import Prediction, decode_end_to_end, pack_rows
from lucid.structures.suppression import suppress

Metas = Sequence[Mapping[str, Any]]
Run = Callable[..., Iterable[Any]]
"""Calls a function for each item of iterables and gives the results in order, as the builtin ``map`` does."""


class Rules(NamedTuple):
    """Which detections become predictions.

    path:            ``'one_to_one'`` the one-to-one branch as it is, ``'nms'`` the one-to-many branch through NMS
    max_detections:  rows kept per image
    score_threshold: detections below it are dropped
    iou_threshold:   of the NMS
    """

    path: str
    max_detections: int
    score_threshold: float
    iou_threshold: float


class Head(Protocol):
    """What a detector needs of a head to predict; ``paths`` are those that it knows."""

    paths: tuple[str, ...]

    def decode(self, outputs: Any, grid: AnchorGrid, rules: Rules) -> Tensor | Candidates:
        """Rows on the device as ``pack_rows`` gives them, or candidates of which ``select`` makes rows."""

    def maps(self, outputs: Any) -> Tensor | None:
        """What the rows of an image share, float32 (B, ...); None where they share nothing."""

    def place(
        self, rows_BKN: Float32, maps_B: Float32 | None, metas: Metas, *, rules: Rules, run: Run
    ) -> Iterable[Prediction]:
        """Predictions in pixels of the original images, from arrays on the host, one per image, each by ``run``."""


def decode(
    logits_BAC: Tensor, distances_BA4: Tensor, numbers_BAN: Tensor | None, grid: AnchorGrid, rules: Rules
) -> Tensor | Candidates:
    """A branch as far as its shapes are fixed: the best anchors as rows, or for NMS all anchors as candidates.

    An anchor with a further number that is not finite takes no part.
    """
    if numbers_BAN is not None:
        distances_BA4 = without_broken(distances_BA4, numbers_BAN)
    found = rank(logits_BAC, distances_BA4, grid, rules)
    if rules.path == 'nms':
        return Candidates(found, numbers_BAN)
    return pack_rows(found, None if numbers_BAN is None else gather_anchors(numbers_BAN, found.anchors_BK))


def rank(logits_BAC: Tensor, distances_BA4: Tensor, grid: AnchorGrid, rules: Rules) -> Detections:
    """The best anchors by score; where an NMS follows all of them, because it may come to any."""
    count = logits_BAC.shape[1] if rules.path == 'nms' else rules.max_detections
    return decode_end_to_end(
        logits_BAC, distances_BA4, grid, max_detections=count, score_threshold=rules.score_threshold
    )


def select(found: Tensor | Candidates, rules: Rules) -> Tensor:
    """Rows on the device: of candidates those that an NMS of upright boxes leaves, which reads the device."""
    if isinstance(found, Tensor):
        return found
    kept = suppress(found.ranked, iou_threshold=rules.iou_threshold, max_detections=rules.max_detections)
    numbers_BAN = found.numbers_BAN
    return pack_rows(kept, None if numbers_BAN is None else gather_anchors(numbers_BAN, kept.anchors_BK))
