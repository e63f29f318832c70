"""What a class takes: the names and simple types of its constructor's parameters."""

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Union

from mmengine.registry import Registry
from torch import nn

OPEN_BASES = (object, nn.Module)  # their constructors take anything, or nothing, and say neither


class Signature(typing.NamedTuple):
    """Parameters of a class or function, bases included as far as ``**kwargs`` passes them on.

    names:    in order
    complete: False where ``**kwargs`` ends nowhere, so that other names may be fine
    hints:    annotation by name, where it can be evaluated
    """

    names: tuple[str, ...]
    complete: bool
    hints: Mapping[str, Any]


def signature_of(target: Callable[..., Any]) -> Signature:
    """Return what ``target``, a class or a function, can be called with by keyword."""
    names: tuple[str, ...]
    if not inspect.isclass(target):
        names, is_open = _parameters(target)
        return Signature(names, not is_open, _hints(target))
    names, is_open = (), False
    hints: dict[str, Any] = {}
    for base in inspect.getmro(target):
        constructor = base.__dict__.get('__init__')
        if base in OPEN_BASES:
            return Signature(names, not is_open, hints)
        if constructor is None:
            continue
        own, is_open = _parameters(constructor, skip_first=True)
        names += tuple(name for name in own if name not in names)
        hints = {**_hints(constructor), **hints}
        if not is_open:
            return Signature(names, True, hints)
    return Signature(names, not is_open, hints)


def _parameters(function: Callable[..., Any], *, skip_first: bool = False) -> tuple[tuple[str, ...], bool]:
    try:
        parameters = list(inspect.signature(function).parameters.values())[int(skip_first) :]
    except (ValueError, TypeError):  # implemented in C without a signature
        return (), True
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


def matches(value: Any, hint: Any) -> bool:
    """Whether ``value`` can be meant by ``hint``; only plain types are judged, everything else passes."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return any(matches(value, argument) for argument in arguments)
    if origin is Literal:
        return value in arguments
    if hint is None or hint is type(None):
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str)
    if origin in (list, tuple, Sequence):
        return isinstance(value, Sequence) and not isinstance(value, str)
    return True


def describe(hint: Any) -> str:
    """Return a type as a reader would say it."""
    if hint is type(None):
        return 'None'
    if typing.get_origin(hint) in (Union, types.UnionType):
        return ' or '.join(describe(argument) for argument in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return ' or '.join(repr(argument) for argument in typing.get_args(hint))
    return getattr(hint, '__name__', str(hint)) if not typing.get_args(hint) else str(hint).replace('typing.', '')


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint that names the valid name most like ``name`` in any case, else all there are, if any."""
    names = sorted(set(valid))
    folded = {valid_name.casefold(): valid_name for valid_name in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{folded[close[0]]}'?"
    return f'use one of: {", ".join(names)}' if names else 'there is nothing to choose from: correct or remove it'


def registered(registry: Registry) -> list[str]:
    """Return the bare names that ``registry`` finds, its parents' included."""
    names: list[str] = []
    current: Registry | None = registry
    while current is not None:
        current.import_from_location()
        names += list(current.module_dict)
        current = current.parent
    return names
