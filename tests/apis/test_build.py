import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from torch.utils.data import Dataset

from lucid.apis import ConfigError, build_runner, complete, load_config
from lucid.apis.data import build_dataloader, check_agreement, settle_classes, settle_keypoints
from lucid.datasets import DetectionDataset

CONFIG = Path(__file__).parents[2] / 'configs' / 'yolo_capture.py'
Make = Callable[..., Config]


class Named(Dataset):
    """Stands for a data set with classes."""

    def __init__(self, *classes: str, ids: tuple[int, ...] = ()) -> None:
        self.classes = classes
        self.category_ids = ids or tuple(range(1, len(classes) + 1))
        self.source = f'{"".join(classes)}.json'


class TestLoadConfig:
    def test_a_missing_file_names_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"yolo_captur\.py does not exist; did you mean '.*yolo_capture\.py'"):
            load_config(CONFIG.with_name('yolo_captur.py'))

    @pytest.mark.parametrize('text', ['model = dict(', 'model = dict(x=unknown)', "_base_ = ['nowhere.py']"])
    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path, text: str) -> None:
        (tmp_path / 'broken.py').write_text(text)
        with pytest.raises(ConfigError, match=r'broken\.py cannot be read: \w+Error: .*; correct the file'):
            load_config(tmp_path / 'broken.py')

    def test_a_misspelt_key_of_a_child_is_refused_naming_the_child(self, tmp_path: Path) -> None:
        (tmp_path / 'child.py').write_text(f"_base_ = ['{CONFIG}']\ntrain_cfg = dict(max_epoch=3)\n")
        with pytest.raises(ConfigError, match=r'child\.py: train_cfg\.max_epoch is no key of EpochTrainLoop'):
            load_config(tmp_path / 'child.py')


class TestComplete:
    def test_the_work_directory_is_named_by_the_config(self) -> None:
        assert complete(load_config(CONFIG)).work_dir == 'work_dirs/yolo_capture'

    def test_data_sets_get_root_size_and_seed_unless_they_state_their_own(self) -> None:
        cfg = load_config(CONFIG, {'val_dataloader.dataset.image_size': 96, 'randomness.seed': 5})
        done = complete(cfg)
        train, val = done.train_dataloader.dataset, done.val_dataloader.dataset
        assert (train.data_root, train.image_size, train.seed) == ('data/shapes', 160, 5)
        assert (val.data_root, val.image_size, val.seed) == ('data/shapes', 96, 5)
        assert 'data_root' not in cfg.train_dataloader.dataset

    def test_without_a_seed_it_is_zero_and_stated(self) -> None:
        assert complete(load_config(CONFIG, {'randomness.seed': None})).randomness.seed == 0


class TestBuildRunner:
    def test_each_annotation_file_is_parsed_once_per_data_set(
        self, tiny: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cfg = complete(tiny())
        build_runner(cfg, mode='train')  # writes the images
        built: list[str] = []
        init = DetectionDataset.__init__

        def spy(self: DetectionDataset, *args: Any, **kwargs: Any) -> None:
            built.append(args[0].source.parent.name)
            init(self, *args, **kwargs)

        monkeypatch.setattr(DetectionDataset, '__init__', spy)
        runner = build_runner(cfg, mode='train')
        _ = runner.train_loop, runner.val_loop
        assert built == ['train', 'val']

    def test_the_number_of_classes_and_the_ground_truth_come_from_the_data(self, tiny: Make) -> None:
        runner = build_runner(complete(tiny()), mode='train')
        assert runner.model.num_classes == 4
        assert runner.cfg.model.num_classes == 4
        metric = runner.val_evaluator.metrics[0]
        assert str(metric.ann_file) == runner.val_dataloader.dataset.annotation_file.__str__()

    def test_a_metric_that_does_not_exist_cannot_choose_the_best_checkpoint(self, tiny: Make) -> None:
        cfg = complete(tiny(default_hooks__checkpoint__save_best='coco/map'))
        with pytest.raises(ConfigError, match="'coco/mAP'"):
            build_runner(cfg, mode='train')

    def test_a_stated_number_of_classes_that_disagrees_is_an_error(self, tiny: Make) -> None:
        message = r'model\.num_classes is 80, but .*train.* has 4 classes .*; remove model\.num_classes'
        with pytest.raises(ConfigError, match=message):
            build_runner(complete(tiny(model__num_classes=80)), mode='train')

    def test_missing_data_is_an_error_of_the_config(self, tmp_path: Path) -> None:
        cfg = load_config(CONFIG.parent / 'yolo' / 'detect_n_folder.py', {'data_root': str(tmp_path / 'nowhere')})
        with pytest.raises(ConfigError, match=r'nowhere does not exist; set data_root'):
            build_runner(complete(cfg), mode='train')

    def test_a_key_that_a_class_needs_is_named(self, tiny: Make) -> None:
        cfg = tiny()
        del cfg.train_dataloader.dataset['num_images']
        with pytest.raises(ConfigError, match=r'ShapesDataset: .*num_images.*; state it in the config'):
            build_runner(complete(cfg), mode='train')

    @pytest.mark.parametrize(
        ('options', 'message'),
        [
            ({'model__scale': 'z'}, "scale 'z'|scale='z'"),
            ({'optim_wrapper__optimizer__momentum': 1.5}, r'momentum=1\.5'),
            ({'default_hooks__checkpoint__interval': -1}, 'use interval >= 1'),
        ],
    )
    def test_what_a_part_refuses_is_an_error_of_the_config(
        self, tiny: Make, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            build_runner(complete(tiny(scale_n=True, **options)), mode='train')

    def test_in_a_test_the_hooks_of_training_are_left_out(self, tiny: Make) -> None:
        runner = build_runner(complete(tiny()), mode='test')
        names = {type(hook).__name__ for hook in runner.hooks}
        assert names == {'DeferredInfoHook', 'LoggerHook', 'VisualizationHook', 'ProgressHook', 'RecordLosses'}

    def test_a_hook_set_to_none_is_off(self, tiny: Make) -> None:
        runner = build_runner(complete(tiny(default_hooks__ema=None, default_hooks__checkpoint=None)), mode='train')
        names = {type(hook).__name__ for hook in runner.hooks}
        assert not names & {'EMAHook', 'CheckpointHook'}


class TestClasses:
    def test_they_are_settled_from_the_data(self) -> None:
        cfg = Config({'model': {'type': 'YOLODetector'}})
        assert settle_classes(cfg, Named('a', 'b')) == ('a', 'b')
        assert cfg.model.num_classes == 2

    def test_the_same_categories_agree(self) -> None:
        check_agreement(Named('a', 'b'), Named('a', 'b'), ('a', 'b'))

    @pytest.mark.parametrize('other', [Named('b', 'a'), Named('a'), Named('a', 'b', ids=(0, 1))])
    def test_categories_numbered_differently_are_refused(self, other: Named) -> None:
        with pytest.raises(ConfigError, match=r'ab\.json and .*number their classes differently: .*the same ids'):
            check_agreement(Named('a', 'b'), other, ('a', 'b'))


class Pointed(Named):
    """Stands for a data set with one class, whose objects have keypoints that are loaded."""

    def __init__(self, *keypoints: str) -> None:
        super().__init__('a')
        self.metainfo = {'keypoint_names': keypoints}


def keypoint_config(**model: Any) -> Config:
    return Config({'model': {'type': 'YOLODetector', 'head': {'type': 'KeypointHead'}, **model}})


class TestKeypoints:
    def test_their_number_is_settled_from_the_data(self) -> None:
        cfg = keypoint_config()
        assert settle_keypoints(cfg, Pointed('nose', 'tail')) == ('nose', 'tail')
        assert cfg.model.num_keypoints == 2

    def test_names_count_though_the_points_are_not_loaded(self) -> None:
        cfg, dataset = keypoint_config(), Named('a')
        dataset.keypoint_names = ('nose', 'tail')
        assert settle_keypoints(cfg, dataset) == ('nose', 'tail')

    def test_a_head_without_keypoints_hears_nothing_of_them(self) -> None:
        for model in ({'type': 'YOLODetector'}, {'type': 'YOLODetector', 'head': {'type': 'SegmentHead'}}):
            cfg = Config({'model': model})
            assert settle_keypoints(cfg, Pointed('nose')) == ()
            assert 'num_keypoints' not in cfg.model

    def test_a_stated_number_that_disagrees_is_an_error(self) -> None:
        message = r'model\.num_keypoints is 17, but a\.json has 2 keypoints \(nose, tail\); remove model'
        with pytest.raises(ConfigError, match=message):
            settle_keypoints(keypoint_config(num_keypoints=17), Pointed('nose', 'tail'))
        assert settle_keypoints(keypoint_config(num_keypoints=2), Pointed('nose', 'tail')) == ('nose', 'tail')

    def test_data_that_names_none_needs_a_stated_number(self) -> None:
        with pytest.raises(
            ConfigError, match=r"head predicts keypoints, but a\.json names none; .* add 'keypoints' to"
        ):
            settle_keypoints(keypoint_config(), Named('a'))
        cfg = keypoint_config(num_keypoints=3)
        assert settle_keypoints(cfg, Named('a')) == ()
        assert cfg.model.num_keypoints == 3

    def test_training_and_validation_must_name_the_same(self) -> None:
        names = ('nose', 'tail')
        check_agreement(Pointed(*names), Pointed(*names), ('a',), keypoints=names)
        check_agreement(Pointed(*names), Named('a'), ('a',), keypoints=names)
        with pytest.raises(
            ConfigError, match=r'name their keypoints differently: .*; give both files the same, in the'
        ):
            check_agreement(Pointed(*names), Pointed('tail', 'nose'), ('a',), keypoints=names)
        check_agreement(Pointed(*names), Pointed('tail', 'nose'), ('a',))  # nobody predicts them


class TestLoader:
    def test_workers_and_no_workers_give_the_same_batches(self, tiny: Make) -> None:
        cfg = complete(tiny())
        dataset = build_runner(cfg, mode='train').train_dataloader.dataset
        runs = []
        for workers in (0, 2):
            options = {**cfg.train_dataloader, 'num_workers': workers}
            loader = build_dataloader(options, dataset=dataset, seed=0)
            loader.sampler.set_epoch(1, max_epochs=20)
            runs.append([(batch['inputs'].numpy().tobytes(), batch['metas'][0]['file']) for batch in loader])
        assert runs[0] == runs[1]

    def test_options_that_need_workers_are_ignored_without_them(self) -> None:
        cfg = {'batch_size': 2, 'num_workers': 0, 'persistent_workers': True, 'prefetch_factor': 4}
        assert len(build_dataloader(cfg, dataset=list(range(4)), seed=0)) == 2

    def test_the_generators_of_the_process_stay_where_they_are(self) -> None:
        import torch

        state = torch.get_rng_state()
        loader = build_dataloader({'batch_size': 2}, dataset=list(range(4)), seed=0)
        assert len(list(loader)) == 2
        assert torch.equal(torch.get_rng_state(), state)


def test_the_resolved_config_can_be_used_as_a_config(tiny: Make, tmp_path: Path) -> None:
    runner = build_runner(complete(tiny()), mode='train')
    saved = Path(runner.work_dir, 'config.py')
    again = load_config(saved)
    assert again.to_dict() == runner.cfg.to_dict()
    assert json.dumps(again.to_dict())


def test_bad_data_is_refused_with_the_key_of_its_loader(tiny: Make, tmp_path: Path) -> None:
    for name in ('images', 'labels'):
        (tmp_path / name).mkdir()
    cv2.imwrite(str(tmp_path / 'images/a.jpg'), np.zeros((40, 60, 3), np.uint8))
    (tmp_path / 'labels/a.txt').write_text('7 0.5 0.5 0.5 0.5\n')
    (tmp_path / 'data.yaml').write_text('names: [ant]\ntrain: images\nval: images\n')
    cfg = tiny()
    for name in ('train', 'val'):
        cfg[f'{name}_dataloader'].dataset = {'type': 'FolderDataset', 'data_root': str(tmp_path), 'split': name}
    for name in ('train', 'val'):  # the training set is read first
        with pytest.raises(ConfigError, match=f'split {name} has bad data') as caught:
            build_runner(complete(cfg), mode='train')
        key = f'{name}_dataloader.dataset.on_bad'
        assert f'set {key}=skip_box or {key}=skip_image to leave out' in str(caught.value)
        cfg.train_dataloader.dataset = {'type': 'ShapesDataset', 'split': 'train', 'num_images': 20}


def test_the_first_line_says_device_images_classes_and_place(tiny: Make, capsys: pytest.CaptureFixture) -> None:
    cfg = tiny()
    build_runner(complete(cfg), mode='train')
    line = next(line for line in capsys.readouterr().out.splitlines() if 'training on' in line)
    assert ': 20 images, 8 to validate; 4 classes: rectangle, ellipse, triangle, cross; work dir: ' in line
    assert line.endswith(cfg.work_dir)
