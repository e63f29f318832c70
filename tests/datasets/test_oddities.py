import numpy as np
import pytest

from lucid.datasets.oddities import find_oddities, unlisted_images
from lucid.datasets.statistics import SplitContent


@pytest.fixture
def make():
    def build(rows, classes=('cat', 'ant')):
        """Rows are (image, label, box, crowd) of images a.jpg and b.jpg, 100x100 pixels; ids count from 10."""
        return SplitContent(
            classes=classes,
            files_I=['a.jpg', 'b.jpg'],
            sizes_I2=np.full((2, 2), 100),
            images_N=np.array([row[0] for row in rows], np.int64),
            labels_N=np.array([row[1] for row in rows], np.int64),
            boxes_N4=np.array([row[2] for row in rows], np.float32).reshape(-1, 4),
            crowd_N=np.array([len(row) > 3 and row[3] for row in rows], bool),
            ids_N=np.arange(10, 10 + len(rows)),
        )

    return build


def messages(content, capacity=(64,)):
    return [(note.kind, note.message) for note in find_oddities(content, source='train.json', capacity=capacity)]


def test_two_boxes_at_one_place_are_named_by_image_and_id(make):
    box, near = (10, 10, 60, 60), (10, 10, 60, 61)
    content = make([(0, 0, box), (1, 1, (0, 0, 9, 9)), (0, 0, near), (0, 1, box)])
    assert messages(content) == [
        ('duplicate_box', 'annotation 12 of image a.jpg: a second cat at 10.0, 10.0, 60.0, 61.0, like annotation 10'),
        ('two_classes', 'annotation 13 of image a.jpg: ant at 10.0, 10.0, 60.0, 60.0, where annotation 10 says cat'),
    ]


def test_boxes_of_other_images_crowds_and_neighbours_are_no_duplicates(make):
    box = (10, 10, 60, 60)
    content = make([(0, 0, box), (1, 1, box), (0, 0, box, True), (0, 0, (14, 10, 64, 60))])
    assert messages(content) == []


def test_a_class_without_a_box_and_two_of_one_name_are_noted(make):
    content = make([(0, 0, (1, 1, 9, 9)), (0, 2, (20, 20, 30, 30))], classes=('cat', 'ant', 'cat'))
    assert messages(content) == [
        ('unused_class', "train.json: class 'ant' has no box"),
        ('same_class_name', "train.json: 2 classes are called 'cat'"),
    ]


def test_an_image_with_more_boxes_than_any_capacity_is_noted(make):
    rows = [(1, number % 2, (number, 0, number + 1, 50)) for number in range(4)]
    assert messages(make(rows), capacity=(2, 4)) == []
    assert messages(make(rows), capacity=(2, 3))[0][0] == 'crowded_image'


def test_images_that_no_split_lists_are_found_beside_those_of_the_split(tmp_path):
    for name in ('train/a.jpg', 'train/b.JPG', 'train/notes.txt', 'val/c.jpg', 'train/deep/d.jpg'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    train = [str(tmp_path / 'train/a.jpg')]
    assert [note.place for note in unlisted_images(train, train)] == [str(tmp_path / 'train/b.JPG')]
    assert unlisted_images(train, [*train, str(tmp_path / 'val/../train/b.JPG')]) == []
