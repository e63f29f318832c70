"""Regions by the names that command lines give them."""

from lucid.capture import LossRegion, ModuleRegion, Region, StepRegion


def make_regions(names: str) -> list[Region]:
    """Regions of ``names`` joined by ``+``: ``step``, ``loss``, or the path of a module, such as ``network+loss``."""
    made: dict[str, type[StepRegion] | type[LossRegion]] = {'step': StepRegion, 'loss': LossRegion}
    return [made[name]() if name in made else ModuleRegion(name) for name in names.split('+')]
