"""``data.yaml``: the classes of a data set in the YOLO layout, and where the images of its splits lie."""

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import yaml
from torchvision.datasets.folder import IMG_EXTENSIONS

NAME = 'data.yaml'
SUFFIXES = ('.yaml', '.yml')
ALIASES = {'val': ('val', 'valid')}
"""Keys under which exporters write a split."""


class YoloFile(NamedTuple):
    """What ``data.yaml`` says: label i is named ``names[i]``; ``content`` is the file's top level."""

    path: Path
    names: tuple[str, ...]
    content: Mapping[str, Any]


class YoloImage(NamedTuple):
    """An image and the file of its labels; neither need exist."""

    image: Path
    label: Path


class YoloSplit(NamedTuple):
    """The images of a split in their order; ``folders`` are those that were searched, none for lists of images."""

    images: list[YoloImage]
    folders: list[Path]


def find_yolo_file(data_root: Path) -> Path | None:
    """The file that describes a data set in the YOLO layout.

    Args:
        data_root: Its folder, or the file itself.

    Returns:
        The file given, else ``data.yaml`` in the folder, else the only YAML file there that names classes; None where
        there is none.

    Raises:
        ValueError: Several name classes, and none is called ``data.yaml``.
    """
    if data_root.suffix.lower() in SUFFIXES and data_root.is_file():
        return data_root
    if (data_root / NAME).is_file():
        return data_root / NAME
    if not data_root.is_dir():
        return None
    files = sorted(file for file in data_root.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
    found = [file for file in files if 'names' in _content(file)]
    if len(found) > 1:
        listed = ', '.join(file.name for file in found)
        raise ValueError(
            f'{data_root} has several files that name classes: {listed}; give the path of one as data_root'
        )
    return found[0] if found else None


def read_yolo_file(path: Path) -> YoloFile:
    """Read and check ``data.yaml``.

    Args:
        path: The file.

    Returns:
        Its classes and its content.

    Raises:
        ValueError: It is no YAML mapping, its names are neither a list nor numbered 0 to K-1, or ``nc`` disagrees.
    """
    try:
        content = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ValueError(f'{path} cannot be read ({error.strerror}); correct data_root') from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise ValueError(f'{path} is no YAML ({" ".join(str(error).split())}); correct it') from error
    if not isinstance(content, dict):
        raise ValueError(f'{path} holds no mapping; write names, train and val into it')
    names = _names(path, content.get('names'))
    stated = content.get('nc', len(names))
    if stated != len(names) or isinstance(stated, bool):
        raise ValueError(f'{path}: nc is {stated!r}, but names lists {len(names)} classes; make them agree')
    return YoloFile(path, names, content)


def find_yolo_images(file: YoloFile, split: str) -> YoloSplit:
    """The images of a split, sorted by path inside each folder, in the order of each list.

    A folder or list is looked for relative to ``data.yaml``; where it is not there, without leading ``..``, and then
    relative to ``path``. Labels of ``images/a.jpg`` are in ``labels/a.txt``: the last folder called ``images`` makes
    way for one called ``labels``; where there is none, they lie beside their image.

    Args:
        file: What ``data.yaml`` says.
        split: A key of it; ``val`` may be called ``valid`` there.

    Returns:
        The images.

    Raises:
        ValueError: The split is not stated, its folder does not exist or could be two, or there is no image.
    """
    keys = [key for key in ALIASES.get(split, (split,)) if file.content.get(key)]
    if len(keys) != 1:
        stated = [key for key in ('train', 'val', 'valid', 'test') if file.content.get(key)]
        raise ValueError(
            f'{file.path} states {"both " + " and ".join(keys) if keys else f"no {split!r}"} '
            f'(it has {", ".join(stated) or "no split"}); state one folder of images, or set split'
        )
    value = file.content[keys[0]]
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f'{file.path}: {keys[0]} is {value!r}; write a folder, a .txt list of images, or several')
    images: list[YoloImage] = []
    folders: list[Path] = []
    for entry in entries:
        place = _place(file, keys[0], entry)
        if place.is_dir():
            folders.append(place)
            found = sorted(path for path in place.rglob('*') if path.suffix.lower() in IMG_EXTENSIONS)
        else:
            found = _listed(place)
        images += [YoloImage(path, label_of(path, file.path.parent)) for path in found]
    if not images:
        raise ValueError(f'{file.path}: {keys[0]} leads to {value!r}, where there is no image; correct it')
    return YoloSplit(images, folders)


def label_of(image: Path, root: Path) -> Path:
    """The label file of an image.

    Args:
        image: Its path.
        root: Folder of the data set: a folder called ``images`` above it stands for nothing.

    Returns:
        A path that need not exist.
    """
    head, tail = (root, image.relative_to(root)) if image.is_relative_to(root) else (Path(), image)
    parts = list(tail.parts)
    for position in reversed(range(len(parts) - 1)):
        if parts[position] == 'images':
            parts[position] = 'labels'
            break
    return head.joinpath(*parts).with_suffix('.txt')


def _place(file: YoloFile, key: str, entry: str) -> Path:
    """The existing folder or list that an entry of a split means."""
    root, stated = file.path.parent, Path(entry)
    inner = PurePath(*[part for part in stated.parts if part != '..']) if '..' in stated.parts[:1] else stated
    looked_for = [root / stated, root / inner]
    found = next((place for place in looked_for if place.exists()), None)
    base = file.content.get('path')
    if isinstance(base, str):
        other = root / Path(base).expanduser() / stated
        looked_for.append(other)
        if found is not None and other.exists() and not other.samefile(found):
            raise ValueError(
                f'{file.path}: {key} could be {found} or, by its path {base!r}, {other}; remove path from the file'
            )
        found = found or (other if other.exists() else None)
    if found is None:
        listed = ', '.join(map(str, dict.fromkeys(looked_for)))
        raise ValueError(f'{file.path}: {key} is {entry!r}, which does not exist; looked for {listed}; correct {key}')
    return found


def _listed(place: Path) -> list[Path]:
    """The images of a list, whose lines are relative to it."""
    try:
        lines = [line.strip() for line in place.read_text(encoding='utf-8-sig').splitlines()]
    except (OSError, UnicodeError) as error:
        raise ValueError(f'{place} is no list of images ({error}); write one path a line') from error
    return [place.parent / line for line in lines if line]


def _names(path: Path, names: Any) -> tuple[str, ...]:
    if isinstance(names, dict):
        numbered = {int(key) if str(key).isdecimal() else key: name for key, name in names.items()}
        if set(numbered) != set(range(len(names))):
            raise ValueError(f'{path}: names has the keys {list(names)[:10]}; number them 0 to {len(names) - 1}')
        names = [numbered[number] for number in range(len(numbered))]
    if not isinstance(names, list) or not names:
        raise ValueError(f'{path}: names is {names!r:.80}; list the classes, or number them from 0')
    # YAML reads a bare yes, no, on or off as a truth value.
    if wrong := [name for name in names if isinstance(name, bool) or not isinstance(name, str | int | float)]:
        raise ValueError(f'{path}: names has {wrong[0]!r:.40}, which is no text; put it in quotes')
    return tuple(map(str, names))


def _content(path: Path) -> Mapping[str, Any]:
    """The top level of a YAML file, empty where it is none: it may be no concern of ours."""
    try:
        content = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError, UnicodeError):
        return {}
    return content if isinstance(content, dict) else {}
