"""Keeping parts of a network as they are."""

import difflib
from collections.abc import Sequence

from torch import nn


def freeze(network: nn.Module, paths: Sequence[str]) -> None:
    """Take the gradients from modules of ``network``, so that no optimizer changes them.

    Args:
        network: Owns the modules.
        paths: Of modules, dotted, such as ``backbone.to_p3``.

    Raises:
        ValueError: There is no such module, or nothing is left to train.
    """
    names = [name for name, _ in network.named_modules() if name]
    for path in paths:
        if path not in names:
            near = difflib.get_close_matches(str(path), names, n=1, cutoff=0.0)
            raise ValueError(
                f'frozen names {path!r}, and the network has no such module; the nearest is {near[0]!r}, and its parts '
                f'are {", ".join(name for name in names if "." not in name)}'
            )
        network.get_submodule(path).requires_grad_(False)
    if paths and not any(parameter.requires_grad for parameter in network.parameters()):
        raise ValueError(f'frozen={list(paths)} leaves nothing to train; leave a part out')
    hold(network, paths)


def hold(network: nn.Module, paths: Sequence[str]) -> None:
    """Put frozen modules into evaluation mode, in which BatchNorm uses its statistics and does not change them."""
    for path in paths:
        network.get_submodule(path).eval()


def frozen_names(network: nn.Module, paths: Sequence[str]) -> frozenset[str]:
    """Return the names of parameters and buffers in the frozen modules, as in the state of ``network``."""
    return frozenset(name for name in network.state_dict() if any(name.startswith(f'{path}.') for path in paths))
