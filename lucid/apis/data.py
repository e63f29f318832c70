"""Data sets and loaders of a config, and the classes and keypoints that come from them."""

import os
import signal
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dataset import worker_init_fn
from mmengine.dist import get_rank
from mmengine.evaluator import BaseMetric
from mmengine.registry import Registry
from torch.utils.data import DataLoader, Dataset

from lucid.apis.signatures import signature_of
from lucid.apis.validate import ConfigError
from lucid.datasets import DataError
from lucid.datasets.device_loader import DeviceLoader
from lucid.models.detectors.parts import takes_keypoints
from lucid.registry import DATA_SAMPLERS, DATASETS, FUNCTIONS, METRICS, MODELS

ON_DEVICE = ('device_images', 'device_pool_mb')
"""Keys of a training loader whose images are drawn on the device."""


def build_dataset(cfg: Mapping[str, Any], *, loader: str | None = None) -> Dataset:
    """Build a data set; what is wrong with its data or its arguments is a ``ConfigError``.

    Args:
        cfg: Its type and arguments.
        loader: Key of the loader that it is of, for the remedy.

    Returns:
        The data set.
    """
    try:
        return _build(DATASETS, cfg)
    except ConfigError as error:
        bad = error.__cause__
        if (
            loader is None
            or not isinstance(bad, DataError)
            or 'on_bad' not in signature_of(DATASETS.get(cfg['type'])).names
        ):
            raise
        raise ConfigError(bad.told(f'{loader}.dataset.{{}}={{}}')) from bad


def build_metric(cfg: Mapping[str, Any], dataset: Dataset) -> BaseMetric:
    """Build a metric; one that reads COCO JSON gets the boxes of a data set that has no such file."""
    given = dict(cfg)
    if 'ann_file' in signature_of(METRICS.get(given['type'])).names and given.get('ann_file') is None:
        # Not by the config: it is text, and the boxes are none.
        given['ann_file'] = dataset.as_coco() if hasattr(dataset, 'as_coco') else None
    metric: BaseMetric = _build(METRICS, given)
    return metric


def _build(registry: Registry, cfg: Mapping[str, Any], **given: Any) -> Any:
    try:
        return registry.build(dict(cfg), default_args=given)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(str(error)) from error
    except TypeError as error:
        if 'required' in str(error):
            raise ConfigError(f'{cfg["type"]}: {error}; state it in the config') from error
        raise


def build_dataloader(
    cfg: Mapping[str, Any], *, dataset: Dataset, seed: int, name: str = 'train_dataloader'
) -> DataLoader:
    """Build a loader over a data set that is already there.

    Its order and its workers' seeds come from ``seed`` and never touch the process's own generators, so that a run
    resumed in mid-epoch draws what an uninterrupted one draws. Options that need workers, or a card, are ignored
    without them; there are no more workers than processors.

    Args:
        cfg: ``dataset`` is ignored; ``sampler``, ``collate_fn`` by their types; ``device_images`` leaves the images to
            be drawn on the device, where ``device_pool_mb`` of decoded ones stay; the rest is the loader's own.
        dataset: What is loaded.
        seed: Of sampler and workers.
        name: Of the loader in the config, for the message.

    Returns:
        The loader; its workers start with its first iteration.

    Raises:
        ConfigError: It would have no batch, a key of it says nothing, or a part of it cannot be built.
    """
    on_device = cfg.get('device_images', False)
    if not isinstance(on_device, bool):
        raise ConfigError(f'{name}.device_images={on_device!r} is neither True nor False; set one of them')
    if not on_device and cfg.get('device_pool_mb') is not None:
        raise ConfigError(
            f'{name}.device_pool_mb does nothing without {name}.device_images=True; set that too, or remove it'
        )
    options = {key: value for key, value in cfg.items() if key not in ('dataset', 'sampler', 'collate_fn', *ON_DEVICE)}
    if cfg.get('sampler') is not None:
        options['sampler'] = _build(DATA_SAMPLERS, cfg['sampler'], dataset=dataset, seed=seed)
    if cfg.get('collate_fn') is not None:
        collate = dict(cfg['collate_fn'])
        options['collate_fn'] = partial(FUNCTIONS.get(collate.pop('type')), **collate)
    # Samples do not depend on the number of workers, so a config may ask for more than this machine has.
    options['num_workers'] = min(options.get('num_workers', 0), len(os.sched_getaffinity(0)))
    if not options['num_workers']:
        for key in ('persistent_workers', 'prefetch_factor'):
            options.pop(key, None)
    options['pin_memory'] = bool(options.get('pin_memory')) and torch.cuda.is_available()
    options['worker_init_fn'] = partial(start_worker, num_workers=options['num_workers'], rank=get_rank(), seed=seed)
    options['generator'] = torch.Generator().manual_seed(seed)
    loader = _on_device(cfg, dataset, options, name) if on_device else DataLoader(dataset, **options)
    samples = len(options.get('sampler', dataset))
    if len(loader) == 0 < samples:
        raise ConfigError(
            f'{name} has no batch: drop_last drops the only one, of {samples} images where batch_size is '
            f'{loader.batch_size}; lower {name}.batch_size, or set {name}.drop_last=False'
        )
    return loader


def _on_device(cfg: Mapping[str, Any], dataset: Dataset, options: Mapping[str, Any], name: str) -> DataLoader:
    """A loader that leaves drawing to the model's data preprocessor."""
    if name != 'train_dataloader':
        raise ConfigError(f'{name}.device_images: only training images are drawn on the device; remove it')
    given = {'pool_mb': cfg['device_pool_mb']} if cfg.get('device_pool_mb') is not None else {}
    try:
        return DeviceLoader(dataset, jpeg=torch.cuda.is_available(), **given, **options)
    except ValueError as error:
        raise ConfigError(f'{name}: {error}') from error


def start_worker(worker_id: int, *, num_workers: int, rank: int, seed: int) -> None:
    """Seed a worker process and leave signals to the main one, which finishes its window with this worker's batches."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A SIGTERM to the whole group is the main process's too; one from it alone ends this worker.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    worker_init_fn(worker_id, num_workers=num_workers, rank=rank, seed=seed)


def _end_with_parent(parent: int) -> None:
    """Wait for a SIGTERM that ``parent`` sent, and end this process."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


def settle_classes(cfg: Config, dataset: Dataset) -> tuple[str, ...]:
    """Write the data set's number of classes into ``cfg.model`` and return the names; a stated number must agree."""
    classes = tuple(getattr(dataset, 'classes', ()))
    if not classes or 'num_classes' not in signature_of(MODELS.get(cfg.model['type'])).names:
        return classes
    stated = cfg.model.get('num_classes')
    if stated is not None and stated != len(classes):
        raise ConfigError(
            f'{cfg.filename}: model.num_classes is {stated}, but {_source(dataset)} has {len(classes)} classes '
            f'({", ".join(classes[:8])}{", ..." if len(classes) > 8 else ""}); remove model.num_classes'
        )
    cfg.model['num_classes'] = len(classes)
    return classes


def settle_keypoints(cfg: Config, dataset: Dataset) -> tuple[str, ...]:
    """Write the data set's number of keypoints into ``cfg.model`` where its head predicts keypoints.

    Args:
        cfg: Changed in place.
        dataset: Of which the names are.

    Returns:
        The names; none where the head predicts no keypoints, or the data set names none.

    Raises:
        ConfigError: A stated number disagrees, or none is stated and the data set names none.
    """
    model = cfg.model
    takes = 'num_keypoints' in signature_of(MODELS.get(model['type'])).names
    if not takes or not takes_keypoints({'type': 'DetectHead', **(model.get('head') or {})}):
        return ()
    names, stated = keypoint_names(dataset), model.get('num_keypoints')
    if not names and stated is None:
        raise ConfigError(
            f'{cfg.filename}: the head predicts keypoints, but {_source(dataset)} names none; give data whose '
            "categories name keypoints, and add 'keypoints' to the targets of the data set"
        )
    if names and stated not in (None, len(names)):
        raise ConfigError(
            f'{cfg.filename}: model.num_keypoints is {stated}, but {_source(dataset)} has {len(names)} keypoints '
            f'({", ".join(names[:8])}{", ..." if len(names) > 8 else ""}); remove model.num_keypoints'
        )
    if names:
        model['num_keypoints'] = len(names)
    return names


def keypoint_names(dataset: Dataset) -> tuple[str, ...]:
    """Names of a data set's keypoints, loaded or not; empty where it has none."""
    loaded = getattr(dataset, 'metainfo', {}).get('keypoint_names')
    return tuple(loaded or getattr(dataset, 'keypoint_names', None) or ())


def check_agreement(
    train: Dataset, other: Dataset, classes: tuple[str, ...], *, keypoints: tuple[str, ...] = ()
) -> None:
    """Refuse data sets that number classes, or keypoints, differently: label 3 must mean the same in both."""
    if keypoints and (found := keypoint_names(other) or keypoints) != keypoints:
        raise ConfigError(
            f'{_source(train)} and {_source(other)} name their keypoints differently: {list(keypoints)} and '
            f'{list(found)}; give both files the same, in the same order'
        )
    theirs = tuple(getattr(other, 'classes', classes))
    ids, their_ids = (tuple(getattr(data, 'category_ids', ())) for data in (train, other))
    if theirs == classes and (ids == their_ids or not their_ids):
        return
    raise ConfigError(
        f'{_source(train)} and {_source(other)} number their classes differently: '
        f'{list(zip(ids, classes, strict=False))[:8]} and {list(zip(their_ids, theirs, strict=False))[:8]}; '
        'give both files the same categories, with the same ids'
    )


def _source(dataset: Dataset) -> str:
    return str(getattr(dataset, 'source', type(dataset).__name__))
