"""Pictures of the samples that training sees, with their targets, and of how they came about."""

import inspect
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.registry import init_default_scope
from rich.console import Console
from rich.progress import track

from lucid.apis.build import complete
from lucid.apis.data import build_dataloader, build_dataset
from lucid.apis.outputs import folder_problem
from lucid.apis.validate import ConfigError, validate
from lucid.datasets import Sample, SampleKey
from lucid.registry import SCOPE
from lucid.visualization import DetectionPainter, grid

View = Literal['sample', 'compare', 'steps']
ON_A_SHEET: Mapping[View, int] = {'sample': 16, 'compare': 8, 'steps': 6}
COLUMNS: Mapping[View, int | None] = {'sample': None, 'compare': 2, 'steps': 1}
SIDE = 640
"""Pixels of a picture's longer side where it is alone in its file."""


class Step(NamedTuple):
    """A sample after one transform, named by its class; ``changed`` is False where the transform left it alone."""

    name: str
    sample: Sample
    changed: bool


def browse(
    cfg: Config,
    *,
    out: str | Path | None = None,
    split: Literal['train', 'val', 'test'] = 'train',
    epoch: int = 1,
    indices: Sequence[int] | None = None,
    number: int = 16,
    in_order: bool = False,
    view: View = 'sample',
    sheet: bool = False,
    side: int | None = None,
    console: Console | None = None,
) -> list[Path]:
    """Draw samples of a config's data set with all targets that it loads, as PNG files in a folder.

    A training sample is the one that a run of this config gets for that image in that epoch, whatever its workers.

    Args:
        cfg: What ``load_config`` returned, not changed.
        out: Folder, made where it does not exist; None is ``work_dirs/browse/<name of the config>``.
        split: Whose data loader.
        epoch: As the log counts them, from 1; for training only.
        indices: Places in the data set; None takes the first ``number``.
        number: How many, where ``indices`` is None.
        in_order: Take the first ``number`` as the sampler of the training yields them in that epoch.
        view: ``'sample'`` draws what the pipeline gives, ``'compare'`` the image of the file with its targets beside
            it, ``'steps'`` also what each transform makes of it.
        sheet: Several samples in one picture.
        side: Pixels of a panel's longer side; None chooses one.
        console: Where the progress goes; None is the standard output.

    Returns:
        The files, in order.

    Raises:
        ConfigError: The config or its data are unusable, a number is out of range, or ``out`` is in the data set.
    """
    validate(cfg)
    cfg, console = complete(cfg), console or Console()
    out = Path(out or Path('work_dirs', 'browse', Path(cfg.filename or 'config').stem))
    loader = cfg.get(f'{split}_dataloader')
    if loader is None:
        raise ConfigError(f'{cfg.filename}: there is no {split}_dataloader; choose another split')
    if number < 1 or (side is not None and side < 32):
        raise ConfigError(f'number={number}, side={side}: give at least 1 image and 32 pixels')
    if problem := folder_problem(out):
        raise ConfigError(f'pictures cannot go to {out}: {problem}')
    init_default_scope(SCOPE)
    dataset: Any = build_dataset(loader['dataset'])
    if not all(hasattr(dataset, name) for name in ('read', 'pipeline', 'files')):
        raise ConfigError(
            f'{split}_dataloader.dataset: {type(dataset).__name__} does not show its images and its pipeline; '
            'browse the data sets in it, one by one'
        )
    _refuse_inside(out, dataset, loader['dataset'])
    keys = _keys(cfg, dataset, split=split, epoch=epoch, indices=indices, number=number, in_order=in_order)

    painter = DetectionPainter(side=side or (None if sheet or view == 'steps' else SIDE))
    when = f'epoch{epoch}_' if split == 'train' else ''
    classes = getattr(dataset, 'classes', ())
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    panels: list[np.ndarray] = []
    for place, key in enumerate(track(keys, 'drawing', console=console, disable=not console.is_terminal)):
        panels.append(_draw(painter, steps(dataset, key), view, classes, f'{key.index}'))
        if sheet and len(panels) < ON_A_SHEET[view] and place < len(keys) - 1:
            continue
        if sheet:
            name = f'{split}_{when}sheet{len(written):02d}'
            panels = [grid(panels, columns=COLUMNS[view])]
        else:
            order = f'{place:04d}_' if in_order else ''
            name = f'{split}_{when}{order}{key.index:06d}_{Path(dataset.files[key.index]).stem}'
        written.append(out / f'{name}.png')
        mmcv.imwrite(mmcv.rgb2bgr(panels.pop()), str(written[-1]))
    return written


def steps(dataset: Any, key: SampleKey) -> list[Step]:
    """A sample as it is in its file, named ``file``, and after each transform; the last one is ``dataset[key]``.

    Args:
        dataset: With ``read``, ``seed`` and ``pipeline``.
        key: Which sample.

    Returns:
        One step more than there are transforms.
    """
    sample = dataset.read(key.index)
    sample.key, sample.rng = key, key.generator(dataset.seed)
    made = [Step('file', sample, changed=True)]
    for transform in dataset.pipeline:
        before, sample = sample, transform(sample)
        made.append(Step(type(transform).__name__, sample, changed=sample is not before))
    return made


def _keys(
    cfg: Config,
    dataset: Any,
    *,
    split: str,
    epoch: int,
    indices: Sequence[int] | None,
    number: int,
    in_order: bool,
) -> list[SampleKey]:
    """Which samples to draw, as the training's sampler would ask for them."""
    size = len(dataset)
    if outside := [index for index in indices or () if not 0 <= index < size]:
        raise ConfigError(f'there is no image {outside[0]}: {split} has {size}; choose from 0..{size - 1}')
    if split != 'train':
        if in_order:
            raise ConfigError(f'only training has an order of its own, {split} is read from the first to the last')
        if epoch != 1:
            raise ConfigError(f'{split} is the same in every epoch; leave epoch={epoch} out')
        return [SampleKey.of(index) for index in (range(min(number, size)) if indices is None else indices)]
    epochs = (cfg.get('train_cfg') or {}).get('max_epochs')
    if epoch < 1 or (epochs is not None and epoch > epochs):
        raise ConfigError(f'there is no epoch {epoch}: the run has {epochs}; choose from 1..{epochs}')
    if in_order:
        if indices is not None:
            raise ConfigError('indices are in an order already; give either them or in_order')
        sampler: Any = build_dataloader(cfg.train_dataloader, dataset=dataset, seed=cfg.randomness['seed']).sampler
        takes = inspect.signature(sampler.set_epoch).parameters if hasattr(sampler, 'set_epoch') else ()
        if 'max_epochs' not in takes:
            raise ConfigError(
                f'{type(sampler).__name__} yields no epochs; set train_dataloader.sampler to EpochSampler'
            )
        sampler.set_epoch(epoch - 1, max_epochs=epochs)
        return list(itertools.islice(sampler, number))
    remaining = sys.maxsize if epochs is None else epochs - epoch + 1
    return [
        SampleKey(epoch - 1, index, remaining) for index in (range(min(number, size)) if indices is None else indices)
    ]


def _draw(painter: DetectionPainter, made: Sequence[Step], view: View, classes: Sequence[str], name: str) -> np.ndarray:
    """One panel per step that the view shows, in a row."""
    shown = {'sample': made[-1:], 'compare': [made[0], made[-1]], 'steps': made}[view]
    captions = []
    for place, step in enumerate(shown):
        height, width = step.sample.size
        what = (
            f'{step.name}: {len(step.sample.labels)} objects, {width}x{height}' if step.changed else f'{step.name}: -'
        )
        if view != 'steps':
            what = f'{len(step.sample.labels)} objects' + (', file' if view == 'compare' and not place else '')
        captions.append(what if place else f'{name} {Path(step.sample.file).name}, {what}')
    if painter.side is None:
        # One side for all of a row: a small input beside a large file would leave its cell half empty.
        longest = max(max(step.sample.size) for step in shown)
        painter = DetectionPainter(side=min(max(longest, 320), 480))
    return painter.draw_batch(
        [step.sample.image for step in shown],
        [vars(step.sample) for step in shown],
        captions,
        classes,
        columns=len(shown),
    )


def _refuse_inside(out: Path, dataset: Any, cfg: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if a folder lies in the data set, whose folders are nobody's to write into."""
    folders = {os.path.dirname(file) for file in map(str, dataset.files)}
    if cfg.get('data_root') is not None:
        root = Path(cfg['data_root']).expanduser()  # or a file that leads to the others
        folders.add(str(root.parent if root.is_file() else root))
    target = out.expanduser().resolve()
    for folder in map(Path, sorted(folders)):
        if target.is_relative_to(folder.resolve()):
            raise ConfigError(f'{out} is in the data set ({folder}), which is never written to; choose another folder')
