"""What a region does when something does not fit, and the parts that it is made of."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import nn

from lucid.capture.graph import Memory, cuda_memory
from lucid.capture.guards import Guards
from lucid.capture.ownership import OWNERSHIPS, Ownership
from lucid.capture.pool import Pool
from lucid.capture.recording import Recording
from lucid.capture.state import State

_CHOICES = {
    'on_new_signature': ('eager', 'capture', 'raise'),
    'on_change': ('recapture', 'eager', 'raise'),
    'on_error': ('raise', 'eager'),
    'gradients': tuple(OWNERSHIPS),
}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The answers of a config.

    ``on_new_signature``: a call that no recording serves, such as a partial last batch. The first signature is always
    captured. ``on_change``: a guard failed. ``on_error``: recording failed. ``gradients``: who owns gradients that
    leave a region (`lucid.capture.ownership`).
    """

    on_new_signature: str = 'eager'
    on_change: str = 'recapture'
    on_error: str = 'raise'
    gradients: str = 'clone'
    max_signatures: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            allowed = _CHOICES.get(field.name)
            if allowed and value not in allowed:
                raise ValueError(f'{field.name}={value!r} is unknown; use one of {", ".join(map(repr, allowed))}')
        if self.max_signatures < 1:
            raise ValueError(f'max_signatures={self.max_signatures} allows no recording; use 1 or more')


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a region is built from: another backend, or a part taken out to show what it is for."""

    memory: Callable[[torch.device], Memory | None] = cuda_memory
    pool: Callable[[Memory, Ownership], Pool] = Pool
    ownership: Callable[[str], Ownership] = lambda mode: OWNERSHIPS[mode]()
    guards: Callable[[nn.Module], Guards] = Guards
    state: Callable[[nn.Module, torch.device], State] = State
    recording: Callable[..., Recording] = Recording
