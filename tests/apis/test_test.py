import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.config import Config

from lucid import apis
from lucid.apis import CheckpointError
from lucid.engine import checkpoint as files

Make = Callable[..., Config]


@pytest.fixture(scope='module')
def trained(tiny: Make) -> Config:
    cfg = tiny(train_cfg__max_epochs=1)
    apis.train(cfg)
    return cfg


def best(cfg: Config) -> Path:
    return Path(cfg.work_dir, 'last.pth')


def test_metrics_are_those_of_the_validation_in_training(trained: Config) -> None:
    metrics = apis.test(trained, best(trained))
    assert metrics['coco/mAP'] == pytest.approx(files.load(best(trained))['meta']['best_score'])


def test_detections_and_pictures_go_where_they_are_asked_to(trained: Config, tmp_path: Path) -> None:
    apis.test(trained, best(trained), out=tmp_path / 'found.json', show_dir=tmp_path / 'shown')
    rows = json.loads((tmp_path / 'found.json').read_text())
    assert {'image_id', 'category_id', 'bbox', 'score'} == rows[0].keys()
    assert len(list((tmp_path / 'shown').glob('*.png'))) == 8
    assert {path.stem for path in (tmp_path / 'shown/figures').iterdir()} == {
        *('class_ap', 'precision_recall', 'confusion_matrix', 'confusion_matrix_normalised', 'worst_images')
    }


def test_both_paths_come_from_one_forward_per_batch_and_one_alone_is_the_same(
    trained: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from lucid.models.detectors import YOLONetwork

    calls, forward = [], YOLONetwork.forward
    monkeypatch.setattr(YOLONetwork, 'forward', lambda *given: calls.append(1) or forward(*given))
    both = apis.test(trained, best(trained), out=tmp_path / 'both.json')
    assert len(calls) == 2  # 8 images in batches of 4
    assert {'coco/mAP', 'coco/nms/mAP', 'coco/recall50', 'coco/nms/recall50'} <= both.keys()
    for path, prefix in (('one_to_one', 'coco/'), ('nms', 'coco/nms/')):
        alone = apis.test(trained, best(trained), path=path, out=tmp_path / f'{path}.json')
        assert alone[f'{prefix}recall50'] == both[f'{prefix}recall50']
        assert all(key.startswith('coco/nms/') for key in alone) == (path == 'nms')
    written = {file.stem: file.read_text() for file in tmp_path.glob('*.json')}
    assert written['both'] == written['one_to_one'] != written['nms']


def test_a_metric_that_the_model_cannot_serve_is_a_mistake_of_the_config(
    trained: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lucid.models.heads import DetectHead

    monkeypatch.setattr(DetectHead, 'paths', ('one_to_one',))
    with pytest.raises(apis.ConfigError, match="evaluates the path 'nms', but YOLODetector predicts by one_to_one"):
        apis.test(trained, best(trained))


def test_raw_and_averaged_weights_differ(trained: Config, tmp_path: Path) -> None:
    for weights in ('raw', 'ema'):
        apis.test(trained, best(trained), weights=weights, out=tmp_path / f'{weights}.json')
    assert (tmp_path / 'raw.json').read_text() != (tmp_path / 'ema.json').read_text()


def test_a_checkpoint_of_another_scale_is_refused(tiny: Make, tmp_path: Path) -> None:
    runner = apis.build_runner(apis.complete(tiny(scale_n=True)), mode='test')
    classes = list(runner.test_dataloader.dataset.classes)
    files.save({'state_dict': runner.model.state_dict(), 'classes': classes, 'meta': {}}, tmp_path / 'n.pth')
    with pytest.raises(CheckpointError, match=r'does not fit the model: tensors .*Use the config that it was trained'):
        apis.test(tiny(scale_n=True, model__scale='s'), tmp_path / 'n.pth')


def test_a_checkpoint_of_other_classes_is_refused(trained: Config, tmp_path: Path) -> None:
    content = files.load(best(trained))
    content['classes'] = ['a', 'b', 'c', 'd']
    files.save(content, tmp_path / 'other.pth')
    with pytest.raises(CheckpointError, match=r"knows the classes \['a', .*, the data has \['rectangle'"):
        apis.test(trained, tmp_path / 'other.pth')


def test_the_config_that_was_passed_in_stays_as_it_was(trained: Config, tmp_path: Path) -> None:
    before = trained.to_dict()
    apis.test(trained, best(trained), out=tmp_path / 'found.json', show_dir=tmp_path)
    assert trained.to_dict() == before
