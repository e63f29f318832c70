"""Types and geometry that data, models and metrics share."""

from lucid.structures.targets import AnchorGrid, Assignment, Detections, PackedTargets, RawOutputs, Targets

__all__ = ['AnchorGrid', 'Assignment', 'Detections', 'PackedTargets', 'RawOutputs', 'Targets']
