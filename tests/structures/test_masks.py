import numpy as np
import pytest

from lucid.structures.masks import fill_objects, fill_rings, mask_envelope, mask_rings
from lucid.structures.polygons import contains, ring_area


def ring(*points):
    return np.array(points, dtype=np.float32)


def drawn(*lines):
    return np.array([[sign == '#' for sign in line] for line in lines])


def test_a_pixel_is_covered_where_its_centre_is_inside():
    # A right triangle with legs of four pixels: row 0 has its centre line at y = 0.5, where x < 3.5.
    triangle = ring((0, 0), (4, 0), (0, 4))
    np.testing.assert_array_equal(fill_rings([triangle], (4, 5)), drawn('###..', '##...', '#....', '.....'))
    box = ring((1.4, 0.6), (3.6, 0.6), (3.6, 2.4), (1.4, 2.4))
    np.testing.assert_array_equal(fill_rings([box], (3, 5)), drawn('.....', '.###.', '.....'))


def test_neighbours_that_share_an_edge_share_no_pixel():
    left, right = ring((0, 0), (2.5, 0), (2.5, 3), (0, 3)), ring((2.5, 0), (5, 0), (5, 3), (2.5, 3))
    masks = fill_rings([left], (3, 5)), fill_rings([right], (3, 5))
    np.testing.assert_array_equal(masks[0], ~masks[1])


def test_rings_of_one_object_are_united_and_one_that_crosses_itself_is_even_and_odd():
    first, second = ring((0, 0), (3, 0), (3, 1), (0, 1)), ring((1, 0), (5, 0), (5, 1), (1, 1))
    np.testing.assert_array_equal(fill_rings([first, second], (1, 6)), drawn('#####.'))
    twice = ring((0, 0), (3, 0), (3, 1), (0, 1), (0, 0), (3, 0), (3, 1), (0, 1))
    assert not fill_rings([twice], (1, 6)).any()


def test_it_agrees_with_the_test_of_single_points_for_any_ring():
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:40, :50] + 0.5
    for _ in range(20):
        star = rng.uniform(-15, 65, (9, 2)).astype(np.float32)
        whole = fill_rings([star], (40, 50))
        np.testing.assert_array_equal(whole.ravel(), contains(star, np.column_stack([x.ravel(), y.ravel()])))
        np.testing.assert_array_equal(fill_rings([star], (20, 30), origin=(10, 5)), whole[5:25, 10:40])


def test_what_is_outside_of_the_mask_is_cut_off():
    assert not fill_rings([ring((10, 10), (20, 10), (20, 20))], (5, 5)).any()
    assert not fill_rings([], (5, 5)).any()
    assert fill_rings([ring((-9, -9), (99, -9), (99, 99), (-9, 99))], (5, 5)).all()


def test_many_objects_are_filled_as_each_of_them_alone():
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:24, :32] + 0.5
    points = np.column_stack([x.ravel(), y.ravel()])
    objects = [
        [rng.uniform(-20, 50, (int(size), 2)).astype(np.float32) for size in rng.integers(3, 9, int(number))]
        for number in rng.integers(0, 4, 30)
    ]
    masks = fill_objects(objects, (24, 32))
    assert masks.shape == (30, 24, 32)
    assert min(map(len, objects)) == 0
    for mask, rings in zip(masks, objects, strict=True):
        inside = [contains(outline, points) for outline in rings]
        np.testing.assert_array_equal(mask.ravel(), np.any(inside, axis=0) if inside else np.zeros(mask.size, bool))
    # Control: one ring in another's place is noticed.
    objects[3], objects[4] = objects[4], objects[3]
    assert (fill_objects(objects, (24, 32)) != masks).any()
    assert fill_objects([], (3, 4)).shape == (0, 3, 4)


def test_an_object_that_touches_no_centre_leaves_those_behind_it_alone():
    thin, outside = ring((1.6, 0), (1.9, 0), (1.9, 3), (1.6, 3)), ring((9, 9), (9, 12), (12, 12))
    flat, square = ring((0, 1.7), (3, 1.7), (1, 1.7)), ring((1, 0), (3, 0), (3, 2), (1, 2))
    masks = fill_objects([[thin], [outside], [flat], [square]], (3, 4))
    assert masks[:3].sum() == 0
    np.testing.assert_array_equal(masks[3], drawn('.##.', '.##.', '....'))


def test_the_envelope_of_a_mask_is_in_whole_pixels():
    np.testing.assert_array_equal(mask_envelope(drawn('.....', '..##.', '...#.')), [2, 1, 4, 3])
    assert mask_envelope(np.zeros((3, 3), bool)) is None


def test_rings_run_along_the_outer_edges_of_pixels():
    (outline,) = mask_rings(drawn('.....', '.###.', '.###.'), origin=(10, 20))
    assert sorted(map(tuple, outline.tolist())) == [(11, 21), (11, 23), (14, 21), (14, 23)]
    assert mask_rings(np.zeros((3, 3), bool)) == []


def test_every_part_has_a_ring_and_one_pixel_is_enough():
    rings = mask_rings(drawn('#....', '....#', '....#'))
    assert sorted(ring_area(outline) for outline in rings) == [1, 2]


def test_a_hole_stays_a_hole():
    mask = np.ones((20, 20), bool)
    mask[5:15, 6:14] = False
    mask[17, 3] = False
    (outline,) = mask_rings(mask)
    # The four corners of a hole are cut, an eighth of a pixel each.
    assert ring_area(outline) == pytest.approx(400 - (80 - 0.5) - (1 - 0.5))
    np.testing.assert_array_equal(fill_rings([outline], mask.shape), mask)
    # Control: the outer edge alone would fill them.
    assert (fill_rings([ring((0, 0), (20, 0), (20, 20), (0, 20))], mask.shape) != mask).sum() == 81


@pytest.mark.parametrize('seed', range(8))
def test_filling_the_rings_of_a_mask_gives_it_back(seed):
    rng = np.random.default_rng(seed)
    mask = rng.random((30, 30)) < 0.6
    mask |= fill_rings([rng.uniform(2, 58, (7, 2)).astype(np.float32)], mask.shape)
    mask &= ~fill_rings([rng.uniform(10, 20, (4, 2)).astype(np.float32)], mask.shape)
    np.testing.assert_array_equal(fill_rings(mask_rings(mask), mask.shape), mask)
    moved = mask_rings(mask, origin=(100, 50))
    np.testing.assert_array_equal(fill_rings(moved, mask.shape, origin=(100, 50)), mask)
