"""Options of the config that hold where a checkpoint's state goes on."""

import inspect
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from mmengine.optim import _ParamScheduler
from torch.optim import Optimizer

_NO_OPTIONS = ('params', 'param_names')


def group_options(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return copies of the options of each parameter group, without the parameters."""
    return [
        {key: deepcopy(value) for key, value in group.items() if key not in _NO_OPTIONS}
        for group in optimizer.param_groups
    ]


def scheduler_options(scheduler: _ParamScheduler) -> dict[str, Any]:
    """Return copies of what a scheduler was constructed with, as far as it keeps it, but not where it is in time."""
    names = {
        name
        for kind in type(scheduler).__mro__
        if '__init__' in vars(kind) and kind is not object
        for name in inspect.signature(vars(kind)['__init__']).parameters
    }
    kept = names - {'self', 'optimizer', 'last_step'} | {'num_epochs'}
    return {name: deepcopy(value) for name, value in vars(scheduler).items() if name in kept}


def restore_group_options(optimizer: Optimizer, options: Sequence[Mapping[str, Any]]) -> None:
    """Give the groups the options of ``group_options``; a scheduled one keeps its factor of the initial value.

    Args:
        optimizer: Has loaded a state.
        options: Of the same groups, before it did.
    """
    for group, wanted in zip(optimizer.param_groups, options, strict=True):
        for key, value in wanted.items():
            initial = f'initial_{key}'
            if key.startswith('initial_'):
                continue
            if initial not in wanted:
                group[key] = value
                group.pop(initial, None)
            elif group.get(initial) != wanted[initial]:
                before = group.get(initial)
                group[key] = group[key] / before * wanted[initial] if before else value
                group[initial] = wanted[initial]


def restore_scheduler_options(scheduler: _ParamScheduler, options: Mapping[str, Any]) -> None:
    """Give a scheduler the options of ``scheduler_options``, and the initial values of the optimizer's groups.

    Args:
        scheduler: Has loaded a state; its optimizer has its options.
        options: Of the same scheduler, before it did.
    """
    vars(scheduler).update(options)
    name = scheduler.param_name
    scheduler.base_values = [group[f'initial_{name}'] for group in scheduler.optimizer.param_groups]
    scheduler._last_value = [group[name] for group in scheduler.optimizer.param_groups]
