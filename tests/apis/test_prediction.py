import io
import json

import cv2
import mmcv
import numpy as np
import pytest
import torch
from mmengine.model import BaseModel
from rich.console import Console

from lucid.apis.inference import TrainedDetector
from lucid.apis.prediction import find_image_files, predict_files
from lucid.datasets import Letterbox
from lucid.visualization import class_color


class Corner(BaseModel):
    """Finds the box (8, 16, 40, 56) in every image."""

    def forward(self, inputs, targets=None, metas=None, mode='tensor'):
        return [
            {
                'image_id': meta['image_id'],
                'file': meta['file'],
                'boxes': torch.tensor([[8.0, 16, 40, 56], [0.0, 0, 9, 9]]),
                'scores': torch.tensor([0.91, 0.2]),
                'labels': torch.tensor([1, 0]),
            }
            for meta in metas
        ]


@pytest.fixture
def detector():
    return TrainedDetector(Corner(), ('bolt', 'nut [x]'), (Letterbox(image_size=64),), torch.device('cpu'))


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


def photo(path, height=60, width=80):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((height, width, 3), 120, np.uint8))
    return path


def test_files_folders_and_patterns_are_found_once_and_in_order(tmp_path):
    for name in ('b/2.JPG', 'b/1.png', 'b/notes.txt', 'b/deep/3.jpg', 'a[1].jpg'):
        photo(tmp_path / name) if name[-3:] != 'txt' else (tmp_path / name).touch()

    def names(*inputs):
        return [str(path.relative_to(tmp_path)) for path in find_image_files([str(tmp_path / text) for text in inputs])]

    assert names('b') == ['b/1.png', 'b/2.JPG']
    assert names('b/**/*') == ['b/1.png', 'b/2.JPG', 'b/deep/3.jpg']
    assert names('b/2.JPG', 'b', 'a[1].jpg') == ['b/2.JPG', 'b/1.png', 'a[1].jpg']


def test_what_leads_to_no_file_is_named(tmp_path):
    (tmp_path / 'empty').mkdir()
    for text in ('none.jpg', '*.webp', 'empty'):
        with pytest.raises(ValueError, match=r'none\.jpg|webp|empty'):
            find_image_files([str(tmp_path / text)])


def test_pictures_json_and_table_tell_the_same(tmp_path, detector, console):
    files = [photo(tmp_path / 'in' / 'a.png'), photo(tmp_path / 'in' / 'b.png', 100, 90)]
    result = predict_files(detector, files, tmp_path / 'out' / 'deep', console=console)
    assert result.json_file == tmp_path / 'out' / 'deep' / 'predictions.json'
    records = json.loads(result.json_file.read_text())
    assert records == result.records
    assert records[1] == {
        'file': str(files[1]),
        'picture': str(tmp_path / 'out' / 'deep' / 'b.png'),
        'width': 90,
        'height': 100,
        'detections': [{'class': 'nut [x]', 'label': 1, 'score': 0.91, 'box': [8.0, 16.0, 40.0, 56.0]}],
    }
    picture = mmcv.imread(records[1]['picture'], channel_order='rgb')
    assert picture.shape == (100, 90, 3)
    assert (picture == class_color(1)).all(axis=2).sum() > 100
    assert sorted(path.name for path in result.json_file.parent.iterdir()) == ['a.png', 'b.png', 'predictions.json']
    text = console.file.getvalue()
    for expected in ('a.png', '90x100', '1 nut [x]', '0.91', '2 objects in 2 images', str(result.json_file)):
        assert expected in text


def test_a_file_that_cannot_be_read_is_skipped_and_named(tmp_path, detector, console):
    files = [photo(tmp_path / 'a.png'), tmp_path / 'broken.png', photo(tmp_path / 'c.png')]
    files[1].write_bytes(b'no picture')
    result = predict_files(detector, files, tmp_path / 'out', batch_size=2, console=console)
    assert [record['file'] for record in result.records] == [str(files[0]), str(files[2])]
    assert len(result.unreadable) == 1
    assert 'broken.png' in result.unreadable[0]
    assert '1 of 3 files could not be read' in console.file.getvalue()


def test_a_batch_of_which_nothing_can_be_read_is_passed_over(tmp_path, detector, console):
    broken = tmp_path / 'broken.png'
    broken.touch()
    result = predict_files(detector, [broken], tmp_path / 'out', console=console)
    assert result.records == []
    assert json.loads(result.json_file.read_text()) == []


def test_images_of_one_name_keep_a_picture_each(tmp_path, detector, console):
    files = [photo(tmp_path / folder / 'a.png') for folder in ('x', 'y', 'z')]
    result = predict_files(detector, files, tmp_path / 'out', console=console)
    assert [record['picture'] for record in result.records] == [
        str(tmp_path / 'out' / name) for name in ('a.png', 'a_1.png', 'a_2.png')
    ]


def test_a_picture_whose_name_says_no_format_is_a_png(tmp_path, detector, console):
    photo(tmp_path / 'in.png')
    files = [(tmp_path / 'in.png').rename(tmp_path / name) for name in ('scan',)] + [photo(tmp_path / 'scan.png')]
    files.append(photo(tmp_path / 'x.png').rename(tmp_path / 'frame.0001'))
    result = predict_files(detector, files, tmp_path / 'out', console=console)
    names = ['scan.png', 'scan_1.png', 'frame.0001.png']
    assert [record['picture'] for record in result.records] == [str(tmp_path / 'out' / name) for name in names]
    assert all(mmcv.imread(record['picture']).shape == (60, 80, 3) for record in result.records)


def test_no_image_is_overwritten_by_its_picture(tmp_path, detector, console):
    file = photo(tmp_path / 'a.png')
    before = file.read_bytes()
    with pytest.raises(ValueError, match='would overwrite'):
        predict_files(detector, [file], tmp_path / 'x' / '..', console=console)
    assert file.read_bytes() == before
    assert not (tmp_path / 'predictions.json').exists()


def test_a_long_list_is_cut_in_the_table_and_whole_in_the_json(tmp_path, detector, console):
    files = [photo(tmp_path / 'in' / f'{i:03d}.png', 8, 8) for i in range(53)]
    result = predict_files(detector, files, tmp_path / 'out', batch_size=16, console=console)
    assert len(result.records) == 53
    assert '049.png' in console.file.getvalue()
    assert '050.png' not in console.file.getvalue()
    assert '3 more images' in console.file.getvalue()


class Shaped(Corner):
    """Finds a mask, a rotated box and three keypoints, too."""

    def forward(self, inputs, targets=None, metas=None, mode='tensor'):
        more = {
            'masks': [{'size': [60, 80], 'counts': '0Pf4'}, {'size': [60, 80], 'counts': '0Pf4'}],
            'rboxes': torch.tensor([[24.0, 36, 40, 20, 0.0], [4, 4, 9, 9, 0.5]]),
            'keypoints': torch.tensor([[[10.125, 20], [30, 50], [8, 16]], [[0.0, 0], [1, 1], [2, 2]]]),
        }
        return [{**found, **more} for found in super().forward(inputs, targets, metas, mode)]


def test_masks_rotated_boxes_and_keypoints_are_in_the_json_and_in_the_picture(tmp_path, console):
    names = ('nose', 'left_eye', 'tail')
    pipeline = (Letterbox(image_size=64),)
    shaped = TrainedDetector(Shaped(), ('bolt', 'nut'), pipeline, torch.device('cpu'), names)
    file = photo(tmp_path / 'in' / 'a.png')
    result = predict_files(shaped, [file], tmp_path / 'out', console=console)
    ((detection,),) = (record['detections'] for record in json.loads(result.json_file.read_text()))
    assert detection == {
        'class': 'nut',
        'label': 1,
        'score': 0.91,
        'box': [8.0, 16.0, 40.0, 56.0],
        'mask': {'size': [60, 80], 'counts': '0Pf4'},
        'rotated_box': [24.0, 36.0, 40.0, 20.0, 0.0],
        'corners': [[4.0, 26.0], [44.0, 26.0], [44.0, 46.0], [4.0, 46.0]],
        'keypoints': [[10.12, 20.0], [30.0, 50.0], [8.0, 16.0]],
    }
    picture = mmcv.imread(str(tmp_path / 'out' / 'a.png'), channel_order='rgb')
    plain = TrainedDetector(Corner(), ('bolt', 'nut'), pipeline, torch.device('cpu'))
    predict_files(plain, [file], tmp_path / 'plain', console=console)
    other = mmcv.imread(str(tmp_path / 'plain' / 'a.png'), channel_order='rgb')
    assert (picture != other).any(axis=2).sum() > 300
