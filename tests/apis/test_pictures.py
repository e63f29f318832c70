"""What a training with the hooks of the base config leaves to look at."""

from collections.abc import Callable
from pathlib import Path

from mmengine.config import Config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lucid import apis
from lucid.engine import checkpoint as files


def test_training_leaves_curves_and_figures_as_files_and_in_tensorboard(tiny: Callable[..., Config]) -> None:
    cfg = tiny(train_cfg__max_epochs=1)
    cfg.default_hooks.figures = {'type': 'EvaluationFiguresHook', 'num_worst': 1}
    cfg.default_hooks.curves = {'type': 'CurvesHook'}
    apis.train(cfg)
    names = {
        'curves',
        'class_ap',
        'precision_recall',
        'confusion_matrix',
        'confusion_matrix_normalised',
        'worst_images',
    }
    assert names <= {path.stem for path in Path(cfg.work_dir, 'pictures').glob('*.*')}

    events = EventAccumulator(str(next(Path(cfg.work_dir).rglob('events*')).parent)).Reload()
    shown = {'curves', *(f'evaluation/{name}' for name in names - {'curves'})}
    assert shown <= set(events.Tags()['images'])
    assert [image.step for image in events.Images('curves')] == [1]

    # The points of the curves are those that TensorBoard has as scalars.
    curves = files.load(Path(cfg.work_dir, 'last.pth'))['curves']
    logged = events.Scalars('train/loss') if 'train/loss' in events.Tags()['scalars'] else events.Scalars('loss')
    assert [round(row['epoch'] * 5) for row in curves['training']] == [scalar.step for scalar in logged] == [2, 4, 5]
    for row, scalar in zip(curves['training'], logged, strict=True):
        assert abs(row['loss'] - scalar.value) < 1e-4 * scalar.value
    (row,) = curves['validations']
    assert row['coco/nms/mAP'] == events.Scalars('coco/nms/mAP')[0].value
