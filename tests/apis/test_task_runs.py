"""A run of each task beyond detection, and what its checkpoint is enough for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faster_coco_eval import mask as coco_mask
from mmengine.config import Config

from lucid import apis
from lucid.apis import CheckpointError, ConfigError
from lucid.apis.inference import inference_detector, init_detector
from lucid.engine import checkpoint as files

Make = Callable[..., Config]
HEADS = {'segment': 'SegmentHead', 'oriented': 'OrientedHead', 'keypoint': 'KeypointHead'}
KINDS = {'segment': 'masks', 'oriented': 'rboxes', 'keypoint': 'keypoints'}
POINTS = ('top', 'right', 'bottom', 'left')


def task_config(tiny: Make, task: str, **options: Any) -> Config:
    """One epoch, and a validation of its boxes."""
    cfg = tiny(train_cfg__max_epochs=1, train_cfg__val_interval=1, **options)
    cfg.model.head = {'type': HEADS[task], 'box_start': 1.0}
    cfg.default_hooks.checkpoint.save_best = None
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.targets = ['boxes', KINDS[task]]
        if task == 'segment':
            loader.collate_fn.masks = True
    return cfg


@pytest.fixture(scope='module')
def trained(tiny: Make) -> Callable[[str], Config]:
    """A run of a task, made once."""
    made: dict[str, Config] = {}

    def run(task: str) -> Config:
        if task not in made:
            made[task] = task_config(tiny, task)
            apis.train(made[task])
        return made[task]

    return run


def last(cfg: Config) -> Path:
    return Path(cfg.work_dir, 'last.pth')


@pytest.mark.parametrize('task', HEADS)
@pytest.mark.parametrize('path', ['one_to_one', 'nms'])
def test_a_checkpoint_alone_predicts_the_kind_of_its_task(
    trained: Callable[[str], Config], task: str, path: str
) -> None:
    detector = init_detector(last(trained(task)), device='cpu', path=path)
    images = [np.random.default_rng(0).integers(0, 256, (40, 100, 3), dtype=np.uint8), np.zeros((80, 60, 3), np.uint8)]
    found = inference_detector(detector, images, batch_size=2, score_threshold=0.0)
    assert sum(len(one['scores']) for one in found) > 0
    for one, image in zip(found, images, strict=True):
        rows = one[KINDS[task]]
        assert len(rows) == len(one['boxes']) == len(one['labels']) == len(one['scores'])
        if task == 'segment':
            assert all(coco_mask.decode(mask).shape == image.shape[:2] for mask in rows)
        else:
            assert rows.shape[1:] == ((5,) if task == 'oriented' else (4, 2))
            assert rows.isfinite().all()
    # What is left out above a threshold is left out of every kind, and the rest are the same rows.
    middle = found[0]['scores'].median().item()
    above = inference_detector(detector, images, batch_size=2, score_threshold=middle)[0]
    count = len(above['scores'])
    assert 0 < count < len(found[0]['scores'])
    kept, whole = above[KINDS[task]], found[0][KINDS[task]][:count]
    assert kept == whole if task == 'segment' else torch.equal(kept, whole)


def test_the_names_of_keypoints_are_kept_with_the_weights(trained: Callable[[str], Config], tmp_path: Path) -> None:
    content = files.load(last(trained('keypoint')))
    assert content['keypoint_names'] == list(POINTS)
    assert content['meta']['cfg']['model']['num_keypoints'] == 4
    assert files.load(last(trained('segment')))['keypoint_names'] == []
    assert init_detector(last(trained('keypoint')), device='cpu').keypoint_names == POINTS

    # A config that states no number takes that of the checkpoint, and one that states another is refused.
    config = tmp_path / 'mine.py'
    network = {key: dict(value) for key, value in trained('keypoint').model.items() if key in ('backbone', 'neck')}
    for stated, fits in (({}, True), ({'num_keypoints': 4}, True), ({'num_keypoints': 5}, False)):
        model = {'type': 'YOLODetector', **network, 'head': {'type': 'KeypointHead'}, **stated}
        config.write_text(f'model = {model}\nimage_size = 64\n')
        if fits:
            detector = init_detector(last(trained('keypoint')), config=config, device='cpu')
            assert detector.model.num_keypoints == 4
        else:
            with pytest.raises(ValueError, match=r'builds 5 keypoints, .* names 4; use the config that it was trained'):
                init_detector(last(trained('keypoint')), config=config, device='cpu')


def test_a_test_and_a_resumed_run_want_the_same_keypoints(trained: Callable[[str], Config], tmp_path: Path) -> None:
    cfg = trained('keypoint')
    content = files.load(last(cfg))
    content['keypoint_names'] = ['a', 'b', 'c', 'd']
    files.save(content, tmp_path / 'other.pth')
    with pytest.raises(CheckpointError, match=r"knows the keypoints \['a', .*, the data has \['top'"):
        apis.test(cfg, tmp_path / 'other.pth')
    longer = Config(cfg.to_dict())
    longer.train_cfg.max_epochs = 2
    with pytest.raises(CheckpointError, match='is of another run: keypoint_names'):
        apis.train(longer, resume=tmp_path / 'other.pth')


@pytest.mark.parametrize('task', HEADS)
def test_training_without_the_kind_of_the_task_names_the_key_to_set(tiny: Make, task: str) -> None:
    cfg = task_config(tiny, task)
    if task == 'segment':
        cfg.train_dataloader.collate_fn.masks = False
    else:
        cfg.train_dataloader.dataset.targets = ['boxes']
    with pytest.raises((ValueError, ConfigError), match=r'train_dataloader\.(collate_fn|dataset\.targets)'):
        apis.train(cfg)
