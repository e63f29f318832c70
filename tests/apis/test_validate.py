"""cases.md 27: an unknown or misspelt key is refused at start with the nearest valid name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.hooks import Hook

from lucid.apis import ConfigError, load_config, validate
from lucid.registry import HOOKS

CONFIG = Path(__file__).parents[2] / 'configs' / 'yolo_capture.py'
Edit = Callable[[str, Any], Config]


@pytest.fixture
def edit() -> Edit:
    """The shipped config with one key set or added, by dotted path."""

    def change(path: str, value: Any) -> Config:
        cfg = load_config(CONFIG)
        node: Any = cfg
        *parents, last = path.split('.')
        for key in parents:
            node = node[int(key) if key.isdigit() else key]
        node[int(last) if last.isdigit() else last] = value
        return cfg

    return change


def test_the_shipped_config_passes() -> None:
    validate(load_config(CONFIG))


@pytest.mark.parametrize(
    ('path', 'place', 'meant'),
    [
        ('modle', 'the top level', 'model'),
        ('img_size', 'the top level', 'image_size'),
        ('model.scael', 'YOLODetector', 'scale'),
        ('train_dataloader.batchsize', 'a data loader', 'batch_size'),
        ('train_dataloader.dataset.dataroot', 'ShapesDataset', 'data_root'),
        ('train_dataloader.dataset.pipeline.0.close_lats', 'Mosaic', 'close_last'),
        ('train_dataloader.sampler.shufle', 'EpochSampler', 'shuffle'),
        ('optim_wrapper.clip_gard', 'OptimWrapper', 'clip_grad'),
        ('optim_wrapper.clip_grad.maxnorm', 'clip_grad', 'max_norm'),
        ('optim_wrapper.optimizer.weight_deacy', 'MuSGD', 'weight_decay'),
        ('param_scheduler.warmup_epoch', 'WarmupLinearLR', 'warmup_epochs'),
        ('train_cfg.max_epoch', 'EpochTrainLoop', 'max_epochs'),
        ('default_hooks.chekpoint', 'default_hooks', 'checkpoint'),
        ('default_hooks.checkpoint.intervall', 'CheckpointHook', 'interval'),
        ('default_hooks.ema.dekay', 'EMAHook', 'decay'),
        ('visualizer.vis_backend', 'Visualizer', 'vis_backends'),
        ('val_evaluator.annfile', 'CocoMetric', 'ann_file'),
        ('env_cfg.mp_cfg.opencv_threads', 'mp_cfg', 'opencv_num_threads'),
        ('env_cfg.dist_cfg.back_end', 'dist_cfg', 'backend'),
        ('randomness.sead', 'randomness', 'seed'),
        ('custom_hooks.0.on_chang', 'CaptureHook', 'on_change'),
        ('custom_hooks.0.regions.0.compille', 'StepRegion', 'compile'),
    ],
)
def test_a_misspelt_key_is_refused_with_the_nearest_name(edit: Edit, path: str, place: str, meant: str) -> None:
    # The right name may be there too: a base config states it, and a child meant to change it.
    with pytest.raises(ConfigError) as error:
        validate(edit(path, {}))
    assert f"yolo_capture.py: {path} is no key of {place}; did you mean '{meant}'?" in str(error.value)


@pytest.mark.parametrize(
    ('path', 'value', 'meant'),
    [
        ('model.type', 'YoloDetector', 'YOLODetector'),
        ('train_dataloader.dataset.type', 'ShapeDataset', 'ShapesDataset'),
        ('train_dataloader.dataset.pipeline.1.type', 'RandomAfine', 'RandomAffine'),
        ('train_dataloader.collate_fn.type', 'detection_colate', 'detection_collate'),
        ('optim_wrapper.optimizer.type', 'MuSDG', 'MuSGD'),
        ('default_hooks.ema.type', 'EMAHok', 'EMAHook'),
        ('train_cfg.type', 'EpochTrainingLoop', 'EpochTrainLoop'),
        ('val_evaluator.type', 'COCOMetric', 'CocoMetric'),
    ],
)
def test_an_unknown_type_is_refused_with_the_nearest_name(edit: Edit, path: str, value: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"{path} is '{value}', which no .* is called; did you mean '{meant}'?"):
        validate(edit(path, value))


@pytest.mark.parametrize(
    ('path', 'value', 'message'),
    [
        ('train_dataloader.batch_size', '16', "batch_size is '16'; use a whole number of at least 1"),
        ('train_dataloader.batch_size', 0, 'batch_size is 0; use a whole number of at least 1'),
        ('train_dataloader.num_workers', -1, 'num_workers is -1; use a whole number of at least 0'),
        ('train_cfg.max_epochs', 0, r'train_cfg\.max_epochs is 0; use a whole number of at least 1'),
        ('train_cfg.max_epochs', 'many', "max_epochs is 'many'; EpochTrainLoop takes int"),
        ('optim_wrapper.optimizer.lr', -0.1, r'lr is -0\.1; use a number above 0'),
        ('optim_wrapper.optimizer.lr', '0.1', "lr is '0.1'; MuSGD takes float"),
        ('optim_wrapper.accumulative_counts', 0, 'accumulative_counts is 0; use a whole number of at least 1'),
        ('image_size', 100, 'image_size is 100; use a multiple of 32'),
        ('image_size', '640', "image_size is '640'; use a multiple of 32"),
        ('model', 'YOLODetector', r"model is 'YOLODetector'; use dict\(\.\.\.\)"),
        ('launcher', 'slurm', "launcher is 'slurm'; use 'none' or 'pytorch'"),
        ('train_dataloader.dataset', {}, r'train_dataloader\.dataset has no type; add type='),
        ('default_hooks.progress.bar', 'yes', "bar is 'yes'; ProgressHook takes bool or None"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(edit: Edit, path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(edit(path, value))


def test_a_missing_data_set_is_named() -> None:
    cfg = load_config(CONFIG)
    del cfg.train_dataloader['dataset']
    with pytest.raises(ConfigError, match=r'train_dataloader has no dataset; add dataset=dict\(type='):
        validate(cfg)


def test_everything_that_is_wrong_is_said_at_once(edit: Edit) -> None:
    cfg = edit('modell', {})
    cfg.train_cfg.max_epoch = 3
    with pytest.raises(ConfigError) as error:
        validate(cfg)
    assert len(str(error.value).splitlines()) == 2


def test_a_loss_without_a_type_has_the_keys_of_the_task_of_the_head() -> None:
    cfg = load_config(CONFIG)
    cfg.model.loss = {'mask_gain': 1.0}
    with pytest.raises(ConfigError, match=r'model\.loss\.mask_gain is no key of DetectionLoss'):
        validate(cfg)
    cfg.model.head = {'type': 'SegmentHead'}
    validate(cfg)
    cfg.model.loss = {'maks_gain': 1.0}
    with pytest.raises(
        ConfigError, match=r"model\.loss\.maks_gain is no key of SegmentationLoss; did you mean 'mask_ga"
    ):
        validate(cfg)
    cfg.model.loss = {'type': 'DetectionLoss', 'mask_gain': 1.0}
    with pytest.raises(ConfigError, match='no key of DetectionLoss'):
        validate(cfg)


def test_names_that_begin_with_an_underscore_are_free(edit: Edit) -> None:
    validate(edit('_anything', {'at': 'all'}))


def test_a_class_that_takes_any_key_is_listed_as_unchecked(edit: Edit, caplog: pytest.LogCaptureFixture) -> None:
    @HOOKS.register_module(force=True)
    class AnyHook(Hook):
        def __init__(self, **kwargs: Any) -> None: ...

    known = validate(edit('custom_hooks', [{'type': 'AnyHook', 'whatever': 1}]))
    assert known['custom_hooks', '0'] is None


def test_the_known_keys_of_each_place_are_returned() -> None:
    known = validate(load_config(CONFIG))
    assert known['train_cfg',] >= {'type', 'max_epochs', 'val_interval'}
    assert 'runner' not in known['train_cfg',]
