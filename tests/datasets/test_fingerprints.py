import shutil

import cv2
import numpy as np
import pytest

from lucid.datasets.fingerprints import duplicates, fingerprints, repeated, shared, thumbnail
from lucid.datasets.shape_painting import paint_scene
from lucid.datasets.shape_scenes import DIFFICULTIES, make_scene

SIZE = 96


def scene(seed):
    rng = np.random.default_rng(seed)
    return paint_scene(rng, make_scene(rng, SIZE, DIFFICULTIES['easy']), SIZE, DIFFICULTIES['easy'])


@pytest.fixture
def save(tmp_path):
    def write(name, image, *options):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), image, list(options))
        return str(path)

    return write


def prints(files, size=(SIZE, SIZE)):
    return list(fingerprints(files, [size] * len(files)))


def test_what_is_wrong_with_a_file_is_returned_by_kind(tmp_path, save):
    good = save('good.png', scene(0))
    (tmp_path / 'cut.png').write_bytes((tmp_path / 'good.png').read_bytes()[:1000])
    (tmp_path / 'empty.png').touch()
    names = ['good.png', 'cut.png', 'empty.png', 'none.png']
    found = prints([str(tmp_path / name) for name in names])
    assert found[0].error is None
    assert [one.error.kind for one in found[1:]] == ['broken_image', 'empty_file', 'missing_image']
    assert [one.error.kind for one in prints([good], size=(SIZE, 50))] == ['wrong_size']


def test_the_same_bytes_the_same_pixels_and_a_likeness_are_told_apart(save):
    first, other = scene(0), scene(1)
    train = [save('train/a.png', first), save('train/b.png', other)]
    files = [
        save('val/recompressed.jpg', first, cv2.IMWRITE_JPEG_QUALITY, 60),
        save('val/packed.png', other, cv2.IMWRITE_PNG_COMPRESSION, 0),
        save('val/other.png', scene(2)),
        shutil.copy(train[0], train[0].replace('train', 'val')),
    ]
    found = shared(train, prints(train), files, prints(files))
    assert [(one.kind, one.file, one.other) for one in found] == [
        ('near_duplicate', files[0], train[0]),
        ('same_picture', files[1], train[1]),
        ('same_file', files[3], train[0]),
    ]
    assert found[0].correlation >= 0.88


@pytest.mark.parametrize(
    'change',
    [
        lambda image: cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA),
        lambda image: cv2.resize(image, None, fx=2, fy=2),
        lambda image: np.clip(image * 1.1, 0, 255).astype(np.uint8),
        lambda image: image[1:, 1:],
    ],
    ids=['halved', 'doubled', 'brighter', 'cut by a pixel'],
)
def test_a_picture_is_recognised_after_small_changes(change):
    alike = [
        float(thumbnail(image).astype(float) @ thumbnail(change(image)).astype(float)) for image in map(scene, range(8))
    ]
    assert min(alike) >= 0.88


def test_other_scenes_of_one_kind_are_not_taken_for_each_other():
    thumbnails = np.stack([thumbnail(scene(seed)) for seed in range(60)]).astype(np.float32)
    alike = thumbnails @ thumbnails.T - 2 * np.eye(60)
    assert alike.max() < 0.8


def test_skies_whose_light_falls_off_alike_are_no_duplicates():
    rng = np.random.default_rng(0)

    def sky():
        light = np.linspace(200, 90, 240)[:, None, None] + rng.normal(0, 3, (240, 320, 1))
        image = np.ascontiguousarray(np.repeat(light, 3, 2).clip(0, 255).astype(np.uint8))
        return cv2.circle(image, tuple(rng.integers(30, 210, 2).tolist()), 6, (20, 20, 20), -1)

    thumbnails = np.stack([thumbnail(sky()) for _ in range(12)]).astype(np.float32)
    assert (thumbnails @ thumbnails.T - 2 * np.eye(12)).max() < 0.8


def test_flat_pictures_are_compared_by_their_pixels_only(save):
    black, grey = (np.full((SIZE, SIZE, 3), value, np.uint8) for value in (0, 99))
    train, val = [save('train/a.png', black)], [save('val/a.bmp', black), save('val/b.png', grey)]
    assert [one.kind for one in shared(train, prints(train), val, prints(val))] == ['same_picture']


def test_copies_inside_a_split_name_the_first_one_and_broken_files_are_no_copies(tmp_path, save):
    files = [save('a.png', scene(0)), save('b.png', scene(1)), save('c.png', scene(0)), save('d.png', scene(0))]
    for name in ('e.png', 'f.png'):
        (tmp_path / name).write_bytes(b'no image')
        files.append(str(tmp_path / name))
    found = repeated(files, prints(files))
    assert [(one.kind, one.file, one.other) for one in found] == [
        ('same_file', files[2], files[0]),
        ('same_file', files[3], files[0]),
    ]


def test_every_pair_of_splits_is_compared(save):
    splits = {name: [save(f'{name}/a.png', scene(seed))] for seed, name in enumerate(('train', 'val', 'test'))}
    splits['test'].append(splits['val'][0])
    found = duplicates({name: (files, prints(files)) for name, files in splits.items()})
    assert set(found) == {(a, b) for a in splits for b in splits if list(splits).index(a) <= list(splits).index(b)}
    assert {pair: len(rows) for pair, rows in found.items() if rows} == {('val', 'test'): 1}


def test_many_images_are_compared_in_parts(monkeypatch, save):
    monkeypatch.setattr('lucid.datasets.fingerprints.ROWS', 2)
    train = [save(f'train/{seed}.png', scene(seed)) for seed in range(5)]
    val = [save(f'val/{seed}.jpg', scene(seed), cv2.IMWRITE_JPEG_QUALITY, 80) for seed in (4, 9, 0, 3)]
    found = shared(train, prints(train), val, prints(val))
    assert [(one.file, one.other) for one in found] == [(val[0], train[4]), (val[2], train[0]), (val[3], train[3])]
