import pytest
import torch

from lucid.models.losses.regression import distance_loss, keep_foreground, overlap_loss

NAN = float('nan')


def test_overlap_loss_is_the_weighted_distance_from_one() -> None:
    boxes = torch.tensor([[0.0, 0, 1, 1], [0, 0, 1, 1]], dtype=torch.float64)
    targets = torch.tensor([[2.0, 0, 3, 1], [0, 0, 1, 1]], dtype=torch.float64)
    found = overlap_loss(boxes, targets, torch.tensor([0.5, 0.25], dtype=torch.float64))
    assert found.tolist() == [pytest.approx(0.5 * 1.4, abs=1e-7), pytest.approx(0, abs=1e-6)]


def test_distance_loss_is_in_stride_units() -> None:
    boxes, targets = torch.tensor([[[0.0, 0, 16, 16]] * 2]), torch.tensor([[[1.0, -2, 20, 15]] * 2])
    found = distance_loss(boxes, targets, torch.tensor([[1.0, 0.5]]), torch.tensor([8.0, 32.0]))
    assert found.tolist() == [[8 / 8, 0.5 * 8 / 32]]


def test_distance_loss_has_the_numeric_gradient() -> None:
    boxes = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    targets, weight = torch.randn(5, 4, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda b: distance_loss(b, targets, weight, torch.arange(1.0, 6)), boxes)


def test_background_is_masked_before_the_arithmetic_so_that_nan_does_not_come_back() -> None:
    boxes = torch.tensor([[0.0, 0, 4, 4], [NAN, 0, NAN, 4]], requires_grad=True)
    targets = torch.tensor([[0.0, 0, 4, 2], [0, 0, 0, 0]])
    foreground, weight = torch.tensor([True, False]), torch.tensor([1.0, 0.0])

    safe = keep_foreground(boxes, foreground)
    value = overlap_loss(safe, targets, weight) + distance_loss(safe, targets, weight, torch.tensor([8.0, 8.0]))
    value.sum().backward()
    assert value[1] == 0
    assert boxes.grad is not None
    assert boxes.grad[0].abs().sum() > 0
    assert boxes.grad[1].tolist() == [0, 0, 0, 0]

    # The control: masking the result hides the NaN in the value and sends it back in the gradient.
    boxes.grad = None
    torch.where(foreground, overlap_loss(boxes, targets, weight), 0.0).sum().backward()
    assert boxes.grad[1].isnan().any()
