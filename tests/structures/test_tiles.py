import math

import numpy as np
import pytest

from lucid.structures.polygons import contains
from lucid.structures.rotated import canonical, corners, from_corners
from lucid.structures.tiles import cut_objects, tile_windows


def rectangle(x1, y1, x2, y2):
    return [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]


def cut(*objects, window):
    return cut_objects(np.array(objects, dtype=np.float64).reshape(-1, 4, 2), window)


@pytest.mark.parametrize(
    ('side', 'starts'),
    [
        (1024, [0]),
        (1000, [0]),
        (1025, [0, 1]),
        (1848, [0, 824]),
        (1849, [0, 824, 825]),
        (4000, [0, 824, 1648, 2472, 2976]),
    ],
)
def test_tiles_keep_their_stride_and_the_last_one_is_flush(side, starts):
    windows = tile_windows(side, 700, size=1024, overlap=200)
    assert windows == [(0, start, 700, min(start + 1024, side)) for start in starts]
    assert tile_windows(700, side, size=1024, overlap=200) == [(y, x, w, h) for x, y, h, w in windows]


def test_tiles_of_both_axes_come_row_by_row_and_cover_every_pixel():
    windows = tile_windows(50, 70, size=32, overlap=8)
    assert windows[:4] == [(0, 0, 32, 32), (24, 0, 56, 32), (38, 0, 70, 32), (0, 18, 32, 50)]
    seen = np.zeros((50, 70), int)
    for x1, y1, x2, y2 in windows:
        seen[y1:y2, x1:x2] += 1
    assert seen.min() == 1
    assert len(tile_windows(64, 64, size=32, overlap=0)) == 4


@pytest.mark.parametrize(
    ('right', 'visible', 'expected'),
    [
        (30, 1, rectangle(10, 5, 20, 9)),
        (17, 0.7, rectangle(10, 5, 20, 9)),  # from 0.7 on it stays whole, also beyond the tile
        (16, 0.6, rectangle(10, 5, 16, 9)),
        (11, 0.1, rectangle(10, 5, 11, 9)),
    ],
)
def test_the_share_inside_decides_between_the_whole_object_and_what_is_seen(right, visible, expected):
    found = cut(rectangle(10, 5, 20, 9), window=(0, 0, right, 30))
    assert found.rows_K.tolist() == [0]
    np.testing.assert_array_equal(found.visible_K, [visible])
    np.testing.assert_allclose(found.corners_K42, [expected], atol=1e-6)
    assert found.cut_K.tolist() == [visible < 0.7]


def test_corners_are_moved_with_the_tile_and_rows_name_the_objects():
    far, near, touching = rectangle(500, 0, 510, 9), rectangle(110, 205, 120, 209), rectangle(90, 205, 100, 209)
    found = cut(far, near, touching, window=(100, 200, 200, 300))
    assert found.rows_K.tolist() == [1]
    np.testing.assert_array_equal(found.corners_K42, [rectangle(10, 5, 20, 9)])


def test_no_objects_leave_none():
    found = cut(window=(0, 0, 10, 10))
    assert [len(part) for part in found] == [0, 0, 0, 0]
    assert found.corners_K42.shape == (0, 4, 2)


def test_the_share_of_a_slanted_object_is_that_of_its_polygon():
    # A square on its tip around (0, 10): right of x = 0 is a half, right of x = 5 a triangle of an eighth.
    tip = [(0, 0), (10, 10), (0, 20), (-10, 10)]
    half, eighth = (cut(tip, window=(left, 0, left + 40, 40)) for left in (0, 5))
    np.testing.assert_allclose([half.visible_K[0], eighth.visible_K[0]], [1 / 2, 1 / 8])
    # Its upright box would say 1/2 and 1/4.
    ((cx, cy, w, h, theta),) = from_corners(half.corners_K42)
    # The half is a triangle of legs 10 * sqrt(2) at a right angle: the rectangle around it, in the square's own
    # direction, is the square itself.
    np.testing.assert_allclose([cx, cy, w, h], [0, 10, 200**0.5, 200**0.5], rtol=1e-5, atol=1e-5)
    assert theta % (math.pi / 2) == pytest.approx(math.pi / 4, abs=1e-6)
    np.testing.assert_allclose(from_corners(eighth.corners_K42)[0, 2:4], [50**0.5, 50**0.5], rtol=1e-5)


@pytest.mark.parametrize('seed', range(20))
def test_what_is_left_of_a_cut_object_is_the_tightest_box_in_its_own_direction(seed):
    rng = np.random.default_rng(seed)
    box = canonical(np.array([[*rng.uniform(20, 80, 2), *rng.uniform(10, 60, 2), rng.uniform(0, 3)]]))
    ring = corners(box).astype(np.float64)[0]
    window = (0, 0, *rng.integers(30, 70, 2).tolist())
    found = cut(ring, window=window)
    # A fine grid over the tile, for which a loop over points decides what is seen of the object.
    x, y = np.meshgrid(np.arange(0.05, window[2], 0.1), np.arange(0.05, window[3], 0.1))
    grid = np.column_stack([x.ravel(), y.ravel()])
    inside = grid[contains(ring, grid)]
    share = len(inside) * 0.01 / (box[0, 2] * box[0, 3])
    if not len(found.rows_K):
        assert share < 0.01
        return
    assert found.visible_K[0] == pytest.approx(share, abs=0.03)
    if not found.cut_K[0]:
        np.testing.assert_array_equal(found.corners_K42[0], ring)
        return
    theta = float(box[0, 4])
    turn = np.array([[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]])
    low, high = (inside @ turn).min(axis=0), (inside @ turn).max(axis=0)
    left = found.corners_K42[0] @ turn
    # No point of the grid is beyond it; a sharp tip may pass between the last ones.
    assert (left.min(axis=0) <= low).all()
    assert (left.max(axis=0) >= high).all()
    np.testing.assert_allclose([left.min(axis=0), left.max(axis=0)], [low, high], atol=1)
    # In turn, each edge along one axis of the object.
    edges = np.roll(left, -1, axis=0) - left
    np.testing.assert_allclose(edges[::2, 1], 0, atol=1e-4)
    np.testing.assert_allclose(edges[1::2, 0], 0, atol=1e-4)


def test_slivers_that_rounding_leaves_are_no_objects():
    assert len(cut(rectangle(10, 5, 20, 9), window=(19, 0, 40, 40)).rows_K) == 1
    edge = [(10, 5), (20, 5.0000001), (20.00001, 9), (10, 9)]
    assert len(cut(edge, window=(20, 0, 40, 40)).rows_K) == 0


def test_a_corner_on_another_edge_is_no_obstacle():
    touching = [(0, 0), (10, 0), (5, 0), (5, 8)]
    found = cut(touching, window=(0, -5, 40, 40))
    assert found.visible_K.tolist() == [1]
