"""The same images and boxes train to the same losses and evaluate to the same figures, whatever their layout."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config

from lucid.apis import load_config, train
from lucid.apis.conversion import convert
from lucid.apis.data import build_dataset, build_metric

FOLDER = Path(__file__).parents[2] / 'configs/yolo/detect_n_folder.py'
SMALL = {
    'image_size': 64,
    'train_cfg.max_epochs': 1,
    'train_cfg.val_interval': 1,
    'default_hooks.checkpoint': None,
    'optim_wrapper.optimizer.ns_steps': 1,
    **{f'default_hooks.{name}': None for name in ('pictures', 'figures', 'curves')},
    'train_dataloader.batch_size': 2,
    'train_dataloader.num_workers': 0,
    'train_dataloader.persistent_workers': False,
    'val_dataloader.num_workers': 0,
    'val_dataloader.persistent_workers': False,
}
LAYOUTS = ('coco', 'yolo', 'voc')


@pytest.fixture
def cells(test_data: Path, tmp_path: Path) -> Path:
    """Eight training and four validation photographs of blood cells, in a folder per layout."""
    for split, number in (('train', 8), ('val', 4)):
        content = json.loads((test_data / f'bccd/annotations/{split}.json').read_text())
        content['images'] = content['images'][:number]
        ids = {image['id'] for image in content['images']}
        content['annotations'] = [row for row in content['annotations'] if row['image_id'] in ids]
        for folder in ('annotations', split):
            (tmp_path / 'coco' / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / f'coco/annotations/{split}.json').write_text(json.dumps(content))
        for image in content['images']:
            shutil.copy(test_data / 'bccd' / split / image['file_name'], tmp_path / 'coco' / split)
    for layout in ('yolo', 'voc'):
        convert(tmp_path / 'coco', tmp_path / layout, layout=layout)
    return tmp_path


def config(root: Path, work_dir: Path, **options: Any) -> Config:
    cfg = load_config(FOLDER, {**SMALL, 'data_root': str(root), **options})
    cfg.work_dir = str(work_dir)
    cfg.custom_hooks = [{'type': 'RecordLosses'}]
    return cfg


def test_blood_cells_train_to_the_same_losses_in_every_layout(
    cells: Path, losses: Callable[[Config], dict[int, dict[str, Any]]]
) -> None:
    """Boxes of whole pixels come back from 15 decimals as the same float32, so every number is equal to the bit."""
    torch.set_num_threads(1)  # the operators are small: a second thread on a busy machine costs minutes
    rows, figures = [], []
    for layout in LAYOUTS:
        cfg = config(cells / layout, cells / 'work' / layout)
        runner = train(cfg)
        assert runner.train_dataloader.dataset.layout == layout
        rows.append(losses(cfg))
        scalars = runner.message_hub.log_scalars
        figures.append({key: scalars[key].current() for key in scalars if key.startswith('val/coco')})
    assert sorted(rows[0]) == [0, 1, 2, 3]
    assert rows[0] == rows[1] == rows[2]
    assert len(figures[0]) > 10
    assert str(figures[0]) == str(figures[1]) == str(figures[2])  # as text: nan is nan
    other = config(cells / 'yolo', cells / 'work/other', **{'randomness.seed': 1})
    train(other)
    assert losses(other)[0]['loss'] != rows[0][0]['loss'], 'control: another seed has other losses'


@pytest.mark.parametrize('layout', LAYOUTS)
def test_the_metric_evaluates_against_the_boxes_of_every_layout(cells: Path, layout: str) -> None:
    dataset = build_dataset(
        {'type': 'FolderDataset', 'data_root': str(cells / layout), 'split': 'val', 'image_size': 64}
    )
    metric = build_metric({'type': 'CocoMetric'}, dataset)
    metric.dataset_meta = dataset.metainfo
    for index in range(len(dataset)):
        truth = dataset.ground_truth(index)
        boxes, labels = torch.from_numpy(truth.boxes), torch.from_numpy(truth.labels)
        row = {'image_id': truth.image_id, 'boxes': boxes, 'scores': torch.ones(len(boxes)), 'labels': labels}
        metric.process(None, [row])
    figures = metric.evaluate(len(dataset))
    assert figures['coco/mAP'] == pytest.approx(1)
    assert figures['coco/recall50'] == 1
    assert 'coco/AP/Platelets' in figures
