"""The regions of ``lucid.capture`` under the names that a config uses: capture itself knows no registry."""

from lucid.capture import EvalRegion, LossRegion, ModuleRegion, StepRegion
from lucid.registry import REGIONS

REGIONS.register_module(module=ModuleRegion)
REGIONS.register_module(module=LossRegion)
REGIONS.register_module(module=StepRegion)
REGIONS.register_module(module=EvalRegion)

__all__ = ['EvalRegion', 'LossRegion', 'ModuleRegion', 'StepRegion']
