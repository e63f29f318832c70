"""Types and geometry that data, models and metrics share."""

from lucid.structures.outputs import DenseOutputs, KeypointOutputs, OrientedOutputs, RawOutputs, SegmentOutputs
from lucid.structures.targets import MASK_STRIDE, AnchorGrid, Assignment, Candidates, Detections, PackedTargets, Targets

__all__ = [
    'MASK_STRIDE',
    'AnchorGrid',
    'Assignment',
    'Candidates',
    'DenseOutputs',
    'Detections',
    'KeypointOutputs',
    'OrientedOutputs',
    'PackedTargets',
    'RawOutputs',
    'SegmentOutputs',
    'Targets',
]
