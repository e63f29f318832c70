"""Networks, losses and what surrounds them; importing this registers all of their classes."""

from lucid.models import assigners, backbones, data_preprocessors, detectors, heads, losses, necks

__all__ = ['assigners', 'backbones', 'data_preprocessors', 'detectors', 'heads', 'losses', 'necks']
