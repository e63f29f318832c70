"""Regions by the names that command lines give them."""

from lucid.capture import LossRegion, ModuleRegion, Region, StepRegion

COMPILED = ':compiled'


def make_regions(names: str) -> list[Region]:
    """Regions of ``names`` joined by ``+``: ``step``, ``loss``, or the path of a module, such as ``network+loss``.

    A name that ends with ``:compiled`` is one whose modules are compiled, ``step:compiled=criterion`` the step with
    some of them, joined by a comma.
    """
    return [_make(*name.partition(COMPILED)) for name in names.split('+')]


def _make(name: str, compiled: str, which: str) -> Region:
    if name == 'step':
        return StepRegion(compile=which.removeprefix('=').split(',') if which else bool(compiled))
    if which:  # a module's name, which the model will not have
        return ModuleRegion(f'{name}{compiled}{which}')
    return LossRegion(compile=bool(compiled)) if name == 'loss' else ModuleRegion(name, compile=bool(compiled))
