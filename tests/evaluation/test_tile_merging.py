import math

import numpy as np
import pytest
from faster_coco_eval import COCO

from lucid.evaluation.ground_truth import GroundTruth
from lucid.evaluation.results import ImageResult
from lucid.evaluation.tile_merging import merged_results, merged_truth, read_tiles

INF = math.inf


def truth(images, annotations=()):
    content = {'images': images, 'annotations': [*annotations], 'categories': [{'id': 1, 'name': 'ship'}]}
    return GroundTruth(COCO(content), ('ship',), (1,))


def tile(image_id, x1, y1, x2, y2, name='port'):
    return {'id': image_id, 'source_image': name, 'window': [x1, y1, x2, y2]}


def result(image_id, *rboxes):
    boxes = np.float32([(cx, cy, cx + 1, cy + 1) for cx, cy, *_ in rboxes]).reshape(-1, 4)
    scores, labels = np.linspace(0.9, 0.5, len(rboxes), dtype=np.float32), np.zeros(len(rboxes), np.int64)
    return ImageResult(image_id, boxes, scores, labels, 1, rboxes=np.float32(rboxes).reshape(-1, 5))


def test_cores_meet_midway_through_the_overlaps_and_end_nowhere():
    # A row of three of 100 pixels over 240, the last one flush with the edge: overlaps of 20 and 40.
    row = [(0, 100), (80, 180), (140, 240)]
    tiles = read_tiles(truth([tile(i, x1, 0, x2, 100) for i, (x1, x2) in enumerate(row)]))
    assert [tiles[i].core for i in range(3)] == [(-INF, -INF, 90, INF), (90, -INF, 160, INF), (160, -INF, INF, INF)]
    assert {tiles[i].source for i in range(3)} == {1}


def test_images_have_cores_of_their_own_and_rows_are_parted_as_columns_are():
    windows = [(0, 0, 100, 100), (60, 0, 160, 100), (0, 50, 100, 150), (60, 50, 160, 150)]
    images = [tile(i, *window) for i, window in enumerate(windows)] + [tile(9, 0, 0, 100, 100, name='farm')]
    tiles = read_tiles(truth(images))
    assert tiles[3].core == (80, 75, INF, INF)
    assert tiles[9].core == (-INF, -INF, INF, INF)
    assert tiles[9].source != tiles[0].source
    # A point belongs to exactly one tile, on a border to the one behind it.
    points = np.array([[x, y] for x in (10.0, 79.9, 80, 120) for y in (10.0, 74.9, 75, 140)])
    owners = np.array([tiles[i].owns(points - (tiles[i].x, tiles[i].y)) for i in range(4)])
    assert (owners.sum(axis=0) == 1).all()
    assert tiles[3].owns(np.array([[20.0, 25.0]])).tolist() == [True]
    assert tiles[0].owns(np.array([[80.0, 75.0]])).tolist() == [False]


def test_detections_move_to_their_place_and_those_of_a_neighbour_are_left_to_it():
    tiles = read_tiles(truth([tile(1, 0, 0, 100, 100), tile(2, 60, 0, 160, 100)]))
    images = {2: result(2, (5, 50, 8, 4, 0.5), (40, 50, 8, 4, 0.5)), 1: result(1, (65, 50, 8, 4, 0.5))}
    (whole,) = merged_results(images, tiles).values()
    np.testing.assert_allclose(whole.rboxes, [[65, 50, 8, 4, 0.5], [100, 50, 8, 4, 0.5]])
    np.testing.assert_allclose(whole.boxes, [[65, 50, 66, 51], [100, 50, 101, 51]])
    assert whole.scores.tolist() == pytest.approx([0.9, 0.5])
    assert (whole.num_dropped, whole.file) == (2, 'port')


def test_an_object_in_two_tiles_is_one_of_the_whole_image():
    common = {'category_id': 1, 'area': 32.0, 'iscrowd': 0, 'bbox': [0, 0, 9, 9]}
    rows = [
        {'id': 1, 'image_id': 1, 'rbox': [65.0, 50, 8, 4, 0.5], **common},
        {'id': 2, 'image_id': 2, 'rbox': [5.0, 50, 8, 4, 0.5], **common},
        {'id': 3, 'image_id': 2, 'rbox': [40.0, 50, 8, 4, 0.5], **common, 'iscrowd': 1},
    ]
    tiled = truth([tile(1, 0, 0, 100, 100), tile(2, 60, 0, 160, 100)], rows)
    whole = merged_truth(tiled, read_tiles(tiled), [1, 2])
    assert [row['rbox'][:2] for row in whole.coco.anns.values()] == [[65, 50], [100, 50]]
    assert [row['iscrowd'] for row in whole.coco.anns.values()] == [0, 1]
    assert [row['bbox'] for row in whole.coco.anns.values()] == [[0, 0, 9, 9], [60, 0, 9, 9]]
    # A tile that does not count gives nothing.
    assert len(merged_truth(tiled, read_tiles(tiled), [2]).coco.anns) == 1


def test_images_that_do_not_all_say_where_they_lie_are_no_tiles():
    assert read_tiles(truth([tile(1, 0, 0, 100, 100), {'id': 2}])) == {}


@pytest.mark.parametrize('window', [[0, 0, 100], [0, 0, 0, 100], [0, 0, math.nan, 100], 'all', [0, 0, None, 9]])
def test_a_window_that_is_no_rectangle_is_named(window):
    with pytest.raises(ValueError, match=r'image 7 of ann_file has the window .*merge_tiles=False'):
        read_tiles(truth([{'id': 7, 'source_image': 'port', 'window': window}]))
