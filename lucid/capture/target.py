"""The target of a region: one module of a model, by path."""

import difflib

from torch import nn

from lucid.capture.errors import TargetError


def find(model: nn.Module, path: str) -> nn.Module:
    """The module of ``model`` at ``path``; TargetError with the nearest path if there is none."""
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        paths = [name for name, _ in model.named_modules()]
        near = difflib.get_close_matches(path, paths, n=1) or [name for name, _ in model.named_children()]
        raise TargetError(
            f'the model has no module {path!r}', f'the nearest is {near[0]!r}' if near else 'use ""'
        ) from error


def held_outside(model: nn.Module, target: str) -> frozenset[int]:
    """The ids of parameters that modules of ``model`` outside the path ``target`` hold."""
    return frozenset(
        id(parameter)
        for path, module in model.named_modules(remove_duplicate=False)
        if target and path != target and not path.startswith(f'{target}.')
        for parameter in module._parameters.values()
        if parameter is not None
    )
