"""COCO instances JSON: the parts of a file, and its categories."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

PARTS = ('images', 'annotations', 'categories')
MOST = 2**63 - 1
"""Ids are kept as int64."""


class Category(NamedTuple):
    """One category of a file; ``keypoints`` are names, none where it has none."""

    id: int
    name: str
    keypoints: tuple[str, ...]


def read_coco_json(path: Path) -> dict[str, Any]:
    """The content of a file that has the lists ``images``, ``annotations`` and ``categories``; their entries unchecked.

    Args:
        path: COCO instances JSON.

    Returns:
        The file's top level.

    Raises:
        ValueError: The file is missing, is no JSON, or lacks one of the lists.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f'annotation file {path} cannot be read ({error.strerror}); correct ann_file') from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f'annotation file {path} is no JSON ({error}); write it again') from error
    for part in PARTS:
        if not isinstance(content, dict) or not isinstance(content.get(part), list):
            raise ValueError(f'annotation file {path} has no list {part!r}; give COCO instances JSON')
    return content


def read_categories(path: Path, entries: Sequence[Any]) -> list[Category]:
    """The entries of ``categories`` by ascending id.

    Args:
        path: For the message.
        entries: As the file has them.

    Returns:
        Checked, each with an id of its own.

    Raises:
        ValueError: An entry is malformed, or an id occurs twice.
    """
    categories = []
    for position, entry in enumerate(entries):
        try:
            categories.append(Category(whole_number(entry['id']), str(entry['name']), _names(entry.get('keypoints'))))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f'{path}: category at position {position} needs a whole-number id, a name and, if any, a list of '
                f'keypoint names ({type(error).__name__}: {error}); correct it'
            ) from error
    categories.sort()
    ids = [category.id for category in categories]
    if len(set(ids)) < len(ids):
        raise ValueError(f'{path}: categories have the ids {ids}; give each its own id')
    return categories


def whole_number(value: Any) -> int:
    """An id or a size as int; one written as 3.0 too.

    Args:
        value: What the file has.

    Returns:
        The number.

    Raises:
        ValueError: It is no number, has a fraction, is not finite, or does not fit 64 bits.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST or value != int(value):
        raise ValueError(f'{value!r:.40} is no whole number of 64 bits')
    return int(value)


def _names(values: Any) -> tuple[str, ...]:
    if values is not None and not (isinstance(values, list) and all(isinstance(name, str) for name in values)):
        raise TypeError(f'keypoints are {values!r:.80}')
    return tuple(values or ())
