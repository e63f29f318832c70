"""The regions of ``lucid.capture`` under the names that a config uses: capture itself knows no registry."""

from lucid.capture import ModuleRegion
from lucid.registry import REGIONS

REGIONS.register_module(module=ModuleRegion)

__all__ = ['ModuleRegion']
