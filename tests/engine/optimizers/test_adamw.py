from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lucid.engine.optimizers import AdamW


def train(optimizer_class: type[torch.optim.Optimizer], options: dict[str, Any], dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 4)).to(
        dtype
    )
    optimizer = optimizer_class(model.parameters(), **options)
    for step in range(20):
        optimizer.param_groups[0]['lr'] = 0.01 * (step + 1) / 20
        optimizer.zero_grad()
        model(torch.randn(4, 3, 8, 8, dtype=dtype)).square().mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize('options', [{}, {'betas': [0.8, 0.99], 'eps': 1e-6, 'weight_decay': 0.1}])
@pytest.mark.parametrize(('dtype', 'tolerance'), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_twenty_steps_are_close_to_those_of_torch(
    options: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    models = [train(kind, options, dtype) for kind in (AdamW, torch.optim.AdamW)]
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_the_first_step_moves_by_the_learning_rate_whatever_the_gradient() -> None:
    param = torch.tensor([1.0, 1.0], requires_grad=True)
    optimizer = AdamW([param], lr=0.125, weight_decay=0.0, eps=0.0)
    param.grad = torch.tensor([1e-3, -1e3])
    optimizer.step()
    torch.testing.assert_close(param, torch.tensor([0.875, 1.125]), rtol=1e-6, atol=0)


def test_the_counter_is_a_device_tensor_shared_by_its_group_and_survives_a_file(tmp_path: Path) -> None:
    params = [torch.ones(3, requires_grad=True), torch.ones(2, 2, requires_grad=True)]
    optimizer = AdamW(params)
    for _ in range(3):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    assert optimizer.state[params[0]]['step'] is optimizer.state[params[1]]['step']
    torch.save(optimizer.state_dict(), tmp_path / 'state.pth')
    resumed = AdamW(params)
    address = resumed.state[params[0]]['step'].data_ptr()
    resumed.load_state_dict(torch.load(tmp_path / 'state.pth', weights_only=True))
    for param in params:
        step = resumed.state[param]['step']
        assert step.data_ptr() == address
        assert step.item() == 3.0


def test_a_state_of_torch_continues() -> None:
    params = [torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    theirs = torch.optim.AdamW(params[:1])
    for _ in range(3):
        params[0].grad = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
        theirs.step()
    ours = AdamW(params[1:])
    state = theirs.state_dict()
    state['param_groups'] = [{k: state['param_groups'][0][k] for k in ('params', 'lr', 'betas', 'eps', 'weight_decay')}]
    ours.load_state_dict(state)
    params[1].data.copy_(params[0].data)
    for optimizer, param in ((theirs, params[0]), (ours, params[1])):
        param.grad = torch.tensor([0.5, 0.5, 0.5], dtype=torch.float64)
        optimizer.step()
    torch.testing.assert_close(params[0], params[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'betas': (0.9, 1.0)}, r'AdamW: beta2=1.0; give a number in \[0, 1\)'),
        ({'betas': (0.9,)}, r'betas=\(0.9,\); give two numbers'),
        ({'eps': -1.0}, 'eps=-1.0'),
    ],
)
def test_an_option_that_no_run_can_mean_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdamW([torch.zeros(1, requires_grad=True)], **options)
