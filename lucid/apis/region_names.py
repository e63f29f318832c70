"""Regions by the names that command lines give them."""

from lucid.capture import LossRegion, ModuleRegion, Region, StepRegion

COMPILED = ':compiled'


def make_regions(names: str) -> list[Region]:
    """Regions of ``names`` joined by ``+``: ``step``, ``loss``, or the path of a module, such as ``network+loss``.

    A name that ends with ``:compiled`` is one whose modules are compiled.
    """
    return [_make(name.removesuffix(COMPILED), compile=name.endswith(COMPILED)) for name in names.split('+')]


def _make(name: str, *, compile: bool) -> Region:
    if name == 'step':
        return StepRegion(compile=compile)
    return LossRegion(compile=compile) if name == 'loss' else ModuleRegion(name, compile=compile)
