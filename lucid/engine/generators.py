"""The random generators of the process: their state as plain values that a checkpoint can hold."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """Return the state of Python's, numpy's and torch's generators as plain values; tensors are copies."""
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (the global one is what a data set may use)
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        'python': [version, list(internal), gauss],
        'numpy': [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        'torch': torch.get_rng_state(),
        'cuda': torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set the generators to what ``random_state`` returned; a differing number of CUDA cards leaves theirs alone."""
    version, internal, gauss = state['python']
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state['numpy']
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state['torch'].cpu())
    if torch.cuda.is_available() and len(state['cuda']) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([generator.cpu() for generator in state['cuda']])
