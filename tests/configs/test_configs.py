"""Every shipped config: depth, length, keys, and a model that builds."""

import ast
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from lucid.apis import complete, load_config, override
from lucid.apis.data import build_dataloader
from lucid.engine.optimizers import MuSGD
from lucid.registry import (
    DATASETS,
    HOOKS,
    METRICS,
    MODELS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    TRANSFORMS,
)

ROOT = Path(__file__).parents[2] / 'configs'
LEAVES = sorted(path for path in ROOT.rglob('*.py') if path.parent.name != '_base_')
# Head, loss, targets and metric of the tasks beside detect, and the data of their configs.
TASKS = {
    'segment': ('SegmentHead', 'SegmentationLoss', ('boxes', 'masks'), 'CocoMaskMetric', 'coco'),
    'oriented': ('OrientedHead', 'OrientedLoss', ('boxes', 'rboxes'), 'RotatedMetric', 'dota'),
    'keypoint': ('KeypointHead', 'KeypointLoss', ('boxes', 'keypoints'), 'CocoKeypointMetric', 'coco'),
}
IMAGES_OF_BCCD = (('train_dataloader', 292), ('val_dataloader', 72))
IDS = [str(path.relative_to(ROOT)) for path in LEAVES]


@pytest.fixture(params=LEAVES, ids=IDS)
def leaf(request: pytest.FixtureRequest) -> Path:
    return request.param


def bases(path: Path) -> list[Path]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == '_base_':  # type: ignore[attr-defined]
            return [path.parent / name for name in ast.literal_eval(node.value)]
    return []


def test_the_names_that_the_docs_promise_are_there() -> None:
    promised = ['yolo_capture.py', 'yolo/detect_n_bccd.py', 'yolo/detect_n_folder.py', 'yolo/overfit_shapes.py']
    names = ('detect_{}_coco', 'segment_{}_coco', 'oriented_{}_dota', 'keypoint_{}_coco')
    scales = [f'yolo/{name.format(scale)}.py' for name in names for scale in 'nsmlx']
    tasks = [f'yolo/{form}.py' for task in TASKS for form in (f'{task}_n_shapes', f'overfit_{task}_shapes')]
    assert {*promised, *scales, *tasks} <= set(IDS)


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize('scale', 'nsmlx')
def test_each_task_and_scale_has_its_head_loss_targets_and_metric(task: str, scale: str) -> None:
    head, loss, targets, metric, name = TASKS[task]
    cfg = load_config(ROOT / f'yolo/{task}_{scale}_{name}.py')
    assert cfg.model.scale == scale
    points = {'num_keypoints': 17} if task == 'keypoint' else {}
    with torch.device('meta'):  # no values are drawn
        detector = MODELS.build({**cfg.model, 'num_classes': 2, **points})
    assert detector.task == task
    assert (type(detector.network.head).__name__, type(detector.criterion).__name__) == (head, loss)
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        assert tuple(loader.dataset.targets) == targets
        assert loader.collate_fn.get('masks', False) is (task == 'segment')
    assert cfg.val_evaluator.type == metric


def test_a_leaf_is_short_shallow_and_deletes_nothing(leaf: Path) -> None:
    assert len(leaf.read_text().splitlines()) <= 60
    assert '_delete_' not in leaf.read_text()
    assert not any(bases(second) for first in bases(leaf) for second in bases(first)), 'deeper than three files'


def test_it_has_no_key_that_its_class_does_not_take(leaf: Path) -> None:
    load_config(leaf)  # validates


def test_its_model_optimizer_schedule_hooks_and_transforms_build(leaf: Path) -> None:
    cfg = complete(load_config(leaf))
    points = {'num_keypoints': 17} if cfg.model.get('head', {}).get('type') == 'KeypointHead' else {}
    with torch.device('meta'):  # no values are drawn
        detector = MODELS.build({**cfg.model, 'num_classes': 80, **points})
    assert sum(parameter.numel() for parameter in detector.network.parameters()) > 1e6
    few = [torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4))]
    optimizer = OPTIMIZERS.build({**cfg.optim_wrapper.optimizer, 'params': few})
    assert isinstance(optimizer, MuSGD)
    wrapper = OPTIM_WRAPPERS.build({**cfg.optim_wrapper, 'optimizer': optimizer})
    PARAM_SCHEDULERS.build(
        {**cfg.param_scheduler, 'optimizer': wrapper, 'epoch_length': 10, 'end': cfg.train_cfg.max_epochs}
    )
    for hook in cfg.default_hooks.values():
        if hook is not None:
            HOOKS.build(dict(hook))
    METRICS.build(dict(cfg.val_evaluator))
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        assert DATASETS.get(loader.dataset.type) is not None
        for transform in loader.dataset.pipeline:
            TRANSFORMS.build({**transform, **({'image_size': 64} if takes_size(transform.type) else {})})


def takes_size(name: str) -> bool:
    return name in ('Mosaic', 'RandomAffine', 'Letterbox')


def test_a_loader_of_each_builds_over_any_data(leaf: Path) -> None:
    cfg = load_config(leaf).train_dataloader
    cfg.pop('device_images', None)  # which wants a data set of image files
    loader = build_dataloader(cfg, dataset=list(range(20)), seed=0)
    assert len(loader) == (20 // cfg.batch_size if cfg.get('drop_last') else -(-20 // cfg.batch_size))


def test_bccd_in_a_hurry_has_batches_of_one_size_alone() -> None:
    cfg = load_config(ROOT / 'yolo/detect_n_bccd_fast.py')
    cfg.train_dataloader.pop('device_images')
    train, val = (build_dataloader(cfg[name], dataset=list(range(size)), seed=0) for name, size in IMAGES_OF_BCCD)
    assert len(train) == 18
    assert [len(keys) for keys in val.batch_sampler] == [24, 24, 24]


def test_what_a_child_changes_once_is_changed_everywhere() -> None:
    """data_root, image_size and max_epochs are stated in one place."""
    cfg = complete(load_config(ROOT / 'yolo/detect_n_folder.py', {'data_root': 'mine', 'image_size': 320}))
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        assert (loader.dataset.data_root, loader.dataset.image_size) == ('mine', 320)
    assert 'max_epochs' not in Config({key: value for key, value in cfg.items() if key != 'train_cfg'}).pretty_text


@pytest.mark.parametrize(
    ('scale', 'zoom', 'mixup', 'copy_paste'),
    [('n', 0.5, 0.0, 0.1), ('s', 0.9, 0.05, 0.15), ('m', 0.9, 0.1, 0.4), ('l', 0.9, 0.1, 0.5), ('x', 0.9, 0.2, 0.6)],
)
def test_the_augmentation_of_each_scale_is_that_of_the_table(
    scale: str, zoom: float, mixup: float, copy_paste: float
) -> None:
    """R1 Table S3, as the method facts read it."""
    cfg = load_config(ROOT / f'yolo/detect_{scale}_coco.py')
    assert cfg.model.scale == scale
    dataset = cfg.train_dataloader.dataset
    assert list(dataset.targets) == ['boxes', 'polygons']
    order = [transform.type for transform in dataset.pipeline]
    assert order == ['Mosaic', 'RandomAffine', 'Mixup', 'CopyPaste', 'RandomHSV', 'HorizontalFlip']
    mosaic, affine, blend, paste, _, _ = dataset.pipeline
    assert (affine.scale, blend.prob, paste.prob) == (zoom, mixup, copy_paste)
    assert mosaic.close_last == blend.close_last == paste.close_last == 10


@pytest.mark.parametrize('name', ['yolo_capture', 'yolo/detect_n_bccd', 'yolo/detect_n_folder'])
def test_configs_that_records_rest_on_have_the_plain_pipeline(name: str) -> None:
    dataset = load_config(ROOT / f'{name}.py').train_dataloader.dataset
    assert 'targets' not in dataset
    assert dataset.pipeline == [
        {'type': 'Mosaic', 'prob': 1.0, 'close_last': 10},
        {'type': 'RandomAffine', 'scale': 0.5, 'translate': 0.1},
        {'type': 'RandomHSV'},
        {'type': 'HorizontalFlip', 'prob': 0.5},
    ]


def test_the_flags_of_the_tools_change_the_config() -> None:
    cfg = load_config(ROOT / 'yolo_capture.py')
    changed = override(cfg, work_dir='w', seed=3, deterministic=True, amp='float16', launcher='pytorch')
    assert changed.work_dir == 'w'
    assert changed.randomness == {'seed': 3, 'deterministic': True}
    assert (changed.optim_wrapper.type, changed.optim_wrapper.dtype) == ('AmpOptimWrapper', 'float16')
    assert changed.optim_wrapper.clip_grad == cfg.optim_wrapper.clip_grad
    assert changed.launcher == 'pytorch'
    assert override(cfg).to_dict() == cfg.to_dict()
