import json

import numpy as np
import pytest

from lucid.datasets import GroundTruth
from lucid.datasets.statistics import ClassFigures, SplitContent, split_statistics


def truth(file, size, rows):
    """Rows are (label, box, crowd)."""
    return GroundTruth(
        image_id=1,
        file=file,
        original_hw=size,
        boxes=np.array([box for _, box, _ in rows], np.float32).reshape(-1, 4),
        labels=np.array([label for label, _, _ in rows], np.int64),
        iscrowd=np.array([crowd for _, _, crowd in rows], bool),
        areas=np.ones(len(rows), np.float32),
        ids=np.arange(len(rows)),
    )


@pytest.fixture
def content():
    """The letterbox to 100x100 halves a.jpg, doubles b.jpg and leaves c.jpg as it is."""
    wide = truth(
        'a.jpg', (100, 200), [(0, (0, 0, 40, 20), False), (1, (0, 0, 200, 100), False), (1, (10, 10, 90, 90), True)]
    )
    square = truth('b.jpg', (50, 50), [(0, (0, 0, 50, 50), False), (0, (0, 0, 0.5, 10), False)])
    return SplitContent.of(('cat', 'ant', 'dog'), [wide, square, truth('c.jpg', (100, 100), [])])


def test_boxes_are_measured_as_the_network_meets_them_and_crowds_are_left_out(content):
    figures = split_statistics(content, image_size=(100, 100))
    # 20x10, 100x50, 100x100 and 1x20 pixels: small, medium, large, small
    assert figures.classes == [
        ClassFigures('cat', images=2, boxes=3, small=2, medium=0, large=1),
        ClassFigures('ant', images=1, boxes=1, small=0, medium=1, large=0),
        ClassFigures('dog', images=0, boxes=0, small=0, medium=0, large=0),
    ]
    assert (figures.boxes, figures.crowds, figures.tiny) == (4, 1, 1)
    assert figures.box_side[100] == 100
    assert figures.box_side[0] == pytest.approx(20**0.5, abs=1e-4)


def test_the_size_of_the_input_decides_what_is_small(content):
    figures = split_statistics(content, image_size=(200, 200))
    assert [sum(getattr(one, size) for one in figures.classes) for size in ('small', 'medium', 'large')] == [2, 0, 2]
    assert figures.tiny == 0


def test_a_box_as_large_as_the_limit_counts_as_the_larger_size():
    exact = truth('a.jpg', (100, 100), [(0, (0, 0, 32, 32), False), (0, (0, 0, 96, 96), False)])
    (figures,) = split_statistics(SplitContent.of(('cat',), [exact]), image_size=(100, 100)).classes
    assert figures[3:] == (0, 1, 1)


def test_images_are_counted_by_boxes_capacity_and_size(content):
    figures = split_statistics(content, image_size=(100, 100), capacity=(2, 1))
    assert (figures.images, figures.images_without_boxes) == (3, 1)
    assert figures.boxes_per_image[50] == 2
    assert figures.images_per_capacity == {1: 1, 2: 2, -1: 0}
    assert split_statistics(content, image_size=(100, 100), capacity=(1,)).images_per_capacity == {1: 1, -1: 2}
    assert figures.image_sizes == {(200, 100): 1, (50, 50): 1, (100, 100): 1}


def test_aspect_ratios_are_widths_by_heights(content):
    figures = split_statistics(content, image_size=(32, 64))
    assert figures.aspect_ratio[0] == 0.05
    assert figures.aspect_ratio[100] == 2


def test_a_split_without_boxes_has_figures_too():
    figures = split_statistics(SplitContent.of(('cat',), [truth('a.jpg', (10, 10), [])]), image_size=(64, 64))
    assert (figures.images_without_boxes, figures.boxes, figures.aspect_ratio) == (1, 0, {})


def test_the_figures_become_plain_json(content):
    plain = json.loads(json.dumps(split_statistics(content, image_size=(64, 96)).to_json(), allow_nan=False))
    assert plain['image_size'] == [64, 96]
    assert plain['classes'][0] == {'name': 'cat', 'images': 2, 'boxes': 3, 'small': 2, 'medium': 1, 'large': 0}
    assert plain['images_per_capacity'] == {'64': 3, '128': 0, '256': 0, 'above': 0}
    assert {'width': 200, 'height': 100, 'images': 1} in plain['image_sizes']
