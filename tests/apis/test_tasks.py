"""A config whose head, loss, data and metrics are of several tasks is refused before anything is read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lucid.apis import ConfigError, build_runner, complete, load_config
from lucid.apis.tasks import check_task

CONFIGS = Path(__file__).parents[2] / 'configs'
TASKS = ('segment', 'oriented', 'keypoint')
Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def make(task: str, options: dict[str, Any] | None = None) -> Any:
        name = 'yolo_capture.py' if task == 'detect' else f'yolo/{task}_n_shapes.py'
        return complete(load_config(CONFIGS / name, {'data_root': str(tmp_path / 'shapes'), **(options or {})}))

    return make


@pytest.mark.parametrize('task', ['detect', *TASKS])
def test_the_shipped_configs_pass(load: Load, task: str) -> None:
    for split in ('train', 'val'):
        check_task(load(task), split=split)


@pytest.mark.parametrize(
    ('task', 'options', 'message'),
    [
        (
            'detect',
            {'model.head.type': 'OrientedHead'},
            r"OrientedHead learns from rboxes, and train_dataloader\.dataset\.targets is \('boxes',\); "
            r"set it to \('boxes', 'rboxes'\)",
        ),
        (
            'segment',
            {'train_dataloader.collate_fn.masks': False},
            r'SegmentHead learns from masks; set train_dataloader\.collate_fn\.masks=True',
        ),
        (
            'segment',
            {'val_dataloader.dataset.targets': ('boxes',)},
            r"val_dataloader\.collate_fn makes masks, and val_dataloader\.dataset\.targets is \('boxes',\); add",
        ),
        (
            'detect',
            {'train_dataloader.collate_fn.masks': True},
            r"train_dataloader\.collate_fn makes masks, .* add 'masks' to it, or set masks=False",
        ),
        (
            'segment',
            {'model.loss.type': 'DetectionLoss'},
            r"model\.loss\.type='DetectionLoss' is the loss of the task 'detect', and the head predicts 'segment'; "
            r"remove model\.loss\.type, which is then 'SegmentationLoss', or change model\.head\.type",
        ),
        (
            'segment',
            {'val_evaluator.type': 'RotatedMetric'},
            r"val_evaluator\.type is 'RotatedMetric', which compares rboxes, and SegmentHead predicts none; "
            "set 'CocoMaskMetric'",
        ),
        (
            'detect',
            {'val_evaluator.type': 'CocoMaskMetric'},
            r"compares masks, and DetectHead predicts none; set 'CocoMetric'",
        ),
    ],
)
def test_parts_of_two_tasks_are_refused_with_file_key_and_remedy(
    load: Load, tmp_path: Path, task: str, options: dict[str, Any], message: str
) -> None:
    name = 'yolo_capture' if task == 'detect' else f'{task}_n_shapes'
    with pytest.raises(ConfigError, match=rf'{name}\.py: .*{message}'):
        build_runner(load(task, options), mode='train')
    assert not (tmp_path / 'shapes').exists()


@pytest.mark.parametrize('task', ['segment', 'oriented'])
def test_boxes_alone_may_be_evaluated(load: Load, task: str) -> None:
    check_task(load(task, {'val_evaluator.type': 'CocoMetric'}), split='val')


def test_outlines_will_do_for_masks(load: Load) -> None:
    check_task(load('segment', {'train_dataloader.dataset.targets': ('boxes', 'polygons')}), split='train')
