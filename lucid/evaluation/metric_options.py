"""What the arguments of a metric may be, and which ground truth they lead to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lucid.evaluation.ground_truth import GroundTruth, read_ground_truth
from lucid.evaluation.kinds import BOXES, Kind
from lucid.structures.detections import PATHS


def checked_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """Ways from the forward to detections.

    Args:
        paths: What a config names.

    Returns:
        The same.

    Raises:
        ValueError: They are none of ``PATHS``, or one is named twice.
    """
    if not paths or len(set(paths)) < len(paths) or not set(paths) <= set(PATHS):
        raise ValueError(f'paths={tuple(paths)!r} must name one or more of {PATHS}, each once; correct it')
    return tuple(paths)


def check_output(outfile: str | Path | None, *, format_only: bool) -> None:
    """Raise ``ValueError`` where nothing is computed and nothing written."""
    if format_only and outfile is None:
        raise ValueError('format_only=True computes nothing and outfile=None writes nothing; give outfile a path')


def check_limits(max_detections: int, recall_detections: int) -> None:
    """Raise ``ValueError`` unless recall counts at least as many detections as average precision, and that one."""
    if not 0 < max_detections <= recall_detections:
        raise ValueError(
            f'max_detections={max_detections} must be in 1..recall_detections={recall_detections}; '
            'raise recall_detections'
        )


def stated_truth(
    owner: str, ann_file: str | Path | Mapping[str, Any] | None, meta: Mapping[str, Any], kind: Kind = BOXES
) -> GroundTruth:
    """The ground truth of a metric.

    Args:
        owner: Name of the metric, for messages.
        ann_file: What its config names; None takes ``annotation_file`` of ``meta``.
        meta: What the data set says of itself.
        kind: What is compared.

    Returns:
        Annotations whose classes are those of the data set.

    Raises:
        ValueError: There is none, it cannot be read, or its classes are others.
    """
    path = ann_file or meta.get('annotation_file')
    if path is None:
        raise ValueError(f"{owner} has no ground truth; set ann_file to the validation set's COCO JSON")
    truth = read_ground_truth(path, kind)
    stated = tuple(meta.get('classes', truth.classes))
    if stated != truth.classes:
        source = 'the ground truth' if isinstance(path, Mapping) else path
        raise ValueError(
            f'{source} has the classes {list(truth.classes)}, the data set {list(stated)}; '
            f'give {owner} the annotation file of the data set that it evaluates'
        )
    return truth
