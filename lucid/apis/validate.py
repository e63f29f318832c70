"""Refusing a config that says something nobody would read, before anything heavy starts."""

from collections.abc import Mapping, Set
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import Registry

from lucid.apis.outputs import folder_problem
from lucid.apis.signatures import describe, matches, nearest, registered, signature_of
from lucid.apis.slots import (
    ANYWHERE,
    AT_LEAST,
    DATALOADER_BUILT,
    DATALOADER_KEYS,
    DATALOADERS,
    DEFAULT_HOOKS,
    ELSEWHERE,
    HOOK_SLOT,
    INNER_SLOTS,
    MAPPINGS,
    POSITIVE,
    TOP_KEYS,
    TOP_SLOTS,
    Slot,
)
from lucid.models.detectors.parts import default_loss
from lucid.registry import HEADS

Path = tuple[str, ...]


class ConfigError(ValueError):
    """A config that cannot be meant; the message names file and key and ends with the remedy."""


def validate(cfg: Config) -> dict[Path, frozenset[str] | None]:
    """Check every key of a config against what reads it, and the plain values against their types.

    A class is asked for its signature; one that takes ``**kwargs`` is checked against its bases, and if these do not
    end them, logged as unchecked. Names that begin with an underscore are free variables at the top level.

    Args:
        cfg: The config, not changed.

    Returns:
        The keys that each dict of the config may have, by its path; None where they are not known.

    Raises:
        ConfigError: Everything that is wrong, one line each.
    """
    walk = _Walk()
    walk.top(cfg.to_dict())
    if walk.problems:
        where = cfg.filename or 'config'
        raise ConfigError('\n'.join(f'{where}: {problem}' for problem in walk.problems))
    for note in walk.unchecked:
        print_log(f'not checked: {note}', 'current')
    return walk.known


class _Walk:
    """One pass over a config. ``problems`` and ``unchecked`` are messages, ``known`` the valid keys by path."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.unchecked: list[str] = []
        self.known: dict[Path, frozenset[str] | None] = {}

    def top(self, cfg: Mapping[str, Any]) -> None:
        free = {key for key in cfg if key.startswith('_')}
        self._keys(cfg, (), 'the top level', TOP_KEYS, ignore=free)
        for key, value in cfg.items():
            if key in free or value is None:
                continue
            if key in TOP_SLOTS:
                self._values(value, (key,), TOP_SLOTS[key])
            elif key in DATALOADERS:
                self._dataloader(value, (key,))
            elif key == 'default_hooks' and self._is_dict(value, (key,)):
                self._keys(value, (key,), key, DEFAULT_HOOKS)
                for name, hook in value.items():
                    self._values(hook, (key, name), HOOK_SLOT)
            elif key in MAPPINGS:
                self._mapping(value, (key,))
            else:
                self._number(key, value, (key,))
        self._image_size(cfg.get('image_size'))
        if cfg.get('work_dir') is not None and (problem := folder_problem(cfg['work_dir'])):
            self.problems.append(f'work_dir is {cfg["work_dir"]!r}, but {problem}')
        if cfg.get('load_from') in ('', '.'):
            self.problems.append(f'load_from is {cfg["load_from"]!r}; name a checkpoint file, or set it to None')
        if cfg.get('launcher', 'none') not in ('none', 'pytorch'):
            self.problems.append(f"launcher is {cfg['launcher']!r}; use 'none' or 'pytorch'")

    def _image_size(self, size: Any) -> None:
        sides = size if isinstance(size, list | tuple) else (size,)
        if size is not None and not all(matches(side, int) and side > 0 and side % 32 == 0 for side in sides):
            self.problems.append(f'image_size is {size!r}; use a multiple of 32, or a height and a width')

    def _values(self, value: Any, path: Path, slot: Slot) -> None:
        """Check one dict to be built, or a list of them."""
        if isinstance(value, list | tuple):
            for i, item in enumerate(value):
                self._values(item, (*path, str(i)), slot)
        elif value is not None and self._is_dict(value, path):
            self._built(value, path, slot)

    def _built(self, node: Mapping[str, Any], path: Path, slot: Slot) -> None:
        name = node.get('type', slot.default)
        if not isinstance(name, str):
            valid = ', '.join(sorted(slot.registry.module_dict))
            self.problems.append(f'{_dotted(path)} has no type; add type= one of: {valid}')
            return
        target = _find(slot.registry, name)
        if target is None:
            meant = nearest(name, registered(slot.registry))
            self.problems.append(f'{_dotted(path)}.type is {name!r}, which no {slot.registry.name} is called; {meant}')
            return
        signature = signature_of(target)
        names = tuple(n for n in signature.names if n not in slot.given) + slot.more
        if signature.complete:
            self._keys(node, path, name, ('type', *names), ignore={'_scope_'})
        else:
            self.known[path] = None
            self.unchecked.append(f'the keys of {_dotted(path)}, because {name} takes any')
        for key, value in node.items():
            if key == 'type':
                continue
            self._inner(key, value, (*path, key), owner=node)
            hint = signature.hints.get(key)
            if hint is not None and not matches(value, hint):
                self.problems.append(f'{_dotted((*path, key))} is {value!r}; {name} takes {describe(hint)}')
            else:
                self._number(key, value, (*path, key))

    def _inner(self, key: str, value: Any, path: Path, *, owner: Mapping[str, Any]) -> None:
        """Check what a parameter of ``owner`` holds, if that is something to be built or has known keys."""
        slot = INNER_SLOTS.get(key) or (INNER_SLOTS['assigner'] if key.endswith('assigner') else None)
        if key == 'loss':
            slot = _loss_slot(owner.get('head'))
        if _dotted(path) in MAPPINGS:
            self._mapping(value, path)
        elif slot is not None and isinstance(value, dict | list | tuple):
            self._values(value, path, slot)
        elif isinstance(value, dict) and 'type' in value:
            self._values(value, path, Slot(next((r for r in ANYWHERE if _find(r, value['type'])), ANYWHERE[0])))
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                if isinstance(item, dict):
                    self._inner(key, item, (*path, str(i)), owner=owner)

    def _dataloader(self, node: Any, path: Path) -> None:
        if not self._is_dict(node, path):
            return
        self._keys(node, path, 'a data loader', DATALOADER_KEYS)
        if 'dataset' not in node:
            self.problems.append(f'{_dotted(path)} has no dataset; add dataset=dict(type=...)')
        for key, value in node.items():
            if key in DATALOADER_BUILT:
                self._values(value, (*path, key), INNER_SLOTS[key])
            else:
                self._number(key, value, (*path, key))

    def _mapping(self, node: Any, path: Path) -> None:
        if node is None or not self._is_dict(node, path):
            return
        self._keys(node, path, path[-1], MAPPINGS[_dotted(path)])
        for key, value in node.items():
            if f'{_dotted(path)}.{key}' in MAPPINGS:
                self._mapping(value, (*path, key))
            else:
                self._number(key, value, (*path, key))

    def _keys(
        self, node: Mapping[str, Any], path: Path, owner: str, names: tuple[str, ...], *, ignore: Set[str] = frozenset()
    ) -> None:
        self.known[path] = frozenset(names)
        for key in node:
            if key not in names and key not in ignore:
                dotted = _dotted((*path, key))
                meant = f"did you mean '{ELSEWHERE[key]}'?" if not path and key in ELSEWHERE else nearest(key, names)
                self.problems.append(f'{dotted} is no key of {owner}; {meant}')

    def _number(self, key: str, value: Any, path: Path) -> None:
        if value is None:
            return
        if key in AT_LEAST and not (matches(value, int) and value >= AT_LEAST[key]):
            least = AT_LEAST[key]
            self.problems.append(f'{_dotted(path)} is {value!r}; use a whole number of at least {least}')
        if key in POSITIVE and not (matches(value, float) and value > 0):
            self.problems.append(f'{_dotted(path)} is {value!r}; use a number above 0')

    def _is_dict(self, value: Any, path: Path) -> bool:
        if isinstance(value, dict):
            return True
        self.problems.append(f'{_dotted(path)} is {value!r}; use dict(...)')
        return False


def _loss_slot(head: Any) -> Slot:
    """The slot of a loss, whose type is that of the head's task where a config states none."""
    kind = head.get('type') if isinstance(head, Mapping) else None
    target = _find(HEADS, kind) if isinstance(kind, str) else None
    return INNER_SLOTS['loss']._replace(default=default_loss(getattr(target, 'task', None)))


def _dotted(path: Path) -> str:
    return '.'.join(path)


def _find(registry: Registry, name: str) -> Any:
    """Return what ``name`` stands for in ``registry``, or None."""
    try:
        return registry.get(name)
    except RuntimeError:  # mmengine's word for "not found"
        return None
