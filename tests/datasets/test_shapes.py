import hashlib
import json
import multiprocessing
import time

import numpy as np
import pytest

from lucid.datasets import shapes
from lucid.datasets.coco import CocoDataset
from lucid.datasets.collate import detection_collate
from lucid.datasets.images import read_image
from lucid.datasets.samplers import SampleKey
from lucid.datasets.shapes import ShapesDataset
from lucid.registry import DATASETS

KINDS = ('boxes', 'polygons', 'rboxes', 'keypoints')
GOLDEN = '5a50d42b7d18ee96b37c560379b3bb4baaccb3e1af46e463d704005991c38dfe'


def build(root, **changes):
    return ShapesDataset(root, **{'split': 'train', 'num_images': 6, 'image_size': 96, **changes})


def digest(folder):
    return hashlib.sha256((folder / '_annotations.coco.json').read_bytes()).hexdigest()


def test_annotations_are_the_same_on_every_machine(tmp_path):
    build(tmp_path, num_images=50, image_size=160)
    assert digest(tmp_path / 'train') == GOLDEN


def test_the_same_parameters_give_the_same_pixels(tmp_path):
    first, second = build(tmp_path / 'a'), build(tmp_path / 'b')
    assert digest(tmp_path / 'a/train') == digest(tmp_path / 'b/train')
    for index in range(6):
        np.testing.assert_array_equal(first[index].image, second[index].image)
    other = build(tmp_path / 'c', scene_seed=1)
    assert digest(tmp_path / 'c/train') != digest(tmp_path / 'a/train')
    assert not np.array_equal(other[0].image, first[0].image)
    assert digest(build(tmp_path / 'a', split='val').annotation_file.parent) != digest(tmp_path / 'a/train')


def test_the_first_images_do_not_depend_on_how_many_there_are(tmp_path):
    few, many = build(tmp_path / 'a', num_images=2), build(tmp_path / 'b', num_images=5)
    np.testing.assert_array_equal(few[1].image, many[1].image)
    np.testing.assert_array_equal(few[1].boxes, many[1].boxes)


def test_augmentation_seed_and_network_size_leave_the_scenes_alone(tmp_path):
    first = build(tmp_path, scene_size=128, image_size=64)
    again = build(tmp_path, scene_size=128, image_size=320, seed=5, pipeline=[{'type': 'Letterbox'}])
    assert first[0].image.shape == (128, 128, 3)
    assert again[0].image.shape == (320, 320, 3)


def test_it_is_an_ordinary_coco_data_set_of_jpeg_files(tmp_path):
    made = build(tmp_path, targets=KINDS)
    read = CocoDataset(tmp_path, split='train', image_size=96, targets=KINDS)
    assert read.classes == made.classes == ('rectangle', 'ellipse', 'triangle', 'cross')
    assert read.keypoint_names == ('top', 'right', 'bottom', 'left')
    assert read.problems == {}
    for index in range(6):
        np.testing.assert_array_equal(read[index].boxes, made[index].boxes)
        assert made[index].file.endswith(f'{index:06d}.jpg')
    with open(made.files[0], 'rb') as file:
        assert file.read(2) == b'\xff\xd8'


def test_all_kinds_of_targets_agree(tmp_path):
    data = build(tmp_path, targets=KINDS)
    for index in range(6):
        sample = data[index]
        for box, rings, rbox, points in zip(
            sample.boxes, sample.polygons, sample.rboxes, sample.keypoints, strict=True
        ):
            np.testing.assert_allclose(box, [*rings[0].min(axis=0), *rings[0].max(axis=0)], atol=1e-2)
            np.testing.assert_allclose([points[3, 0], points[0, 1], points[1, 0], points[2, 1]], box, atol=1e-2)
            assert (np.abs((box[:2] + box[2:]) / 2 - rbox[:2]) < rbox[2] / 3).all()
        truth = data.ground_truth(index)
        assert (truth.areas <= (truth.boxes[:, 2:] - truth.boxes[:, :2]).prod(axis=1) + 0.1).all()
        assert not truth.iscrowd.any()


@pytest.mark.parametrize(('difficulty', 'low', 'high'), [('easy', 50, 256), ('hard', 8, 50)])
def test_objects_stand_out_as_the_difficulty_says(tmp_path, difficulty, low, high):
    data = build(tmp_path, num_images=40, image_size=160, difficulty=difficulty, targets=KINDS)
    grey = np.array([0.299, 0.587, 0.114])
    differences = []
    for index in range(40):
        sample = data[index]
        inside = np.zeros(sample.image.shape[:2], bool)
        for box in sample.boxes.round().astype(int):
            inside[box[1] : box[3] + 1, box[0] : box[2] + 1] = True
        background = (sample.image[~inside] @ grey).mean()
        # The object painted last hides others, and nothing hides it.
        x, y = sample.rboxes[-1, :2].astype(int)
        differences.append(abs(sample.image[y, x] @ grey - background))
    assert np.percentile(differences, 5) > low
    assert np.percentile(differences, 95) < high


def test_backgrounds_are_textured_but_soft(tmp_path):
    data = build(tmp_path, num_images=20, image_size=160)
    for index in range(20):
        sample = data[index]
        outside = np.ones(sample.image.shape[:2], bool)
        for box in sample.boxes.round().astype(int):
            outside[max(box[1] - 3, 0) : box[3] + 3, max(box[0] - 3, 0) : box[2] + 3] = False
        values = sample.image[outside].astype(float)
        assert 2 < values.std(axis=0).max() < 20


def test_a_folder_that_is_there_is_used_and_not_changed(tmp_path):
    build(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')}
    build(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*')} == before


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'num_images': 7}, r"made with \{'num_images': 6\}, wanted is \{'num_images': 7\}"),
        ({'image_size': 64}, "'scene_size': 96"),
        ({'scene_seed': 3}, "'scene_seed': 0"),
        ({'difficulty': 'hard'}, "'difficulty': 'easy'"),
    ],
)
def test_a_folder_of_other_parameters_is_refused_and_not_changed(tmp_path, change, message):
    build(tmp_path)
    before = digest(tmp_path / 'train')
    with pytest.raises(ValueError, match=rf'{message}.*choose another data_root, or delete'):
        build(tmp_path, **change)
    assert digest(tmp_path / 'train') == before


def test_a_folder_of_an_older_generator_is_refused(tmp_path, monkeypatch):
    build(tmp_path)
    monkeypatch.setattr(shapes, 'GENERATOR_VERSION', shapes.GENERATOR_VERSION + 1)
    with pytest.raises(ValueError, match='generator_version'):
        build(tmp_path)


def test_a_folder_of_somebody_else_is_refused_and_not_changed(tmp_path):
    (tmp_path / 'train').mkdir()
    (tmp_path / 'train/photo.jpg').write_bytes(b'mine')
    with pytest.raises(ValueError, match='train was not made by ShapesDataset; choose another data_root'):
        build(tmp_path)
    assert [path.name for path in (tmp_path / 'train').iterdir()] == ['photo.jpg']


def test_impossible_parameters_are_refused(tmp_path):
    for change, message in (
        ({'difficulty': 'harder'}, "difficulty='harder' is unknown; choose one of easy, hard"),
        ({'num_images': 0}, 'choose at least 1 image'),
        ({'scene_size': 8}, 'choose at least'),
        ({'scene_seed': -1}, 'choose at least'),
    ):
        with pytest.raises(ValueError, match=message):
            build(tmp_path, **change)
    assert list(tmp_path.iterdir()) == []


def test_an_exception_in_the_middle_leaves_nothing(tmp_path, monkeypatch):
    paint = shapes.paint_scene
    calls = []

    def failing(*args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return paint(*args)

    monkeypatch.setattr(shapes, 'paint_scene', failing)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert len(build(tmp_path)) == 6


def test_a_kill_in_the_middle_leaves_nothing_that_reads_as_complete(tmp_path):
    context = multiprocessing.get_context('fork')
    process = context.Process(target=build, args=(tmp_path,), kwargs={'num_images': 9999})
    process.start()
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.rglob('*.jpg'))) <= 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.is_alive()
    finally:
        process.kill()
        process.join()
    assert len(list(tmp_path.rglob('*.jpg'))) > 3
    assert not (tmp_path / 'train').exists()
    assert len(build(tmp_path)) == 6


def test_of_several_processes_at_once_one_provides_the_folder(tmp_path):
    context = multiprocessing.get_context('fork')
    workers = [context.Process(target=build, args=(tmp_path,), kwargs={'num_images': 30}) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ['train']
    assert len(build(tmp_path, num_images=30)) == 30


def test_the_loser_of_a_race_takes_the_winners_folder(tmp_path, monkeypatch):
    fill = shapes._fill

    def slower(folder, split, parameters):
        fill(folder, split, parameters)
        (tmp_path / 'train').mkdir()
        fill(tmp_path / 'train', split, parameters)
        (tmp_path / 'train/winner').touch()

    monkeypatch.setattr(shapes, '_fill', slower)
    assert len(build(tmp_path)) == 6
    assert (tmp_path / 'train/winner').exists()
    assert [path.name for path in tmp_path.iterdir()] == ['train']


def test_a_data_set_is_described_by_a_config(tmp_path):
    config = {'type': 'ShapesDataset', 'data_root': str(tmp_path), 'split': 'val', 'num_images': 2, 'image_size': 64}
    data = DATASETS.build(config)
    assert len(data) == 2
    parameters = json.loads((tmp_path / 'val/_parameters.json').read_text())
    assert parameters == {
        'generator_version': 1,
        'num_images': 2,
        'scene_size': 64,
        'scene_seed': 0,
        'difficulty': 'easy',
    }
    assert read_image(data.files[0]).shape == (64, 64, 3)


@pytest.mark.parametrize('kind', ['masks', 'polygons', 'rboxes', 'keypoints'])
def test_each_kind_goes_alone_through_the_transforms_that_join_images(tmp_path, kind):
    pipeline = [
        {'type': 'Mosaic', 'close_last': 0},
        {'type': 'RandomAffine', 'degrees': 20},
        {'type': 'Mixup', 'prob': 1.0, 'close_last': 0},
        {'type': 'HorizontalFlip', 'prob': 1.0},
    ]
    if kind in ('masks', 'polygons'):
        pipeline.insert(3, {'type': 'CopyPaste', 'prob': 1.0, 'close_last': 0})
    data = build(tmp_path, targets=('boxes', kind), pipeline=pipeline)
    samples = [data[SampleKey(0, index, 100)] for index in range(6)]
    field = {'masks': 'polygons'}.get(kind, kind)
    for sample in samples:
        loaded = {name for name in ('polygons', 'rboxes', 'keypoints') if getattr(sample, name) is not None}
        assert loaded == {field}
        assert len(getattr(sample, field)) == len(sample.boxes)
    targets = detection_collate(samples, masks=kind == 'masks')['targets']
    count = len(targets.boxes_N4)
    assert count > 20
    packed = {'masks': targets.masks_NHW, 'rboxes': targets.rboxes_N5, 'keypoints': targets.keypoints_NJ3}
    assert {name for name, tensor in packed.items() if tensor is not None} == {kind} & set(packed)
    assert all(len(tensor) == count for tensor in packed.values() if tensor is not None)
    if kind == 'masks':
        assert targets.masks_NHW.shape == (count, 24, 24)
        assert targets.masks_NHW.flatten(1).any(1).float().mean() > 0.8
