"""Whether the parts of a config are of one task: head, loss, data and metrics."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import Config
from mmengine.registry import Registry

from lucid.apis.validate import ConfigError
from lucid.models.data_preprocessors.checks import TASK_KINDS as KINDS
from lucid.models.detectors.parts import loss_problem
from lucid.registry import DATASETS, HEADS, MODELS

METRIC_OF_TASK: Mapping[str, str] = {
    'segment': 'CocoMaskMetric',
    'oriented': 'RotatedMetric',
    'keypoint': 'CocoKeypointMetric',
}
PREPROCESSOR = 'DetDataPreprocessor'
OUTLINES = ('masks', 'polygons')
"""Targets from which the collation makes masks."""


def check_task(cfg: Config, *, split: str) -> None:
    """Refuse a loader or a metric that would fail on its first batch, and a loss that leaves the head untrained.

    Parts that are not lucid's, and heads that name no task, are not judged.

    Args:
        cfg: A completed config that passed ``validate``, not changed.
        split: ``train``, ``val`` or ``test``, whose loader and metrics are looked at.

    Raises:
        ConfigError: Everything that does not fit, one line each.
    """
    task = _task(cfg)
    problems = list(_collation(cfg[f'{split}_dataloader'], split))
    if split == 'train':
        problems += _learning(cfg, task)
    else:
        problems += _metrics(cfg, task, f'{split}_evaluator')
    if problems:
        raise ConfigError('\n'.join(f'{cfg.filename}: {problem}' for problem in problems))


def _task(cfg: Config) -> str | None:
    """The task of the head; None where the model takes none, or it names none."""
    detector = MODELS.get(cfg.model['type'])
    if 'head' not in inspect.signature(detector).parameters:
        return None
    task: str | None = getattr(HEADS.get(_head(cfg)), 'task', None)
    return task


def _head(cfg: Config) -> str:
    name: str = (cfg.model.get('head') or {}).get('type', 'DetectHead')
    return name


def _collation(loader: Mapping[str, Any], split: str) -> Iterator[str]:
    if not _makes_masks(loader):
        return
    for targets in _targets(loader['dataset']):
        if not set(OUTLINES) & set(targets):
            yield (
                f'{split}_dataloader.collate_fn makes masks, and {split}_dataloader.dataset.targets is {targets}; '
                "add 'masks' to it, or set masks=False"
            )


def _learning(cfg: Config, task: str | None) -> Iterator[str]:
    # Before any data is read; the detector itself would refuse it too.
    if problem := loss_problem((cfg.model.get('loss') or {}).get('type', ''), task):
        yield problem
    kind, loader = KINDS.get(task or ''), cfg.train_dataloader
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if kind is None or preprocessor.get('type', PREPROCESSOR) != PREPROCESSOR:
        return
    accepted = OUTLINES if kind == 'masks' else (kind,)
    for targets in _targets(loader['dataset']):
        if not set(accepted) & set(targets):
            yield (
                f'{_head(cfg)} learns from {kind}, and train_dataloader.dataset.targets is {targets}; '
                f"set it to ('boxes', '{kind}')"
            )
    if kind == 'masks' and _is_ours(loader) and not _makes_masks(loader):
        yield f'{_head(cfg)} learns from masks; set train_dataloader.collate_fn.masks=True'


def _metrics(cfg: Config, task: str | None, name: str) -> Iterator[str]:
    evaluator = cfg[name]
    for metric in evaluator if isinstance(evaluator, list | tuple) else [evaluator]:
        of = next((each for each, metrics in METRIC_OF_TASK.items() if metrics == metric['type']), None)
        if task is not None and of not in (None, task):
            yield (
                f'{name}.type is {metric["type"]!r}, which compares {KINDS[str(of)]}, and {_head(cfg)} predicts none; '
                f'set {METRIC_OF_TASK.get(task, "CocoMetric")!r}'
            )


def _is_ours(loader: Mapping[str, Any]) -> bool:
    return (loader.get('collate_fn') or {}).get('type') == 'detection_collate'


def _makes_masks(loader: Mapping[str, Any]) -> bool:
    return _is_ours(loader) and bool(loader['collate_fn'].get('masks'))


def _targets(dataset: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The targets of a data set that takes some, or of those that it wraps."""
    inner = [item for item in (dataset.get('dataset'), *(dataset.get('datasets') or ())) if isinstance(item, Mapping)]
    for item in inner:
        yield from _targets(item)
    default = _default(DATASETS, dataset['type'], 'targets')
    if not inner and default is not None:
        yield tuple(dataset.get('targets') or default)


def _default(registry: Registry, name: str, argument: str) -> Any:
    """What an argument is where a config does not state it; None where the class takes no such argument."""
    for base in inspect.getmro(registry.get(name)):
        parameter = inspect.signature(base).parameters.get(argument)
        if parameter is not None:
            return parameter.default
    return None
