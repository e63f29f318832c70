"""From a config file to a runner whose data sets are built once and whose class count comes from the data."""

import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch.utils.data import Dataset

from lucid.apis.batch import settle_batch
from lucid.apis.data import (
    build_dataloader,
    build_dataset,
    build_metric,
    check_agreement,
    settle_classes,
    settle_keypoints,
)
from lucid.apis.options import apply_options
from lucid.apis.remarks import log_remarks, log_start
from lucid.apis.signatures import nearest, signature_of
from lucid.apis.tasks import check_task
from lucid.apis.validate import ConfigError, validate
from lucid.engine.runner import Runner
from lucid.registry import DATASETS, METRICS, SCOPE

FILLED = ('data_root', 'image_size')
MMENGINE_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')
_numbers = itertools.count()


def load_config(path: str | Path, options: Mapping[str, Any] | None = None) -> Config:
    """Read a config file with its bases, merge ``options`` by dotted key, and check every key.

    Args:
        path: A Python config file.
        options: What ``--cfg-options`` gives.

    Returns:
        A config that ``validate`` passes.

    Raises:
        ConfigError: There is no such file, or something in it or in the options cannot be meant.
    """
    path = Path(path)
    if not path.is_file():
        others = [str(file) for file in path.parent.glob('*.py')] if path.parent.is_dir() else []
        raise ConfigError(f'{path} does not exist; {nearest(str(path), others)}')
    try:
        cfg = Config.fromfile(str(path))
    except (SyntaxError, NameError, KeyError, TypeError, OSError) as error:
        raise ConfigError(f'{path} cannot be read: {type(error).__name__}: {error}; correct the file') from error
    return apply_options(cfg, options or {})


def override(
    cfg: Config,
    *,
    work_dir: str | Path | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    amp: Literal['bfloat16', 'float16'] | None = None,
    launcher: str | None = None,
    load_from: str | Path | None = None,
) -> Config:
    """Set what the tools have own flags for.

    Args:
        cfg: The config, not changed.
        work_dir: Where results go.
        seed: Of all random draws.
        deterministic: Use deterministic algorithms only.
        amp: Train under autocast in this type.
        launcher: 'none' or 'pytorch'.
        load_from: Checkpoint whose weights training starts from.

    Returns:
        A changed copy; what is not given is as it was.
    """
    cfg = copied(cfg)
    if work_dir is not None:
        cfg.work_dir = str(work_dir)
    if launcher is not None:
        cfg.launcher = launcher
    if load_from is not None:
        cfg.load_from = str(load_from)
    chosen = {'seed': seed} if seed is not None else {}
    if deterministic:
        chosen['deterministic'] = True
    cfg.randomness = {**cfg.get('randomness', {}), **chosen}
    if amp is not None:
        cfg.optim_wrapper = {**cfg.optim_wrapper, 'type': 'AmpOptimWrapper', 'dtype': amp}
    return cfg


def complete(cfg: Config) -> Config:
    """Fill in what follows from other keys: work directory, and the data sets' root, size and seed.

    Args:
        cfg: The config, not changed.

    Returns:
        A copy that states them.
    """
    cfg = copied(cfg)
    if cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs', Path(cfg.filename or 'run').stem))
    cfg.setdefault('default_scope', SCOPE)
    randomness = cfg.setdefault('randomness', {})
    if randomness.get('seed') is None:
        randomness['seed'] = 0
    defaults = {name: cfg[name] for name in FILLED if cfg.get(name) is not None}
    defaults['seed'] = randomness['seed']
    for split in ('train', 'val', 'test'):
        loader = cfg.get(f'{split}_dataloader')
        if loader is not None:
            _fill_dataset(loader['dataset'], defaults)
    return cfg


def _fill_dataset(dataset: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """Give a data set, and those that it wraps, what they take and do not state."""
    takes = signature_of(DATASETS.get(dataset['type'])).names
    for name, value in defaults.items():
        if name in takes:
            dataset.setdefault(name, value)
    inner = [dataset.get('dataset'), *(dataset.get('datasets') or ())]
    for item in inner:
        if isinstance(item, dict):
            _fill_dataset(item, defaults)


def build_runner(cfg: Config, *, mode: Literal['train', 'test'], resume: Path | None = None) -> Runner:
    """Build data sets, loaders and runner of a completed config; nothing runs yet.

    ``model.num_classes``, ``model.num_keypoints`` where its head predicts some, and the metrics' annotation file are
    taken from the data where the config states none. The runner's ``cfg`` is the resolved config, which it writes into
    the work directory as ``config.py``.

    Args:
        cfg: What ``complete`` returned; not changed.
        mode: ``'train'`` builds training and validation, ``'test'`` the test alone, on the validation set where the
            config has no test set.
        resume: Checkpoint to go on from.

    Returns:
        A runner that has its model, its data and its hooks.

    Raises:
        ConfigError: A key is unknown, data is missing, or parts of the config disagree.
    """
    validate(cfg)
    cfg = copied(cfg)
    _check_log_level(cfg)
    init_default_scope(SCOPE)
    seed = cfg.randomness['seed']
    parts: dict[str, Any] = {}
    if mode == 'train':
        _require(cfg, 'train_dataloader', 'train_cfg', 'optim_wrapper')
        settle_batch(cfg)
        check_task(cfg, split='train')
        if cfg.get('val_dataloader') is not None:
            _require(cfg, 'val_evaluator')
            check_task(cfg, split='val')
        train = build_dataset(cfg.train_dataloader.dataset, loader='train_dataloader')
        classes, keypoints = settle_classes(cfg, train), settle_keypoints(cfg, train)
        parts = {
            'train_dataloader': build_dataloader(cfg.train_dataloader, dataset=train, seed=seed),
            'train_cfg': cfg.train_cfg,
            'optim_wrapper': cfg.optim_wrapper,
            'param_scheduler': cfg.get('param_scheduler'),
            'auto_scale_lr': cfg.get('auto_scale_lr'),
        }
        if cfg.get('val_dataloader') is not None:
            dataset = build_dataset(cfg.val_dataloader.dataset, loader='val_dataloader')
            check_agreement(train, dataset, classes, keypoints=keypoints)
            parts |= _evaluation(cfg, dataset, name='val', source='val', seed=seed)
    else:
        source = 'test' if cfg.get('test_dataloader') is not None else 'val'
        _require(cfg, f'{source}_dataloader', f'{source}_evaluator')
        check_task(cfg, split=source)
        dataset = build_dataset(cfg[f'{source}_dataloader'].dataset, loader=f'{source}_dataloader')
        settle_classes(cfg, dataset)
        settle_keypoints(cfg, dataset)
        parts = _evaluation(cfg, dataset, name='test', source=source, seed=seed)
    try:
        runner = _runner(cfg, parts, mode=mode, resume=resume)
        if mode == 'train':
            # Now, not in train(): what is wrong with their options is the config's fault.
            _ = runner.train_loop, runner.val_loop
            runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
            runner.scale_lr(runner.optim_wrapper, runner.auto_scale_lr)
            runner.auto_scale_lr = None  # done
            if runner.param_schedulers is not None:
                runner.param_schedulers = runner.build_param_scheduler(runner.param_schedulers)
            runner.call_hook('check')
            if cfg.get('load_from') is not None and resume is None:
                runner.plan_weights()
            log_start(runner)
            log_remarks(runner)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(str(error)) from error
    return runner


def _runner(cfg: Config, parts: dict[str, Any], *, mode: str, resume: Path | None) -> Runner:
    stem = Path(cfg.filename or 'run').stem
    resolved = Config(cfg.to_dict(), cfg_text=cfg.text or stem, filename='config.py', format_python_code=False)
    hooks = dict(cfg.get('default_hooks') or {})
    if mode == 'test':
        # The others belong to training; None switches mmengine's own off.
        kept = ('runtime_info', 'logger', 'pictures', 'figures', 'progress')
        hooks = {name: hook for name, hook in hooks.items() if name in kept}
        hooks |= dict.fromkeys(('timer', 'sampler_seed', 'param_scheduler', 'checkpoint'))
    settled = copied(cfg)  # the runner changes what it is given
    options = {
        key: settled[key]
        for key in ('visualizer', 'log_processor', 'log_level', 'env_cfg', 'custom_hooks', 'default_scope')
        if settled.get(key) is not None
    }
    return Runner(
        model=settled.model,
        work_dir=settled.work_dir,
        launcher=settled.get('launcher', 'none'),
        randomness=settled.randomness,
        default_hooks={name: hook for name, hook in hooks.items() if hook is not None or name in MMENGINE_HOOKS},
        # A test has the weights that it tests: those that training started from must not replace them.
        load_from=str(resume) if resume is not None else cfg.get('load_from') if mode == 'train' else None,
        resume=resume is not None,
        # mmengine keeps hub, logger and scope by this name, for the whole process.
        experiment_name=f'{cfg.get("experiment_name") or stem}_{next(_numbers)}',
        cfg=resolved,
        **options,
        **parts,
    )


def _require(cfg: Config, *names: str) -> None:
    """Raise ``ConfigError`` for the first of the top-level names that the config does not have."""
    for name in names:
        if cfg.get(name) is None:
            raise ConfigError(f'{cfg.filename}: there is no {name}, which this needs; add it')


def _check_log_level(cfg: Config) -> None:
    """Raise ``ConfigError`` for a level that logging does not know."""
    level, names = cfg.get('log_level', 'INFO'), logging.getLevelNamesMapping()
    if not (level in names or (isinstance(level, int) and not isinstance(level, bool) and level >= 0)):
        raise ConfigError(f'{cfg.filename}: log_level is {level!r}; {nearest(str(level), sorted(names))}')


def _evaluation(cfg: Config, dataset: Dataset, *, name: str, source: str, seed: int) -> dict[str, Any]:
    evaluator = cfg[f'{source}_evaluator']
    metrics = evaluator if isinstance(evaluator, list | tuple) else [evaluator]
    for metric in metrics:
        takes = signature_of(METRICS.get(metric['type'])).names
        file = getattr(dataset, 'annotation_file', None)
        if 'ann_file' in takes and metric.get('ann_file') is None and file:
            metric['ann_file'] = str(file)
    return {
        f'{name}_dataloader': build_dataloader(
            cfg[f'{source}_dataloader'], dataset=dataset, seed=seed, name=f'{source}_dataloader'
        ),
        f'{name}_cfg': cfg.get(f'{name}_cfg') or {'type': f'{name.capitalize()}Loop'},
        f'{name}_evaluator': [build_metric(metric, dataset) for metric in metrics],
    }


def copied(cfg: Config) -> Config:
    """Return a deep copy of plain values, with the name of the file and no formatting by yapf (a second a time)."""
    return Config(cfg.to_dict(), cfg_text=cfg.text or ' ', filename=cfg.filename, format_python_code=False)
