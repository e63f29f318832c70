import math

import pytest
import torch
import torch.nn.functional as F

from lucid.models.losses.classification import soft_cross_entropy


def test_two_anchors_by_hand() -> None:
    logits = torch.tensor([[[0.0, math.log(3)], [math.log(1 / 3), 0.0]]], dtype=torch.float64)
    labels, weight = torch.tensor([[1, -1]]), torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    # Probabilities 1/2, 3/4 and 1/4, 1/2; targets 0, 1/2 and 0, 0.
    expected = math.log(2) - 0.5 * math.log(3 / 4) - 0.5 * math.log(1 / 4) - math.log(3 / 4) + math.log(2)
    assert soft_cross_entropy(logits, labels, weight).item() == pytest.approx(expected, rel=1e-14)


def test_it_equals_the_dense_cross_entropy_and_its_gradient(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 50, 7, generator=generator, dtype=torch.float64) * 20
    labels = torch.randint(-1, 7, (2, 50), generator=generator)
    weight = torch.rand(2, 50, generator=generator, dtype=torch.float64).where(labels >= 0, 0.0)
    soft = torch.zeros(2, 50, 7, dtype=torch.float64)
    for image, anchor in (labels >= 0).nonzero().tolist():
        soft[image, anchor, labels[image, anchor]] = weight[image, anchor]

    ours, theirs = logits.to(device).requires_grad_(), logits.clone().requires_grad_()
    found = soft_cross_entropy(ours, labels.to(device), weight.to(device))
    expected = F.binary_cross_entropy_with_logits(theirs, soft, reduction='sum')
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-13, atol=0)
    gradients = (torch.autograd.grad(value, leaf)[0].cpu() for value, leaf in ((found, ours), (expected, theirs)))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)


def test_large_logits_keep_their_digits() -> None:
    # softplus(25) - 25 = 1.4e-11, which torch's default threshold of 20 drops.
    logits = torch.full((1, 1, 1), 25.0, dtype=torch.float64)
    found = soft_cross_entropy(logits, torch.zeros(1, 1).long(), torch.ones(1, 1, dtype=torch.float64))
    assert found.item() == pytest.approx(math.log1p(math.exp(-25)), rel=1e-3)
    assert F.softplus(logits).item() - 25 == 0


def test_the_weight_of_a_background_anchor_is_not_used() -> None:
    logits = torch.zeros(1, 1, 2, dtype=torch.float64)
    found = soft_cross_entropy(logits, torch.tensor([[-1]]), torch.tensor([[float('nan')]], dtype=torch.float64))
    assert found.item() == pytest.approx(2 * math.log(2))


@pytest.mark.parametrize('value', [1e4, -1e4, 3e38, -3e38])
def test_the_gradient_is_finite_for_huge_logits(value: float) -> None:
    logits = torch.full((1, 2, 2), value).requires_grad_()
    soft_cross_entropy(logits, torch.tensor([[0, -1]]), torch.tensor([[0.7, 0.0]])).backward()
    probability = float(value > 0)
    expected = [[probability - 0.7, probability], [probability, probability]]
    torch.testing.assert_close(logits.grad, torch.tensor([expected]))
