"""Guards: the module state that a recording baked in, kept flat so that checking it walks no modules."""

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter, is_, itemgetter
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from lucid.capture.compiling import SLOT

SCALARS = (bool, int, float, str, type(None))
# Their attributes are the geometry of the weights that they hold; nobody changes them on a live module.
_STRUCTURAL = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.Sequential, nn.ModuleList, nn.ModuleDict)
_HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')

_address = Tensor.data_ptr
_requires_grad: Callable[[Tensor], bool] = attrgetter('requires_grad')
_training: Callable[[dict[str, Any]], bool] = itemgetter('training')
_entry, _get = dict.__getitem__, dict.get


class Guards:
    """A flat snapshot of a module tree: addresses, identities, flags, plain attributes and hooks.

    Everything is one list per kind, compared by C-level iteration: a few tenths of a millisecond for the 551 modules of
    scale n, more with cold caches (docs/records/2026-11-30-capture.md). Values of parameters and buffers are no guards:
    an optimizer, a plain ``load_state_dict`` and an EMA swap in place may change them.
    """

    def __init__(self, module: nn.Module) -> None:
        modules = list(module.named_modules())
        self._dicts = [vars(m) for _, m in modules]
        self._paths = [path for path, _ in modules]
        self._training = list(map(_training, self._dicts))
        self._children = self._dicts[1:]  # the target's own slot is the region's
        self._slots = list(map(_get, self._children, repeat(SLOT)))
        self._hook_dicts = [vars(m)[kind] for _, m in modules for kind in _HOOKS]
        # Who holds what: (dictionary, key) must still lead to the same object.
        entries = [
            (holder, key, value, _join(path, key))
            for path, m in modules
            for holder in (m._parameters, m._buffers, m._modules)
            for key, value in holder.items()
        ]
        # A tensor in a plain attribute (a cached grid) is read by address too.
        entries += [
            (vars(m), key, value, _join(path, key))
            for path, m in modules
            for key, value in vars(m).items()
            if isinstance(value, Tensor)
        ]
        self._holders, self._keys = [e[0] for e in entries], [e[1] for e in entries]
        self._objects, self._names = [e[2] for e in entries], [e[3] for e in entries]
        # Empty tables stay unwatched, but for the target's own: what was registered nowhere is called by nobody.
        tables = [holder for _, m in modules for holder in (m._parameters, m._buffers, m._modules)]
        self._tables = tables[:3] + [holder for holder in tables[3:] if holder]
        self._lengths = list(map(len, self._tables))
        self._tensors = [value for value in self._objects if isinstance(value, Tensor)]
        self._tensor_names = [n for n, v in zip(self._names, self._objects, strict=True) if isinstance(v, Tensor)]
        self._addresses = list(map(_address, self._tensors))
        self._trainable = list(module.parameters())
        self._trainable_names = [name for name, _ in module.named_parameters()]
        self._flags = list(map(_requires_grad, self._trainable))
        plain = [
            (vars(m), key, value, _join(path, key))
            for path, m in modules
            if type(m) not in _STRUCTURAL
            for key, value in vars(m).items()
            if isinstance(value, SCALARS) and key not in ('training', SLOT)
        ]
        # What a helper that is no module holds, such as an assigner of a loss.
        plain += [
            (vars(helper), key, value, _join(_join(path, name), key))
            for path, m in modules
            for name, helper in vars(m).items()
            if _is_helper(name, helper)
            for key, value in vars(helper).items()
            if isinstance(value, SCALARS)
        ]
        # Copies: who changes a list changes it in place.
        plain += [
            (vars(m), key, copy.deepcopy(value), _join(path, key))
            for path, m in modules
            if type(m) not in _STRUCTURAL
            for key, value in vars(m).items()
            if not key.startswith('_') and _is_plain(value)
        ]
        self._sizes = list(map(len, self._dicts))
        self._plain_dicts, self._plain_keys = [p[0] for p in plain], [p[1] for p in plain]
        self._plain_values, self._plain_names = [p[2] for p in plain], [p[3] for p in plain]

    def hooked(self) -> str | None:
        """The first module with a hook, which a replay would not run; None if there is none."""
        if any(self._hook_dicts):
            for i, hooks in enumerate(self._hook_dicts):
                if hooks:
                    return f'{_HOOKS[i % 4].strip("_")} on {self._paths[i // 4] or "the target"}'
        if (
            torch_module._global_forward_hooks
            or torch_module._global_forward_pre_hooks
            or torch_module._global_backward_hooks
            or torch_module._global_backward_pre_hooks
        ):
            return 'a global module hook'
        return None

    def changed(self) -> str | None:
        """What no longer is as recorded, or None."""
        try:
            held = all(map(is_, map(_entry, self._holders, self._keys), self._objects))
            plain = list(map(_entry, self._plain_dicts, self._plain_keys))
        except KeyError as error:
            return f'{error.args[0]} was removed'
        if not held or list(map(len, self._tables)) != self._lengths:
            return self._name_swapped()
        if list(map(_address, self._tensors)) != self._addresses:
            return _differs('the memory of', self._tensor_names, map(_address, self._tensors), self._addresses)
        if list(map(_requires_grad, self._trainable)) != self._flags:
            flags = map(_requires_grad, self._trainable)
            return _differs('requires_grad of', self._trainable_names, flags, self._flags)
        if list(map(_training, self._dicts)) != self._training:
            return _differs('the training flag of', self._paths, map(_training, self._dicts), self._training)
        if plain != self._plain_values:
            return _differs('the attribute', self._plain_names, plain, self._plain_values)
        if list(map(len, self._dicts)) != self._sizes:
            return _differs('the number of attributes of', self._paths, map(len, self._dicts), self._sizes)
        if list(map(_get, self._children, repeat(SLOT))) != self._slots:
            return 'a submodule was compiled'
        return None

    def _name_swapped(self) -> str:
        for holder, key, value, name in zip(self._holders, self._keys, self._objects, self._names, strict=True):
            if holder[key] is not value:
                return f'{name} is another object'
        return 'a parameter, buffer or submodule was added'


def _is_plain(value: object) -> bool:
    """Whether it is a container of scalars alone."""
    if isinstance(value, dict):
        return all(isinstance(item, SCALARS) or _is_plain(item) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return all(isinstance(item, SCALARS) or _is_plain(item) for item in value)
    return False


def _is_helper(name: str, value: object) -> bool:
    """Whether an attribute is an object with attributes of its own that no other guard looks at."""
    known = (nn.Module, Tensor, type, FunctionType, MethodType, ModuleType)
    return not name.startswith('_') and hasattr(value, '__dict__') and not isinstance(value, known)


def _join(path: str, name: str) -> str:
    return f'{path}.{name}' if path else name


def _differs(what: str, names: Sequence[str], now: Iterable[Any], then: Iterable[Any]) -> str:
    changed = [name or 'the target' for name, a, b in zip(names, now, then, strict=True) if a != b]
    more = f' and {len(changed) - 1} more' if len(changed) > 1 else ''
    return f'{what} {changed[0]}{more} changed' if changed else f'{what} the target changed'
