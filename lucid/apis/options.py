"""``--cfg-options``: changing a loaded config from the command line."""

import argparse
import ast
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.config import Config

from lucid.apis.signatures import nearest
from lucid.apis.slots import ELSEWHERE
from lucid.apis.validate import ConfigError, Path, validate

WORDS: Mapping[str, Any] = {'true': True, 'false': False, 'none': None}


class OptionsAction(argparse.Action):
    """Reads ``KEY=VALUE ...`` into a dict by dotted key; given again, it adds to it.

    A value is a Python literal, or a bool or None in any case; everything else is text, kept letter by letter, so that
    paths may hold spaces, commas and equals signs.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Add the pairs to what the namespace has."""
        options = dict(getattr(namespace, self.dest) or {})
        for text in [values] if isinstance(values, str) else values or ():
            key, equals, value = text.partition('=')
            if not key or not equals:
                parser.error(f'{option_string} {text}: give KEY=VALUE, in quotes where it holds spaces')
            options[key] = parse_value(value)
        setattr(namespace, self.dest, options)


def add_cfg_options(parser: argparse.ArgumentParser) -> None:
    """Give a tool's parser ``--cfg-options``; the parsed namespace has ``cfg_options``, empty where none are given."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=OptionsAction,
        default={},
        metavar='KEY=VALUE',
        help='change keys of the config',
    )


def parse_value(text: str) -> Any:
    """The value that a command line's text stands for; the text itself where it is no literal."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def apply_options(cfg: Config, options: Mapping[str, Any]) -> Config:
    """Merge options into a config; each must change an existing path or a declared parameter.

    Args:
        cfg: A valid config, not changed.
        options: Values by dotted key; a number selects from a list. What names a ``type`` comes first, so that others
            may be parameters of that.

    Returns:
        A changed copy.

    Raises:
        ConfigError: An option changes nothing that anybody reads.
    """
    types = {key: value for key, value in options.items() if key.endswith('.type')}
    if types and len(types) < len(options):
        cfg = apply_options(cfg, types)
        options = {key: value for key, value in options.items() if key not in types}
    known = validate(cfg)
    plain = cfg.to_dict()
    for key in options:
        _check(key, plain, known, cfg.filename or 'config')
    changed = Config(plain, filename=cfg.filename)
    for key, value in options.items():
        try:
            changed.merge_from_dict({key: value})
        except (TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f'--cfg-options {key}={value}: {error}; give a value of the kind that is there') from None
    validate(changed)
    return changed


def _check(key: str, cfg: Mapping[str, Any], known: Mapping[Path, frozenset[str] | None], file: str) -> None:
    parts = tuple(key.split('.'))
    if parts[0].startswith('_'):
        raise ConfigError(
            f'--cfg-options {key}: names that begin with an underscore were used while {file} was read, so changing '
            'one now would change nothing; change the keys that it fills'
        )
    node: Any = cfg
    for i, part in enumerate(parts):
        if isinstance(node, list | tuple):
            if not (part.isdigit() and int(part) < len(node)):
                where = '.'.join(parts[:i])
                raise ConfigError(
                    f'--cfg-options {key}: {where} in {file} is a list; select from it by 0..{len(node) - 1}'
                )
            node = node[int(part)]
        elif isinstance(node, Mapping) and part in node:
            node = node[part]
        else:
            _check_declared(key, parts[:i], part, node, known, file)
            return


def _check_declared(
    key: str, path: Path, part: str, node: Any, known: Mapping[Path, frozenset[str] | None], file: str
) -> None:
    """Raise unless ``part`` is a declared parameter of what stands at ``path``; what is below it is validated later."""
    place = '.'.join(path) or 'the top level'
    if node is not None and not isinstance(node, Mapping):
        raise ConfigError(f'--cfg-options {key}: {place} in {file} is {node!r}, which has no {part}; shorten the key')
    names = known.get(path)
    if names is None:
        raise ConfigError(
            f'--cfg-options {key}: {file} states no {part} in {place}, and its keys are not known; add it to the file'
        )
    if part not in names:
        present = set(node) if isinstance(node, Mapping) else set()
        known_there = names | present
        meant = f"did you mean '{ELSEWHERE[part]}'?" if not path and part in ELSEWHERE else nearest(part, known_there)
        raise ConfigError(f'--cfg-options {key}: {part} is no key of {place} in {file}; {meant}')
