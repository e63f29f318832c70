import pytest

from lucid.datasets.layout import find_annotations, find_images


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize(
    ('file', 'folder'),
    [
        ('annotations/train.json', 'train'),
        ('annotations/instances_train.json', 'images/train'),
        ('annotations/instances_train2017.json', 'train2017'),
        ('train/_annotations.coco.json', 'train'),
        ('annotations/train.json', '.'),
    ],
)
def test_the_usual_places_are_found(tmp_path, file, folder):
    expected = touch(tmp_path / file)
    touch(tmp_path / folder / 'sub/a.jpg')
    assert find_annotations(tmp_path, 'train') == expected
    assert find_images(tmp_path, 'train', ['missing.jpg', 'sub/a.jpg']) == tmp_path / folder


def test_stated_places_win(tmp_path):
    touch(tmp_path / 'annotations/train.json')
    other = touch(tmp_path / 'annotations/train_raw.json')
    touch(tmp_path / 'train/a.jpg')
    (tmp_path / 'pictures').mkdir()
    assert find_annotations(tmp_path, 'train', 'annotations/train_raw.json') == other
    assert find_images(tmp_path, 'train', ['a.jpg'], 'pictures') == tmp_path / 'pictures'


def test_ambiguous_places_are_refused_and_listed(tmp_path):
    touch(tmp_path / 'annotations/train.json')
    touch(tmp_path / 'train/_annotations.coco.json')
    with pytest.raises(ValueError, match=r'several annotations.*annotations/train\.json.*_annotations.*set ann_file'):
        find_annotations(tmp_path, 'train')
    touch(tmp_path / 'train/a.jpg')
    touch(tmp_path / 'images/train/a.jpg')
    with pytest.raises(ValueError, match=r'several folders.*images/train.*set image_dir'):
        find_images(tmp_path, 'train', ['a.jpg'])


def test_missing_places_list_what_was_looked_for(tmp_path):
    with pytest.raises(
        ValueError, match=r'no annotations for split .val.; looked for .*instances_val2017.*set ann_file'
    ):
        find_annotations(tmp_path, 'val')
    with pytest.raises(ValueError, match=r'a\.jpg are in none of the folders.*images/val.*set image_dir'):
        find_images(tmp_path, 'val', ['a.jpg'])
    with pytest.raises(ValueError, match=r'x\.json does not exist; correct ann_file'):
        find_annotations(tmp_path, 'val', 'x.json')
    with pytest.raises(ValueError, match='pics does not exist; correct image_dir'):
        find_images(tmp_path, 'val', ['a.jpg'], 'pics')
    with pytest.raises(ValueError, match='nowhere is no folder; set data_root'):
        find_annotations(tmp_path / 'nowhere', 'val')
