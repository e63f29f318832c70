import json

import numpy as np
import pytest

from lucid.datasets import GroundTruth
from lucid.datasets.kind_statistics import KeypointFigures, kind_statistics

NAMES = ('nose', 'tail')


def truth(crowd, **kinds):
    count = len(crowd)
    return GroundTruth(
        image_id=1,
        file='a.jpg',
        original_hw=(40, 60),
        boxes=np.zeros((count, 4), np.float32),
        labels=np.zeros(count, np.int64),
        iscrowd=np.array(crowd, bool),
        areas=np.ones(count, np.float32),
        ids=np.arange(count),
        **{name: np.array(value) for name, value in kinds.items()},
    )


def test_kinds_are_counted_over_all_images_without_crowds():
    points = [[[1, 2, 2], [0, 0, 0]], [[61, 5, 1], [5, 41, 2]], [[0, 0, 0], [0, 0, 0]], [[9, 9, 2], [9, 9, 2]]]
    first = truth(
        [False, False, False, True],
        difficult=[True, False, False, True],
        num_rings=[1, 0, 3, 0],
        rboxes=[[5, 5, 8, 2, 0], [5, 5, 8, 4, np.pi / 2], [5, 5, 9, 3, -np.pi / 4], [0, 0, 0, 0, 0]],
        keypoints=np.array(points, np.float32),
    )
    second = truth([], difficult=[], num_rings=np.zeros(0, int), rboxes=np.zeros((0, 5)), keypoints=np.zeros((0, 2, 3)))
    figures = kind_statistics([first, second], NAMES)
    assert (figures.objects, figures.difficult, figures.outlined, figures.rings) == (3, 1, 2, 4)
    assert (figures.side_ratio[0], figures.side_ratio[50], figures.side_ratio[100]) == (2, 3, 4)
    assert (figures.degrees[0], figures.degrees[50], figures.degrees[100]) == (-45, 0, 90)
    assert figures.with_points == 2
    assert figures.keypoints == [KeypointFigures('nose', 2, 1, 1), KeypointFigures('tail', 1, 1, 1)]
    plain = json.loads(json.dumps(figures.to_json(), allow_nan=False))
    assert plain['degrees']['p100'] == 90
    assert plain['keypoints'][1] == {'name': 'tail', 'labelled': 1, 'visible': 1, 'outside': 1}


@pytest.mark.parametrize('truths', [[], [truth([False])]])
def test_kinds_that_were_not_loaded_have_no_figures(truths):
    figures = kind_statistics(truths, ())
    assert figures.objects == len(truths)
    assert figures[2:] == (None,) * 6
    json.dumps(figures.to_json())
