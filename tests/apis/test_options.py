import argparse
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.hooks import Hook

from lucid.apis import ConfigError, load_config
from lucid.apis.options import OptionsAction, apply_options
from lucid.registry import HOOKS

CONFIG = Path(__file__).parents[2] / 'configs' / 'yolo_capture.py'


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=OptionsAction, default={})
    return parser


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('/tmp/odd name', '/tmp/odd name'),
        (' /tmp/padded ', ' /tmp/padded '),
        ('/tmp/a,b', '/tmp/a,b'),
        ('/tmp/lr=0.1/x', '/tmp/lr=0.1/x'),
        ('', ''),
        ("'7'", '7'),
        ('4', 4),
        ('-1e-3', -1e-3),
        ('[320, 640]', [320, 640]),
        ('[]', []),
        ("{'type': 'SGD', 'lr': 0.1}", {'type': 'SGD', 'lr': 0.1}),
        ('True', True),
        ('false', False),
        ('none', None),
        ('None', None),
        ('nonesuch', 'nonesuch'),
    ],
)
def test_a_value_is_a_literal_or_the_text_as_it_is(parser: argparse.ArgumentParser, text: str, value: Any) -> None:
    given = parser.parse_args(['--cfg-options', 'other=1', f'a.b={text}']).cfg_options
    assert given == {'other': 1, 'a.b': value}
    assert type(given['a.b']) is type(value)


def test_options_given_again_are_added(parser: argparse.ArgumentParser) -> None:
    given = parser.parse_args(['--cfg-options', 'a=1', 'b=2', '--cfg-options', 'b=3']).cfg_options
    assert given == {'a': 1, 'b': 3}
    assert parser.parse_args([]).cfg_options == {}


@pytest.mark.parametrize('text', ['a', '=1', '/tmp/odd'])
def test_an_option_without_key_or_value_is_refused(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture, text: str
) -> None:
    with pytest.raises(SystemExit, match='2'):
        parser.parse_args(['--cfg-options', text])
    assert f'--cfg-options {text}: give KEY=VALUE' in capsys.readouterr().err


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
        ('model.backbone', {'type': 'YOLOBackbone'}),  # declared, and not stated here
        ('model.loss.assigner_o2m.topk', 5),  # of the default class
        ('model.loss.box_gain', 3.0),
        ('model.data_preprocessor.capacity', [32]),
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
        ('model.backbone.depth', r'model\.backbone\.depth is no key of YOLOBackbone'),
        ('model.scale.x', r"model\.scale in .* is 'n', which has no x; shorten the key"),
        ('train_dataloader.dataset.pipeline.9.prob', r'pipeline in .* is a list; select from it by 0\.\.3'),
        ('train_dataloader.dataset.pipeline.first.prob', 'is a list; select from it by'),
        ('model.loss.assigner_o2m.top', "top is no key of TaskAlignedAssigner; did you mean 'topk'"),
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


def test_a_type_and_parameters_of_it_can_be_named_in_any_order() -> None:
    options = {'train_dataloader.sampler.threshold': 0.3, 'train_dataloader.sampler.type': 'RepeatFactorSampler'}
    for given in (options, dict(reversed(options.items()))):
        cfg = apply_options(load_config(CONFIG), given)
        assert cfg.train_dataloader.sampler == {'type': 'RepeatFactorSampler', 'threshold': 0.3}
    with pytest.raises(ConfigError, match=r"thershold is no key of .*did you mean 'threshold'"):
        apply_options(load_config(CONFIG), {**options, 'train_dataloader.sampler.thershold': 1.0})
