"""The regions of ``lucid.capture`` under the names that a config uses: capture itself knows no registry."""

from lucid.capture import LossRegion, ModuleRegion
from lucid.registry import REGIONS

REGIONS.register_module(module=ModuleRegion)
REGIONS.register_module(module=LossRegion)

__all__ = ['LossRegion', 'ModuleRegion']
