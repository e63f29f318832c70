import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.config import Config

from lucid.apis import ConfigError, complete
from lucid.apis.browse import browse, steps
from lucid.apis.data import build_dataloader, build_dataset
from lucid.datasets import SampleKey

PIPELINE = [
    {'type': 'Mosaic', 'prob': 1.0, 'close_last': 1},
    {'type': 'RandomAffine', 'scale': 0.5},
    {'type': 'Mixup', 'prob': 0.5, 'close_last': 1},
    {'type': 'CopyPaste', 'prob': 0.5, 'close_last': 1},
    {'type': 'HorizontalFlip', 'prob': 0.5},
]
NAMES = ['file', 'Mosaic', 'RandomAffine', 'Mixup', 'CopyPaste', 'HorizontalFlip']


@pytest.fixture
def cfg(tiny: Callable[..., Config]) -> Config:
    """20 images, 2 epochs, all kinds of targets."""
    kinds = ('boxes', 'polygons', 'rboxes', 'keypoints')
    return tiny(train_dataloader__dataset__pipeline=PIPELINE, train_dataloader__dataset__targets=kinds)


def drawn(path: Path) -> np.ndarray:
    picture = cv2.imread(str(path))
    assert picture is not None
    return picture


def test_the_last_step_is_the_sample_that_training_gets(cfg: Config) -> None:
    dataset = build_dataset(complete(cfg).train_dataloader.dataset)
    changed = set()
    for index in range(20):
        key = SampleKey(0, index, 2)
        made, trained = steps(dataset, key), dataset[key]
        assert [step.name for step in made] == NAMES
        np.testing.assert_array_equal(made[-1].sample.image, trained.image)
        np.testing.assert_array_equal(made[-1].sample.boxes, trained.boxes)
        np.testing.assert_array_equal(made[0].sample.image, dataset.read(index).image)
        changed |= {(step.name, step.changed) for step in made}
    assert {('Mosaic', True), ('Mixup', True), ('Mixup', False), ('HorizontalFlip', False)} <= changed
    assert ('Mosaic', False) not in changed
    # In the last epoch mosaic, mixup and copy-paste are closed.
    closed = {step.name for index in range(20) for step in steps(dataset, SampleKey(1, index, 1)) if not step.changed}
    assert {'Mosaic', 'Mixup', 'CopyPaste'} <= closed


def test_pictures_show_the_samples_of_an_epoch(cfg: Config, tmp_path: Path) -> None:
    first = browse(cfg, out=tmp_path / 'a', number=3)
    assert [path.name for path in first] == [f'train_epoch1_{index:06d}_{index:06d}.png' for index in range(3)]
    assert sorted(first) == sorted((tmp_path / 'a').iterdir())
    again = browse(cfg, out=tmp_path / 'b', indices=[2])
    np.testing.assert_array_equal(drawn(first[2]), drawn(again[0]))
    # Controls: another epoch, another seed, another image.
    second = browse(cfg, out=tmp_path / 'b', indices=[2], epoch=2)
    assert not np.array_equal(drawn(first[2]), drawn(second[0]))
    cfg.randomness = {'seed': 5}
    assert not np.array_equal(drawn(first[2]), drawn(browse(cfg, out=tmp_path / 'c', indices=[2])[0]))
    assert not np.array_equal(drawn(first[2]), drawn(first[1]))


def test_the_trainings_order_is_that_of_its_sampler(cfg: Config, tmp_path: Path) -> None:
    full = complete(cfg)
    dataset = build_dataset(full.train_dataloader.dataset)
    loader = build_dataloader(full.train_dataloader, dataset=dataset, seed=0)
    loader.sampler.set_epoch(1, max_epochs=2)  # type: ignore[attr-defined]
    expected = [Path(meta['file']).stem for meta in next(iter(loader))['metas']]
    files = browse(cfg, out=tmp_path / 'a', number=4, epoch=2, in_order=True)
    assert [path.stem.rpartition('_')[2] for path in files] == expected
    assert [path.name[:18] for path in files] == [f'train_epoch2_{place:04d}_' for place in range(4)]
    assert expected != ['000000', '000001', '000002', '000003']


@pytest.mark.parametrize(('view', 'columns'), [('sample', 1), ('compare', 2), ('steps', 6)])
def test_a_view_is_a_row_of_panels(cfg: Config, tmp_path: Path, view: str, columns: int) -> None:
    (path,) = browse(cfg, out=tmp_path, number=1, view=view, side=100)  # type: ignore[arg-type]
    # Panels of 100 pixels with gaps of 4 between and round them.
    assert drawn(path).shape[1] == columns * 104 + 4


def test_sheets_hold_several_samples(cfg: Config, tmp_path: Path) -> None:
    files = browse(cfg, out=tmp_path, number=20, sheet=True, side=64)
    assert [path.name for path in files] == ['train_epoch1_sheet00.png', 'train_epoch1_sheet01.png']
    whole, rest = map(drawn, files)  # 16 as 4 by 4, and 4 as 2 by 2
    assert whole.shape[1] == 4 * (64 + 8 + 4) + 4
    assert rest.shape[1] == 2 * (64 + 8 + 4) + 4


def test_validation_is_shown_as_it_is_evaluated(cfg: Config, tmp_path: Path) -> None:
    files = browse(cfg, out=tmp_path, split='val', number=99)
    assert [path.name for path in files] == [f'val_{index:06d}_{index:06d}.png' for index in range(8)]


def test_targets_are_drawn(cfg: Config, tmp_path: Path) -> None:
    bare = deepcopy(cfg)
    bare.train_dataloader.dataset.targets = ('boxes',)
    bare.train_dataloader.dataset.pipeline = [{'type': 'Letterbox'}]
    cfg.train_dataloader.dataset.pipeline = [{'type': 'Letterbox'}]
    with_all, boxes = (browse(one, out=tmp_path / name, number=1) for one, name in ((cfg, 'a'), (bare, 'b')))
    assert (drawn(with_all[0]) != drawn(boxes[0])).any(axis=2).mean() > 0.01


def test_nothing_is_written_into_the_data_set(cfg: Config, shapes_root: Path, tmp_path: Path) -> None:
    browse(cfg, out=tmp_path / 'elsewhere', number=1)
    before = sorted(shapes_root.rglob('*'))
    link = tmp_path / 'link'
    link.symlink_to(shapes_root / 'train')
    for out in (shapes_root, shapes_root / 'train' / 'new', shapes_root / 'look', link / 'x'):
        with pytest.raises(ConfigError, match=r'is in the data set .*, which is never written to; choose another'):
            browse(cfg, out=out, number=1)
    assert sorted(shapes_root.rglob('*')) == before


def test_images_outside_of_data_root_are_protected_too(cfg: Config, shapes_root: Path, tmp_path: Path) -> None:
    shutil.copytree(shapes_root / 'val', tmp_path / 'images')
    cfg.train_dataloader.dataset = {
        'type': 'CocoDataset',
        'data_root': str(shapes_root),
        'split': 'val',
        'ann_file': 'val/_annotations.coco.json',
        'image_dir': str(tmp_path / 'images'),
        'pipeline': [{'type': 'Letterbox'}],
    }
    with pytest.raises(ConfigError, match='is in the data set'):
        browse(cfg, out=tmp_path / 'images' / 'drawn', number=1)
    assert len(browse(cfg, out=tmp_path / 'drawn', number=1)) == 1


def test_a_file_as_data_root_protects_its_folder(cfg: Config, tmp_path: Path) -> None:
    mine = tmp_path / 'mine'
    for folder in ('images', 'labels'):
        (mine / folder).mkdir(parents=True)
    cv2.imwrite(str(mine / 'images/a.png'), np.zeros((64, 64, 3), np.uint8))
    (mine / 'labels/a.txt').write_text('')
    (mine / 'data.yaml').write_text('train: images\nnames: [cat]\n')
    cfg.train_dataloader.dataset = {
        'type': 'YoloDataset',
        'data_root': str(mine / 'data.yaml'),
        'split': 'train',
        'pipeline': [{'type': 'Letterbox'}],
    }
    with pytest.raises(ConfigError, match='is in the data set'):
        browse(cfg, out=mine / 'labels')
    assert len(browse(cfg, out=tmp_path / 'drawn')) == 1
    assert sorted(path.name for path in mine.rglob('*')) == ['a.png', 'a.txt', 'data.yaml', 'images', 'labels']


def test_what_cannot_be_meant_is_refused(cfg: Config, tmp_path: Path) -> None:
    for options, message in (
        ({'indices': [3, 20]}, r'no image 20: train has 20; choose from 0\.\.19'),
        ({'indices': [-1]}, 'no image -1'),
        ({'epoch': 3}, r'no epoch 3: the run has 2; choose from 1\.\.2'),
        ({'epoch': 0}, 'no epoch 0'),
        ({'number': 0}, 'number=0'),
        ({'side': 5}, 'side=5'),
        ({'split': 'test'}, 'there is no test_dataloader'),
        ({'split': 'val', 'epoch': 2}, 'val is the same in every epoch'),
        ({'split': 'val', 'in_order': True}, 'only training has an order'),
        ({'indices': [1], 'in_order': True}, 'either them or in_order'),
    ):
        with pytest.raises(ConfigError, match=message):
            browse(cfg, out=tmp_path / 'never', **options)  # type: ignore[arg-type]
    (tmp_path / 'file').write_text('')
    with pytest.raises(ConfigError, match='is a file; choose another folder'):
        browse(cfg, out=tmp_path / 'file')
    assert not (tmp_path / 'never').exists()
