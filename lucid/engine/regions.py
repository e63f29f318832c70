"""The regions of ``lucid.capture`` under the names that a config uses: capture itself knows no registry."""

from lucid.capture import LossRegion, ModuleRegion, StepRegion
from lucid.registry import REGIONS

REGIONS.register_module(module=ModuleRegion)
REGIONS.register_module(module=LossRegion)
REGIONS.register_module(module=StepRegion)

__all__ = ['LossRegion', 'ModuleRegion', 'StepRegion']
