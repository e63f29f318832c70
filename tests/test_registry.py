"""Every registered class builds from the smallest config, by its bare name, and has tests of its own."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.registry import DefaultScope, Registry
from torch import nn
from torch.utils.data import DataLoader

from lucid import registry
from lucid.datasets import ShapesDataset

TESTS = Path(__file__).parent
REGISTRIES = {name: value for name, value in vars(registry).items() if isinstance(value, Registry)}

# The smallest config of each class; a callable makes what only exists at run time.
CONFIGS: dict[str, dict[str, Any] | Callable[[Path], dict[str, Any]]] = {
    'YOLOBackbone': {'scale': 'n'},
    'YOLONeck': {'in_channels': (128, 128, 256), 'scale': 'n'},
    'YOLODetector': {'num_classes': 3},
    'DetDataPreprocessor': {'num_classes': 3},
    'DetectHead': {'in_channels': (64, 128, 256), 'num_classes': 3},
    'SegmentHead': {'in_channels': (64, 128, 256), 'num_classes': 3},
    'OrientedHead': {'in_channels': (64, 128, 256), 'num_classes': 3},
    'KeypointHead': {'in_channels': (64, 128, 256), 'num_classes': 3, 'num_keypoints': 17},
    'DetectionLoss': {'num_classes': 3},
    'SegmentationLoss': {'num_classes': 3},
    'OrientedLoss': {'num_classes': 3},
    'KeypointLoss': {'num_classes': 3, 'num_keypoints': 17},
    'TaskAlignedAssigner': {'topk': 10},
    'MuSGD': lambda _: {'params': [nn.Parameter(torch.ones(2, 2))]},
    'SGD': lambda _: {'params': [nn.Parameter(torch.ones(2))]},
    'AdamW': lambda _: {'params': [nn.Parameter(torch.ones(2))]},
    'OptimWrapper': lambda _: {'optimizer': small_optimizer()},
    'AmpOptimWrapper': lambda _: {'optimizer': small_optimizer()},
    'WarmupLinearLR': lambda _: {'optimizer': small_optimizer(), 'end': 2},
    'EpochTrainLoop': lambda folder: {**loop(folder), 'max_epochs': 1},
    'ValLoop': lambda folder: {**loop(folder), 'evaluator': Evaluator([])},
    'TestLoop': lambda folder: {**loop(folder), 'evaluator': Evaluator([])},
    'CocoDataset': lambda folder: {'data_root': shapes(folder), 'split': 'val', 'image_size': 64},
    'FolderDataset': lambda folder: {'data_root': shapes(folder), 'split': 'val', 'image_size': 64},
    'YoloDataset': lambda folder: {'data_root': yolo(folder), 'split': 'val', 'image_size': 64},
    'VocDataset': lambda folder: {'data_root': voc(folder), 'split': 'val', 'image_size': 64},
    'DotaDataset': lambda folder: {'data_root': dota(folder), 'split': 'train', 'image_size': 64},
    'ShapesDataset': lambda folder: {'data_root': folder, 'split': 'val', 'num_images': 1, 'image_size': 64},
    'CaptureHook': {'regions': [{'type': 'ModuleRegion', 'target': 'network'}]},
    'ModuleRegion': {'target': 'network'},
    'EpochSampler': {'dataset': range(4), 'seed': 0},
    'RepeatFactorSampler': lambda folder: {'dataset': one_image(folder), 'seed': 0},
    'RandomAffine': {'image_size': 64},
    'Letterbox': {'image_size': 64},
    'Mosaic': {'image_size': 64},
}


def small_optimizer() -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = registry.OPTIMIZERS.build(
        {'type': 'SGD', 'params': [nn.Parameter(torch.ones(2))]}
    )
    return optimizer


def one_image(folder: Path) -> ShapesDataset:
    return ShapesDataset(folder, split='val', num_images=1, image_size=64)


def shapes(folder: Path) -> Path:
    ShapesDataset(folder, split='val', num_images=1, image_size=64)
    return folder


def yolo(folder: Path) -> Path:
    shapes(folder)
    (folder / 'data.yaml').write_text('names: [disc]\nval: val\n')
    (folder / 'val/000000.txt').write_text('0 0.5 0.5 0.25 0.25\n')
    return folder


def dota(folder: Path) -> Path:
    shapes(folder).joinpath('val').rename(folder / 'images')
    (folder / 'labelTxt').mkdir()
    (folder / 'labelTxt/000000.txt').write_text('gsd:1\n')
    return folder


def voc(folder: Path) -> Path:
    shapes(folder).joinpath('val').rename(folder / 'JPEGImages')
    for name, text in (('Annotations/000000.xml', '<annotation/>'), ('ImageSets/Main/val.txt', '000000')):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    (folder / 'classes.txt').write_text('disc')
    return folder


def loop(folder: Path) -> dict[str, Any]:
    loader = DataLoader(ShapesDataset(folder, split='val', num_images=1, image_size=64))
    return {'runner': SimpleNamespace(visualizer=SimpleNamespace()), 'dataloader': loader}


def registered() -> list[tuple[str, str]]:
    for one in REGISTRIES.values():
        one.import_from_location()
    # Other test modules register helpers of their own.
    return [
        (name, key)
        for name, one in REGISTRIES.items()
        for key, value in one.module_dict.items()
        if not value.__module__.startswith('tests')
    ]


@pytest.mark.parametrize(('name', 'key'), registered())
def test_a_class_builds_from_the_smallest_config_by_its_bare_name(name: str, key: str, tmp_path: Path) -> None:
    one = REGISTRIES[name]
    built = one.get(key)
    assert built.__module__.startswith('lucid.')
    if not isinstance(built, type):
        return  # a function is not built
    if key == 'DistributedModel':
        return  # it needs several processes: tests/engine/test_distributed.py builds it
    config = CONFIGS.get(key, {})
    options = config(tmp_path) if callable(config) else config
    DefaultScope.get_instance('test', scope_name='lucid')
    parent = one.parent or one
    assert type(parent.build({'type': key, **options})) is built


@pytest.mark.parametrize(('name', 'key'), registered())
def test_a_class_is_named_in_a_test_module_of_its_layer(name: str, key: str) -> None:
    layer = REGISTRIES[name].get(key).__module__.split('.')[1]
    texts = [path.read_text() for path in (TESTS / layer).rglob('test_*.py')]
    assert any(key in text for text in texts), f'{key} is in no test module under tests/{layer}'


def test_control_a_name_that_is_not_registered_is_refused() -> None:
    with pytest.raises(KeyError, match='DetectHaed'):
        registry.HEADS.build({'type': 'DetectHaed'})


def test_registries_that_mmengine_has_a_root_for_are_its_children() -> None:
    orphans = {name for name, one in REGISTRIES.items() if one.parent is None}
    assert orphans == {'HEADS', 'LOSSES', 'REGIONS'}
