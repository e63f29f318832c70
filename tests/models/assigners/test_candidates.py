import math

import torch

from lucid.models.assigners.candidates import anchors_inside, anchors_inside_rotated
from lucid.structures import AnchorGrid
from lucid.structures.anchors import make_anchor_grid


def inside(box: tuple[float, ...], *points: tuple[float, float], valid: bool = True) -> list[bool]:
    grid = AnchorGrid(torch.tensor(points), torch.full((len(points),), 8.0))
    found = anchors_inside(
        torch.tensor([[box]]).float(), torch.tensor([[valid]]), grid, small_side=8.0, small_reference=16.0
    )
    return found[0, 0].tolist()


def test_edges_belong_to_the_box() -> None:
    corners = ((4.0, 4.0), (20.0, 4.0), (4.0, 20.0), (20.0, 20.0))
    assert inside((4, 4, 20, 20), *corners) == [True] * 4
    assert inside((4.001, 4.001, 19.999, 19.999), *corners) == [False] * 4


def test_a_small_side_is_widened_about_the_centre_to_sixteen_pixels() -> None:
    # Sides 4 and 4 about (12, 12): counts as 4..20, edges included.
    points = ((4.0, 4.0), (20.0, 20.0), (3.99, 12.0), (12.0, 20.01))
    assert inside((10, 10, 14, 14), *points) == [True, True, False, False]


def test_each_side_is_widened_by_itself() -> None:
    # 2 wide, 40 tall: 4..20 in x, still 0..40 in y.
    points = ((4.0, 0.0), (20.0, 40.0), (12.0, 40.5), (3.5, 20.0))
    assert inside((11, 0, 13, 40), *points) == [True, True, False, False]


def test_a_side_of_exactly_eight_pixels_is_not_small() -> None:
    points = ((8.0, 12.0), (16.0, 12.0), (7.0, 12.0))
    assert inside((8, 0, 16, 24), *points) == [True, True, False]
    assert inside((8.001, 0, 16, 24), *points) == [True, True, True]


def test_a_box_of_any_size_holds_an_anchor() -> None:
    grid = make_anchor_grid((64, 64))
    generator = torch.Generator().manual_seed(0)
    low = torch.rand(1, 200, 2, generator=generator) * 56
    boxes = torch.cat((low, low + torch.rand(1, 200, 2, generator=generator) * 8), dim=-1)
    valid = torch.ones(1, 200, dtype=torch.bool)
    assert anchors_inside(boxes, valid, grid, small_side=8.0, small_reference=16.0).any(dim=-1).all()
    # Without the widening some would fall between the anchors.
    assert not anchors_inside(boxes, valid, grid, small_side=1e-9, small_reference=1e-9).any(dim=-1).all()


def test_a_row_that_is_not_valid_holds_none_whatever_it_says() -> None:
    for box in ((0, 0, 64, 64), (0, 0, 0, 0), (float('nan'),) * 4, (float('-inf'),) * 2 + (float('inf'),) * 2):
        assert inside(box, (4.0, 4.0), (0.0, 0.0), valid=False) == [False, False]


def inside_rotated(rbox: tuple[float, ...], *points: tuple[float, float], valid: bool = True) -> list[bool]:
    grid = AnchorGrid(torch.tensor(points), torch.full((len(points),), 8.0))
    found = anchors_inside_rotated(
        torch.tensor([[rbox]]).float(), torch.tensor([[valid]]), grid, small_side=8.0, small_reference=16.0
    )
    return found[0, 0].tolist()


def test_edges_belong_to_an_upright_rotated_box_flat_or_tall() -> None:
    corners = ((4.0, 8.0), (20.0, 8.0), (4.0, 16.0), (20.0, 16.0))
    assert inside_rotated((12, 12, 16, 8, 0), *corners) == [True] * 4
    assert inside_rotated((12, 12, 16, 8, math.pi / 2), *((y, x) for x, y in corners)) == [True] * 4
    assert inside_rotated((12, 12, 15.99, 8, 0), *corners) == [False] * 4


def test_an_anchor_in_the_envelope_s_corner_is_outside_of_a_turned_box() -> None:
    # From (10, 10) to (50, 50), 10 wide.
    points = ((14.0, 14.0), (46.0, 46.0), (33.0, 27.0), (34.0, 26.0), (46.0, 14.0))
    assert inside_rotated((30, 30, math.hypot(40, 40), 10, math.pi / 4), *points) == [True, True, True, False, False]


def test_the_own_sides_of_a_rotated_box_are_widened_each_by_itself() -> None:
    # 40 along the diagonal and 4 across it: 8 to either side of the diagonal, and not longer.
    across, along = 8 / math.sqrt(2), 20 / math.sqrt(2)
    points = [(30 + scale * across, 30 - scale * across) for scale in (0.99, 1.01)]
    points += [(30 + scale * along, 30 + scale * along) for scale in (0.99, 1.01)]
    assert inside_rotated((30, 30, 40, 4, math.pi / 4), *points) == [True, False, True, False]


def test_a_box_whose_short_side_becomes_the_long_one_covers_what_its_other_spelling_does() -> None:
    # 10 x 4 counts as 10 x 16, which in the long-edge convention is 16 x 10 a quarter turn further.
    points = torch.rand(500, 2, generator=torch.Generator().manual_seed(0)) * 32
    first, second = (16, 16, 10, 4, 0.3), (16, 16, 16, 10, 0.3 + math.pi / 2)
    found = inside_rotated(first, *points.tolist())
    assert found == inside_rotated(second, *points.tolist())
    assert 20 < sum(found) < 480


def test_a_rotated_row_that_is_not_valid_holds_none_whatever_it_says() -> None:
    for rbox in ((8, 8, 64, 64, 0), (0, 0, 0, 0, 0), (float('nan'),) * 5, (0, 0, float('inf'), float('inf'), 0)):
        assert inside_rotated(rbox, (4.0, 4.0), (0.0, 0.0), valid=False) == [False, False]
