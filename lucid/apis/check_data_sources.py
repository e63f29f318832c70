"""Which data sets a config or a folder means, and where results about them may be written."""

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config

from lucid.apis.build import complete, load_config
from lucid.apis.outputs import file_problem, folder_problem
from lucid.apis.signatures import signature_of
from lucid.apis.validate import ConfigError
from lucid.datasets.problems import REPORT
from lucid.datasets.yolo_file import SUFFIXES
from lucid.models.data_preprocessors import DetDataPreprocessor
from lucid.registry import DATASETS

SPLITS = ('train', 'val', 'test')
FOLDER_DATASET = 'FolderDataset'
"""What ``configs/yolo/detect_n_folder.py`` reads a folder with."""
DEFAULT_SIDE = 640


class Source(NamedTuple):
    """A data set to be checked.

    split:    train, val or test; with a number where the config joins several
    dataset:  its config, set to report what is bad instead of refusing it
    policy:   the ``on_bad`` that it trains with
    optional: whether it is only looked for, and need not be there
    """

    split: str
    dataset: dict[str, Any]
    policy: str
    optional: bool = False

    @property
    def root(self) -> Path:
        """Folder of the data set."""
        path = Path(self.dataset['data_root']).expanduser()
        return path.parent if path.is_file() else path


class Sources(NamedTuple):
    """What a config or a folder leads to; ``capacity`` are the numbers of boxes that targets are padded to."""

    name: str
    splits: list[Source]
    capacity: tuple[int, ...]


def find_sources(
    target: str | Path,
    *,
    image_size: int | Sequence[int] | None = None,
    targets: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Sources:
    """The data sets of a config's train, val and test loaders, or those of a folder.

    Args:
        target: A config file, or the folder or ``data.yaml`` of a data set, which is taken as
            ``configs/yolo/detect_n_folder.py`` takes it.
        image_size: Side, or height and width, of the network input; None takes the config's, else 640.
        targets: Kinds to read; for a folder only.
        options: What ``--cfg-options`` gives; for a config only.

    Returns:
        At least one data set; no file of it has been read.

    Raises:
        ConfigError: The target is neither, or names nothing that can be checked.
    """
    path = Path(target).expanduser()
    capacity = tuple(signature(DetDataPreprocessor).parameters['capacity'].default)
    if path.is_dir() or (path.is_file() and path.suffix.lower() in SUFFIXES):
        if options:
            raise ConfigError(f'{target} is no config, so it has no options; give a config file, or no --cfg-options')
        size = DEFAULT_SIDE if image_size is None else image_size
        given: dict[str, Any] = {'type': FOLDER_DATASET, 'data_root': str(path), 'image_size': size, 'on_bad': REPORT}
        if targets is not None:
            given['targets'] = [*targets]
        splits = [Source(split, {**given, 'split': split}, 'error', split == 'test') for split in SPLITS]
        folder = path if path.is_dir() else path.parent
        return Sources(folder.resolve().name or 'data', splits, capacity)
    if not path.exists() and path.suffix != '.py':
        raise ConfigError(f'{target} does not exist; give the folder of a data set, or a config file')
    if targets is not None:
        raise ConfigError(f'{target} is a config, which states targets of its own; leave out --targets')
    cfg = complete(load_config(path, options))
    splits = []
    for split in SPLITS:
        loader = cfg.get(f'{split}_dataloader')
        if loader is not None:
            parts = _leaves(loader['dataset'])
            names = [split] if len(parts) == 1 else [f'{split}_{number}' for number in range(len(parts))]
            splits += [_source(cfg, name, part, image_size) for name, part in zip(names, parts, strict=True)]
    if not splits:
        raise ConfigError(f'{path}: there is no train_dataloader and no val_dataloader, which this needs; add one')
    stated = ((cfg.get('model') or {}).get('data_preprocessor') or {}).get('capacity')
    return Sources(path.stem, splits, tuple(stated or capacity))


def check_outputs(sources: Sources, out: Path, json_file: Path | None) -> None:
    """Refuse results that would lie inside a data set, or cannot be written.

    Args:
        sources: Data sets.
        out: Folder of the results.
        json_file: A further file, if any.

    Raises:
        ConfigError: Names the data set.
    """
    for place in filter(None, (out, json_file)):
        problem = folder_problem(place) if place is out else file_problem(place)
        if problem:
            raise ConfigError(f'results cannot go to {place}: {problem}')
        for source in sources.splits:
            check_outside(place, [source.root])


def check_outside(place: Path, folders: Sequence[Path]) -> None:
    """Raise ``ConfigError`` where results would be written into one of the folders of a data set."""
    resolved = place.expanduser().resolve()
    for folder in folders:
        if resolved.is_relative_to(folder.resolve()):
            raise ConfigError(
                f'results would go to {place}, inside the data set {folder}, which is never written to; '
                'choose another folder with --out, and another file with --json'
            )


def _source(cfg: Config, split: str, dataset: dict[str, Any], image_size: int | Sequence[int] | None) -> Source:
    takes = signature_of(DATASETS.get(dataset['type'])).names
    missing = {'on_bad', 'data_root', 'split'} - set(takes)
    if missing:
        raise ConfigError(
            f'{cfg.filename}: {dataset["type"]} of {split} takes no {", ".join(sorted(missing))}, so its data cannot '
            'be checked; check its files by a data set of lucid'
        )
    if 'data_root' not in dataset:
        raise ConfigError(f'{cfg.filename}: there is no data_root; set it, or {split}_dataloader.dataset.data_root')
    changed = {**dataset, 'on_bad': REPORT, 'pipeline': [], 'cache_mb': 0}
    changed = {key: value for key, value in changed.items() if key in takes or key == 'type'}
    if image_size is not None or 'image_size' not in changed:
        changed['image_size'] = image_size or DEFAULT_SIDE
    return Source(split, changed, dataset.get('on_bad', 'error'))


def _leaves(dataset: dict[str, Any]) -> list[dict[str, Any]]:
    """The data sets that others wrap; itself where it wraps none."""
    inner = [item for item in (dataset.get('dataset'), *(dataset.get('datasets') or ())) if isinstance(item, dict)]
    return [leaf for item in inner for leaf in _leaves(item)] if inner else [dict(dataset)]
