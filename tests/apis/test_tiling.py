import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from lucid.apis.data import build_metric
from lucid.apis.tiling import SplitTiling, print_tiling, tile_dota
from lucid.datasets import CocoDataset, DataError, DotaDataset
from lucid.structures.polygons import contains
from lucid.structures.rotated import corners

SHIP = '10 5 30 5 30 15 10 15 ship 0'


@pytest.fixture
def dota(tmp_path):
    """Writes one image per name, of random pixels, with its rows; sizes are width and height."""

    def write(split='', size=(100, 70), **labels):
        root = tmp_path / 'dota'
        for folder in ('images', 'labelTxt'):
            (root / split / folder).mkdir(parents=True, exist_ok=True)
        for name, rows in labels.items():
            pixels = np.random.default_rng(len(name)).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            cv2.imwrite(str(root / split / 'images' / f'{name}.png'), pixels)
            if rows is not None:
                (root / split / 'labelTxt' / f'{name}.txt').write_text('imagesource:test\ngsd:1\n' + '\n'.join(rows))
        return root

    return write


@pytest.fixture
def tile(tmp_path):
    return lambda root, **changes: tile_dota(root, tmp_path / 'tiles', **{'size': 48, 'overlap': 16, **changes})


def content(folder, split='train'):
    return json.loads((folder / 'annotations' / f'{split}.json').read_text())


def snapshot(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob('*')}


def test_an_image_becomes_tiles_that_show_its_own_pixels(dota, tile, tmp_path):
    root = dota(a=[SHIP], small=[])
    before = snapshot(root)
    assert tile(root)['train'] == SplitTiling(images=2, tiles=12, empty=11, objects=1, difficult=0, problems={})
    assert snapshot(root) == before
    images = content(tmp_path / 'tiles')['images']
    assert [image['window'] for image in images[:6]] == [
        [0, 0, 48, 48],
        [32, 0, 80, 48],
        [52, 0, 100, 48],
        [0, 22, 48, 70],
        [32, 22, 80, 70],
        [52, 22, 100, 70],
    ]
    assert [image['id'] for image in images] == list(range(1, 13))
    assert {image['source_image'] for image in images} == {'a.png', 'small.png'}
    for image in images:
        x1, y1, x2, y2 = image['window']
        assert image['file_name'] == f'{image["source_image"][:-4]}__{x1}_{y1}.png'
        assert (image['width'], image['height']) == (x2 - x1, y2 - y1)
        whole = cv2.imread(str(root / 'images' / image['source_image']))
        tiled = cv2.imread(str(tmp_path / 'tiles/train' / image['file_name']))
        np.testing.assert_array_equal(tiled, whole[y1:y2, x1:x2])
    assert len(list((tmp_path / 'tiles/train').iterdir())) == 12


def test_objects_are_whole_cut_or_left_out_by_the_share_that_a_tile_shows(dota, tile, tmp_path):
    # 20 pixels wide: 20, 12 and 4 of them are left of x = 48; 4, 14 and 20 right of x = 32, where the next tile begins.
    rows = [f'{x} 5 {x + 20} 5 {x + 20} 15 {x} 15 ship {int(x == 26)}' for x in (16, 26, 36, 44)]
    tile(dota(a=rows), splits=['train'])
    found = content(tmp_path / 'tiles')
    tiles = {image['id']: image['window'][:2] for image in found['images']}
    listed = [
        (tiles[row['image_id']], row['obb'][0], row['obb'][2], row['bbox'], row['visible_fraction'], row['difficult'])
        for row in found['annotations']
        if tiles[row['image_id']] in ([0, 0], [32, 0])
    ]
    assert listed == [
        ([0, 0], 16, 36, [16, 5, 20, 10], 1, 0),
        ([0, 0], 26, 46, [26, 5, 20, 10], 1, 1),
        ([0, 0], 36, 48, [36, 5, 12, 10], 0.6, 1),
        ([0, 0], 44, 48, [44, 5, 4, 10], 0.2, 1),
        ([32, 0], 0, 4, [0, 5, 4, 10], 0.2, 1),
        ([32, 0], -6, 14, [0, 5, 14, 10], 0.7, 1),
        ([32, 0], 4, 24, [4, 5, 20, 10], 1, 0),
        ([32, 0], 12, 32, [12, 5, 20, 10], 1, 0),
    ]
    assert {row['category_id'] for row in found['annotations']} == {7}
    assert {row['iscrowd'] for row in found['annotations']} == {0}
    assert len(found['categories']) == 15
    assert found['info'] == {'tile_size': 48, 'overlap': 16}


def test_tiles_are_read_as_oriented_coco_whose_boxes_lie_on_the_objects(dota, tile, tmp_path):
    rng = np.random.default_rng(0)
    rings = []
    for _ in range(12):
        box = np.array([[*rng.uniform(15, 85, 1), *rng.uniform(15, 55, 1), *rng.uniform(6, 22, 2), rng.uniform(0, 3)]])
        rings.append(corners(box)[0].astype(np.float64))
    rows = [' '.join(f'{value:.3f}' for value in ring.ravel()) + ' ship 0' for ring in rings]
    root = dota(a=rows)
    tile(root)
    data = CocoDataset(tmp_path / 'tiles', split='train', image_size=48, targets=('boxes', 'rboxes'))
    assert data.problems == {}
    assert data.classes == DotaDataset(root, split='train', image_size=48).classes
    seen = 0
    for index in range(len(data)):
        truth = data.ground_truth(index)
        x1, y1, x2, y2 = (int(value) for value in truth.window)
        y, x = np.mgrid[y1:y2, x1:x2] + 0.5
        points = np.column_stack([x.ravel(), y.ravel()])
        shown = [ring for ring in rings if contains(ring, points).sum() > 3]
        assert len(truth.labels) >= len(shown)
        for ring in shown:
            # Some box of the tile contains all pixels of the object that it shows.
            inside = points[contains(ring, points)] - (x1, y1)
            fits = [contains(box, inside).mean() for box in corners(truth.rboxes)]
            assert max(fits) > 0.97
            seen += 1
    assert seen > 20


def test_jpg_takes_less_room(dota, tile, tmp_path):
    tile(dota(a=[SHIP]), image_format='jpg')
    names = [image['file_name'] for image in content(tmp_path / 'tiles')['images']]
    assert {name.rpartition('.')[2] for name in names} == {'jpg'}
    data = CocoDataset(tmp_path / 'tiles', split='train', image_size=48)
    assert len(data) == 6
    assert data[0].image.shape == (48, 48, 3)


def test_an_image_that_is_smaller_than_a_tile_stays_as_it_is(dota, tile, tmp_path):
    tile(dota(a=[SHIP]), size=1024, overlap=200)
    found = content(tmp_path / 'tiles')
    assert [(image['width'], image['height'], image['window']) for image in found['images']] == [
        (100, 70, [0, 0, 100, 70])
    ]
    assert found['annotations'][0]['visible_fraction'] == 1


def test_every_split_that_has_labels_is_cut(dota, tile, tmp_path):
    dota('train', a=[SHIP])
    dota('val', b=[])
    root = dota('test', c=None)
    shutil.rmtree(root / 'test/labelTxt')
    assert list(tile(root)) == ['train', 'val']
    shutil.rmtree(tmp_path / 'tiles')
    assert tile(root, splits=['test'], missing_labels='background')['test'].empty == 6


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'size': 16, 'overlap': 0}, 'size=16, overlap=0; choose tiles of at least 32'),
        ({'overlap': 48}, 'size=48, overlap=48; .* less overlap'),
        ({'overlap': -1}, 'overlap=-1'),
        ({'image_format': 'bmp'}, "image_format='bmp' is unknown; choose one of png, jpg"),
        ({'on_bad': 'ignore'}, "on_bad='ignore' is unknown"),
        ({'splits': ['val']}, "no split 'val'; .* correct the source, or name others with --splits"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(dota, tile, tmp_path, changes, message):
    root = dota(a=[SHIP])
    with pytest.raises(ValueError, match=message):
        tile(root, **changes)
    assert not (tmp_path / 'tiles').exists()


def test_folders_that_hold_something_or_lie_in_the_source_are_refused(dota, tmp_path):
    root = dota(a=[SHIP])
    with pytest.raises(ValueError, match=r'inside the source .* never written to'):
        tile_dota(root, root / 'tiles')
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full/mine').write_text('kept')
    with pytest.raises(ValueError, match='is not empty; choose another target'):
        tile_dota(root, tmp_path / 'full')
    with pytest.raises(ValueError, match='has no images and labelTxt for any of train, val, test'):
        tile_dota(tmp_path / 'full', tmp_path / 'tiles')
    assert [path.name for path in (tmp_path / 'full').iterdir()] == ['mine']


def test_bad_rows_stop_it_with_flags_as_remedies_or_are_left_out(dota, tile, tmp_path):
    root = dota(a=[SHIP, '1 2 3 ship 0', SHIP.replace('ship', 'boat')])
    with pytest.raises(
        DataError, match=r'(?s)1 malformed_row, 1 unknown_class.*a\.txt:4.*a\.txt:5.*set --on-bad skip_box'
    ):
        tile(root)
    assert not list(tmp_path.glob('*tiles*'))
    assert tile(root, on_bad='skip_box')['train'].problems == {'malformed_row': 1, 'unknown_class': 1}


def test_an_image_that_is_damaged_inside_leaves_no_half_made_folder(dota, tile, tmp_path):
    root = dota(a=[SHIP], b=[SHIP])
    path = root / 'images/b.png'
    damaged = bytearray(path.read_bytes())
    damaged[200:4000] = bytes(3800)
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r'b\.png'):
        tile(root)
    assert not list(tmp_path.glob('*tiles*'))
    assert tile(root, on_bad='skip_image')['train'].images == 1


def test_images_that_would_share_tiles_are_refused(dota, tile):
    root = dota(a=[SHIP])
    shutil.copy(root / 'images/a.png', root / 'images/a.bmp')
    cv2.imwrite(str(root / 'images/a.bmp'), cv2.imread(str(root / 'images/a.png')))
    with pytest.raises(ValueError, match='share the name a; rename one'):
        tile(root)


def test_a_disk_that_is_full_is_said_and_leaves_nothing(dota, tile, tmp_path, monkeypatch):
    root = dota(a=[SHIP])
    monkeypatch.setattr(cv2, 'imwrite', lambda *_: False)
    with pytest.raises(OSError, match='could not be written; make room'):
        tile(root)
    assert not list(tmp_path.glob('*tiles*'))


def test_the_real_images_are_cut_and_read_again(test_data, tmp_path, capsys):
    tiling = tile_dota(test_data / 'dota', tmp_path / 'tiles', size=512, overlap=100)
    assert (tiling['train'].images, tiling['train'].tiles) == (2, 13)
    print_tiling(tiling)
    assert 'train' in capsys.readouterr().out
    whole = DotaDataset(test_data / 'dota', split='train', image_size=512)
    data = CocoDataset(tmp_path / 'tiles', split='train', image_size=512, targets=('boxes', 'rboxes'))
    assert data.problems == {}
    # Every object of an image is whole, or nearly, in one tile at least: they are smaller than the overlap.
    for index in range(len(whole)):
        truth = whole.ground_truth(index)
        small = np.flatnonzero(truth.rboxes[:, 2] < 70)
        parts = [data.ground_truth(row) for row in range(len(data))]
        centres = [part.rboxes[:, :2] + part.window[:2] for part in parts if part.source_image == Path(truth.file).name]
        assert len(small) > 50
        assert farthest(truth.rboxes[small, :2], centres) < 0.01
        # Control: one tile does not show them all.
        assert farthest(truth.rboxes[small, :2], centres[:1]) > 5


def farthest(points, others):
    """How far the most lonely of some points is from the nearest of others."""
    return np.linalg.norm(points[:, None] - np.concatenate(others)[None], axis=2).min(axis=1).max()


def test_what_the_real_tiles_hold_scores_one_by_tile_and_by_whole_image(test_data, tmp_path):
    tile_dota(test_data / 'dota', tmp_path / 'tiles', size=512, overlap=200)
    data = CocoDataset(tmp_path / 'tiles', split='train', image_size=512, targets=('boxes', 'rboxes'))
    metric = build_metric({'type': 'RotatedMetric', 'max_detections': 1000}, data)
    metric.dataset_meta = data.metainfo
    for index in range(len(data)):
        truth = data.ground_truth(index)
        kinds = {'boxes': truth.boxes, 'labels': truth.labels, 'rboxes': truth.rboxes}
        row = {name: torch.from_numpy(value) for name, value in kinds.items()}
        row['scores'] = torch.linspace(0.9, 0.5, len(truth.labels))
        metric.process(None, [{'image_id': truth.image_id, 'file': truth.file, **row}])
    figures = metric.evaluate(len(data))
    assert figures['rotated/mAP'] == figures['rotated/whole/mAP'] == pytest.approx(1)
