from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.hooks import Hook

from lucid.apis import ConfigError, load_config
from lucid.apis.options import apply_options
from lucid.registry import HOOKS

CONFIG = Path(__file__).parents[2] / 'configs' / 'yolo_capture.py'


@pytest.fixture
def cfg() -> Config:
    return load_config(CONFIG)


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('train_cfg.max_epochs', 3),  # stated
        ('data_root', 'elsewhere'),
        ('model.channels_last', False),  # declared by the class
        ('optim_wrapper.accumulative_counts', 2),
        ('train_dataloader.dataset.pipeline.0.prob', 0.5),  # in a list
        ('optim_wrapper.clip_grad.norm_type', 1.0),
        ('work_dir', 'somewhere'),
        ('model.head', {'type': 'DetectHead'}),
    ],
)
def test_an_option_changes_what_is_stated_or_declared(cfg: Config, key: str, value: Any) -> None:
    changed: Any = apply_options(cfg, {key: value})
    for part in key.split('.'):
        changed = changed[int(part) if part.isdigit() else part]
    assert changed == value


def test_the_config_stays_as_it_was(cfg: Config) -> None:
    before = cfg.to_dict()
    apply_options(cfg, {'train_cfg.max_epochs': 3})
    assert cfg.to_dict() == before


@pytest.mark.parametrize(
    ('key', 'message'),
    [
        ('train_cfg.max_epoch', "max_epoch is no key of train_cfg in .*; did you mean 'max_epochs'?"),
        ('trian_cfg.max_epochs', "trian_cfg is no key of the top level in .*; did you mean 'train_cfg'?"),
        ('model.backbone.depth', r'model\.backbone has no type|depth is no key'),
        ('model.scale.x', r"model\.scale in .* is 'n', which has no x; shorten the key"),
        ('train_dataloader.dataset.pipeline.9.prob', r'pipeline in .* is a list; select from it by 0\.\.3'),
        ('train_dataloader.dataset.pipeline.first.prob', 'is a list; select from it by'),
        ('_mosaic', 'names that begin with an underscore were used while .* was read'),
    ],
)
def test_an_option_that_changes_nothing_is_refused(cfg: Config, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_options(cfg, {key: 1})


def test_a_value_of_the_wrong_kind_is_refused(cfg: Config) -> None:
    with pytest.raises(ConfigError, match="max_epochs is 'x'"):
        apply_options(cfg, {'train_cfg.max_epochs': 'x'})


def test_a_key_of_a_class_that_takes_any_must_be_in_the_file(cfg: Config) -> None:
    @HOOKS.register_module(force=True)
    class AnyHook(Hook):
        def __init__(self, **kwargs: Any) -> None: ...

    cfg.custom_hooks = [{'type': 'AnyHook', 'known': 1}]
    assert apply_options(cfg, {'custom_hooks.0.known': 2}).custom_hooks[0].known == 2
    with pytest.raises(ConfigError, match='its keys are not known; add it to the file'):
        apply_options(cfg, {'custom_hooks.0.other': 2})
