import pytest
import torch

from lucid.structures import AnchorGrid
from lucid.structures.anchors import decode_boxes, make_anchor_grid


def test_anchors_go_level_by_level_and_row_major_inside_a_level(device):
    grid = make_anchor_grid((16, 32), strides=(8, 16), device=device)
    centers = [[4, 4], [12, 4], [20, 4], [28, 4], [4, 12], [12, 12], [20, 12], [28, 12], [8, 8], [24, 8]]
    assert grid.centers_A2.tolist() == centers
    assert grid.strides_A.tolist() == [8.0] * 8 + [16.0] * 2


@pytest.mark.parametrize(('side', 'num_anchors'), [(128, 336), (640, 8400), (1024, 21504)])
def test_the_number_of_anchors_of_square_inputs(side, num_anchors):
    grid = make_anchor_grid((side, side))
    assert grid.centers_A2.shape == (num_anchors, 2)
    assert grid.strides_A.shape == (num_anchors,)


def test_the_grid_is_float32_whatever_the_default_dtype(device):
    torch.set_default_dtype(torch.float64)
    try:
        grid = make_anchor_grid((32, 32), device=device)
    finally:
        torch.set_default_dtype(torch.float32)
    assert grid.centers_A2.dtype == grid.strides_A.dtype == torch.float32


def test_a_grid_made_in_inference_mode_serves_a_training_step():
    with torch.inference_mode():
        grid = make_anchor_grid((32, 32))
        control = torch.zeros(1)
    distances = torch.ones(1, 21, 4, requires_grad=True)
    decode_boxes(distances, grid).sum().backward()
    assert distances.grad is not None
    assert control.is_inference()
    assert not grid.strides_A.is_inference()


@pytest.mark.parametrize('size', [(40, 64), (64, 40), (0, 64)])
def test_a_side_that_is_no_multiple_of_the_strides_is_refused(size):
    with pytest.raises(ValueError, match='multiple of 32'):
        make_anchor_grid(size)


def test_a_box_is_the_centre_minus_left_top_and_plus_right_bottom_in_strides(device):
    grid = AnchorGrid(
        torch.tensor([[12.0, 20.0], [48.0, 16.0]], device=device), torch.tensor([8.0, 32.0], device=device)
    )
    distances = torch.tensor([[[1.0, 2.0, 3.0, 0.5], [0.5, 0.25, -1.0, 0.0]]], device=device)
    assert decode_boxes(distances, grid).tolist() == [[[4, 4, 36, 24], [32, 8, 16, 16]]]


@pytest.mark.parametrize(
    ('dtype', 'expected'),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_boxes_are_float32_or_more(dtype, expected):
    assert decode_boxes(torch.zeros(2, 21, 4, dtype=dtype), make_anchor_grid((32, 32))).dtype == expected
