from typing import Any

import pytest
import torch
from torch import nn

from lucid.engine.optimizers import SGD


def train(optimizer_class: type[torch.optim.Optimizer], options: dict[str, Any], dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 4)).to(
        dtype
    )
    optimizer = optimizer_class(model.parameters(), **options)
    for step in range(20):
        optimizer.param_groups[0]['lr'] = 0.1 * (step + 1) / 20
        optimizer.zero_grad()
        model(torch.randn(4, 3, 8, 8, dtype=dtype)).square().mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(
    'options',
    [
        {'lr': 0.1},
        {'lr': 0.1, 'momentum': 0.9, 'weight_decay': 1e-2},
        {'lr': 0.1, 'momentum': 0.9, 'weight_decay': 1e-2, 'nesterov': True},
    ],
)
@pytest.mark.parametrize(('dtype', 'tolerance'), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_twenty_steps_are_close_to_those_of_torch(
    options: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    models = [train(kind, options, dtype) for kind in (SGD, torch.optim.SGD)]
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_the_first_steps_by_hand() -> None:
    param = torch.tensor([2.0], requires_grad=True)
    optimizer = SGD([param], lr=0.5, momentum=0.5, weight_decay=0.25)
    for expected in (2 - 0.5 * 1.5, 1.25 - 0.5 * (0.5 * 1.5 + 1 + 0.25 * 1.25)):
        param.grad = torch.ones(1)
        optimizer.step()
        assert param.item() == expected


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(ValueError, match='nesterov=True with momentum=0; give a momentum'):
        SGD([torch.zeros(1, requires_grad=True)], nesterov=True)
