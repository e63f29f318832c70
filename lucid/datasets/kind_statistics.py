"""What a split holds beside boxes, in figures: outlines, rotated boxes, keypoints.

Shape suffixes: N objects, K keypoints.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lucid.datasets.ground_truth import GroundTruth
from lucid.datasets.statistics import percentiles


class KeypointFigures(NamedTuple):
    """One keypoint of one split, counted over all objects; outside are the labelled ones beyond their image."""

    name: str
    labelled: int
    visible: int
    outside: int


class KindStatistics(NamedTuple):
    """The figures of one split without crowds; None where a kind was not loaded.

    objects:     all
    difficult:   marked so
    outlined:    with an outline
    rings:       of all outlines
    side_ratio:  percentiles of the long side of rotated boxes divided by the short one; by percent
    degrees:     percentiles of the direction of their long side, -45 to 135, from +x towards +y; by percent
    with_points: objects with a labelled keypoint
    """

    objects: int
    difficult: int
    outlined: int | None
    rings: int | None
    side_ratio: dict[int, float] | None
    degrees: dict[int, float] | None
    with_points: int | None
    keypoints: list[KeypointFigures] | None

    def to_json(self) -> dict[str, Any]:
        """Plain types."""
        plain = self._asdict()
        for name in ('side_ratio', 'degrees'):
            if plain[name] is not None:
                plain[name] = {f'p{percent}': value for percent, value in plain[name].items()}
        if self.keypoints is not None:
            plain['keypoints'] = [figures._asdict() for figures in self.keypoints]
        return plain


def kind_statistics(truths: Sequence[GroundTruth], keypoint_names: Sequence[str]) -> KindStatistics:
    """Count and measure what a split holds beside boxes.

    Args:
        truths: Of each usable image; all with the same kinds.
        keypoint_names: Of its K keypoints.

    Returns:
        Plain Python numbers.
    """
    real = [~truth.iscrowd for truth in truths]
    rings, rboxes, keypoints = (
        [(getattr(truth, kind), truth.original_hw, kept) for truth, kept in zip(truths, real, strict=True)]
        if truths and getattr(truths[0], kind) is not None
        else None
        for kind in ('num_rings', 'rboxes', 'keypoints')
    )
    rings_N = None if rings is None else np.concatenate([values[kept] for values, _, kept in rings])
    rboxes_N5 = None if rboxes is None else np.concatenate([values[kept] for values, _, kept in rboxes])
    return KindStatistics(
        objects=sum(int(kept.sum()) for kept in real),
        difficult=sum(
            int(truth.difficult[kept].sum())
            for truth, kept in zip(truths, real, strict=True)
            if truth.difficult is not None
        ),
        outlined=None if rings_N is None else int((rings_N > 0).sum()),
        rings=None if rings_N is None else int(rings_N.sum()),
        side_ratio=None if rboxes_N5 is None else percentiles(rboxes_N5[:, 2] / rboxes_N5[:, 3]),
        degrees=None if rboxes_N5 is None else percentiles(np.degrees(rboxes_N5[:, 4])),
        with_points=None
        if keypoints is None
        else sum(int((values[kept, :, 2] > 0).any(axis=1).sum()) for values, _, kept in keypoints),
        keypoints=None if keypoints is None else _points(keypoints, keypoint_names),
    )


def _points(
    parts: Sequence[tuple[np.ndarray, tuple[int, int], np.ndarray]], names: Sequence[str]
) -> list[KeypointFigures]:
    counts_K3 = np.zeros((len(names), 3), dtype=np.int64)
    for values, (height, width), kept in parts:
        points_NK3 = values[kept]
        labelled_NK = points_NK3[..., 2] > 0
        inside_NK = ((points_NK3[..., :2] >= 0) & (points_NK3[..., :2] <= (width, height))).all(axis=2)
        counts_K3[:, 0] += labelled_NK.sum(axis=0)
        counts_K3[:, 1] += (points_NK3[..., 2] > 1).sum(axis=0)
        counts_K3[:, 2] += (labelled_NK & ~inside_NK).sum(axis=0)
    return [KeypointFigures(name, *counts) for name, counts in zip(names, counts_K3.tolist(), strict=True)]
