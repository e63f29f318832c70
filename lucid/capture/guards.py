"""Guards: the module state that a recording baked in, kept flat so that checking it walks no modules."""

import copy
import gc
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter, is_, itemgetter
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

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
_entry, _get, _has = dict.__getitem__, dict.get, dict.__contains__


class Guards:
    """A flat snapshot of a module tree: addresses, identities, flags, plain attributes and hooks.

    Everything is one list per kind, compared by C-level iteration: a few tenths of a millisecond for the 551 modules of
    scale n, more with cold caches (docs/records). What it costs is memory that it reads, not Python: every module and
    tensor is looked at once. Values of parameters and buffers are no guards: an optimizer, a plain ``load_state_dict``
    and an EMA swap in place may change them.
    """

    def __init__(self, module: nn.Module) -> None:
        modules = list(module.named_modules())
        self._dicts = [vars(m) for _, m in modules]
        self._paths = [path for path, _ in modules]
        self._training = list(map(_training, self._dicts))
        children = self._dicts[1:]  # the target's own slot is the region's
        self._free = [child for child in children if SLOT not in child]
        self._taken = [child for child in children if SLOT in child]
        self._slots = list(map(_get, self._taken, repeat(SLOT)))
        self._hook_dicts = [vars(m)[kind] for _, m in modules for kind in _HOOKS]
        # Who holds what. Empty tables stay unwatched, but for the target's own: what was registered nowhere is called
        # by nobody. Compared with copies, which tells a name that is missing or new, and object by object.
        tables = [holder for _, m in modules for holder in (m._parameters, m._buffers, m._modules)]
        self._tables = tables[:3] + [holder for holder in tables[3:] if holder]
        self._copies = list(map(dict, self._tables))
        self._values = gc.get_referents(*self._tables)  # all that they hold, in order, at the price of a list
        entries = [
            _Entry(holder, key, value, _join(path, key))
            for path, m in modules
            for holder in (m._parameters, m._buffers, m._modules)
            for key, value in holder.items()
        ]
        # A tensor in a plain attribute (a cached grid) is read by address too.
        attributes = [
            _Entry(vars(m), key, value, _join(path, key))
            for path, m in modules
            for key, value in vars(m).items()
            if isinstance(value, Tensor)
        ]
        self._entries = entries + attributes
        self._holders, self._keys, self._objects, _ = _columns(attributes)
        found = [entry for entry in self._entries if isinstance(entry.value, Tensor)]
        self._tensors, self._tensor_names = [entry.value for entry in found], [entry.name for entry in found]
        self._addresses = list(map(_address, self._tensors))
        self._trainable = list(module.parameters())
        self._trainable_names = [name for name, _ in module.named_parameters()]
        self._flags = list(map(_requires_grad, self._trainable))
        watched = [(path, m) for path, m in modules if type(m) not in _STRUCTURAL]
        plain = [
            _Entry(vars(m), key, value, _join(path, key))
            for path, m in watched
            for key, value in vars(m).items()
            if isinstance(value, SCALARS) and key not in ('training', SLOT)
        ]
        # What a helper that is no module holds, such as an assigner of a loss.
        plain += [
            _Entry(vars(helper), key, value, _join(_join(path, name), key))
            for path, m in modules
            for name, helper in vars(m).items()
            if _is_helper(name, helper)
            for key, value in vars(helper).items()
            if isinstance(value, SCALARS)
        ]
        # Copies: who changes a list changes it in place.
        plain += [
            _Entry(vars(m), key, copy.deepcopy(value), _join(path, key))
            for path, m in watched
            for key, value in vars(m).items()
            if not key.startswith('_') and _is_plain(value)
        ]
        self._sizes = list(map(len, self._dicts))
        self._plain_dicts, self._plain_keys, self._plain_values, self._plain_names = _columns(plain)

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
        if not self._held():
            return self._name_swapped()
        if list(map(_address, self._tensors)) != self._addresses:
            return _differs('the memory of', self._tensor_names, map(_address, self._tensors), self._addresses)
        if list(map(_requires_grad, self._trainable)) != self._flags:
            flags = map(_requires_grad, self._trainable)
            return _differs('requires_grad of', self._trainable_names, flags, self._flags)
        if list(map(_training, self._dicts)) != self._training:
            return _differs('the training flag of', self._paths, map(_training, self._dicts), self._training)
        try:
            plain = list(map(_entry, self._plain_dicts, self._plain_keys))
        except KeyError as error:
            return f'{error.args[0]} was removed'
        if plain != self._plain_values:
            return _differs('the attribute', self._plain_names, plain, self._plain_values)
        if list(map(len, self._dicts)) != self._sizes:
            return _differs('the number of attributes of', self._paths, map(len, self._dicts), self._sizes)
        if any(map(_has, self._free, repeat(SLOT))) or list(map(_get, self._taken, repeat(SLOT))) != self._slots:
            return 'a submodule was compiled'
        return None

    def _held(self) -> bool:
        """Whether the modules hold the same parameters, buffers and submodules as ever, in order, and no others."""
        try:
            if self._tables != self._copies:
                return False
            attributes = list(map(_entry, self._holders, self._keys))
        except (KeyError, RuntimeError, TypeError, ValueError):  # two tensors that differ have no truth value
            return False
        values = gc.get_referents(*self._tables)  # another object may have compared equal
        same = len(values) == len(self._values) and all(map(is_, values, self._values))
        return same and all(map(is_, attributes, self._objects))

    def _name_swapped(self) -> str:
        for holder, key, value, name in self._entries:
            if key not in holder:
                return f'{name} was removed'
            if holder[key] is not value:
                return f'{name} is another object'
        if list(map(len, self._tables)) == list(map(len, self._copies)):
            return 'the order of parameters, buffers or submodules changed'
        return 'a parameter, buffer or submodule was added'


class _Entry(NamedTuple):
    """A value that a dictionary must still hold under a key, and what to call it."""

    holder: dict[str, Any]
    key: str
    value: Any
    name: str


def _columns(entries: Sequence[_Entry]) -> tuple[list[dict[str, Any]], list[str], list[Any], list[str]]:
    """The entries as a list per field."""
    return [e.holder for e in entries], [e.key for e in entries], [e.value for e in entries], [e.name for e in entries]


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
