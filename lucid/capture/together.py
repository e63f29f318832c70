"""Several regions of one model."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from lucid.capture.accumulation import AccumulationTable
from lucid.capture.eval_region import EvalRegion
from lucid.capture.policy import Parts, Policy
from lucid.capture.pool import SharedMemory
from lucid.capture.region import Region


def activate_together(
    regions: Sequence[Region],
    model: nn.Module,
    *,
    policy: Policy | None = None,
    accumulation: AccumulationTable | None = None,
    parts: Parts | None = None,
) -> None:
    """Activate all regions or, if one cannot be, none.

    Those of evaluation come last, because they take the calls that one of training leaves alone, and lie in the graph
    memory of the first other one. Two regions of training cannot share any: the activations of a network must outlive
    the replay of the loss.

    Raises TargetError for what the first region that cannot be activated says.
    """
    parts = parts or Parts()
    shared = replace(parts, memory=SharedMemory(parts.memory))
    training = [region for region in regions if not isinstance(region, EvalRegion)]
    evaluation = [region for region in regions if isinstance(region, EvalRegion)]
    try:
        for region in (*training, *evaluation):
            if isinstance(region, EvalRegion):
                region.beside = training[0] if training else None
            alone = region in training[1:]
            region.activate(model, policy=policy, accumulation=accumulation, parts=parts if alone else shared)
    except BaseException:
        release_together(regions)
        raise


def release_together(regions: Sequence[Region]) -> None:
    """Release all of them, those of evaluation first; a second call does nothing."""
    for region in sorted(regions, key=lambda region: not isinstance(region, EvalRegion)):
        region.release()
