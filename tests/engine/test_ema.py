import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lucid.engine.ema import ExponentialMovingAverage


def make_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(2, 2, dtype=torch.float64))
    model.register_buffer('scratch', torch.ones(2), persistent=False)
    return model.to(memory_format=torch.channels_last)


def set_all(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


def test_three_updates_follow_the_closed_form() -> None:
    model = make_model()
    set_all(model, 1.0)
    ema = ExponentialMovingAverage(model, decay=0.9, warmup=2.0)
    expected = 1.0
    for t, value in enumerate((5.0, -3.0, 2.0), start=1):
        set_all(model, value)
        ema.refresh()
        ema.update()
        d = 0.9 * (1 - math.exp(-t / 2.0))
        expected = d * expected + (1 - d) * value
    assert ema.num_updates == 3
    for tensor in ema.shadow.values():
        torch.testing.assert_close(tensor, torch.full_like(tensor, expected), rtol=1e-6, atol=0)
    torch.testing.assert_close(ema.shadow['2.weight'][0, 0].item(), expected, rtol=1e-15, atol=0)  # float64 stays


def test_the_first_decay_of_the_defaults_is_nearly_zero_and_the_last_nearly_its_limit() -> None:
    ema = ExponentialMovingAverage(make_model())
    ema.refresh()
    assert ema._keep.item() == pytest.approx(0.9999 * (1 - math.exp(-1 / 2000)))
    ema.num_updates = 99_999
    ema.refresh()
    assert ema._keep.item() == pytest.approx(0.9999, abs=1e-12)
    assert ema._keep.item() + ema._take.item() == 1.0


def test_floating_entries_are_averaged_and_no_others() -> None:
    model = make_model()
    ema = ExponentialMovingAverage(model)
    assert set(ema.shadow) == set(model.state_dict()) - {'1.num_batches_tracked'}
    assert 'scratch' not in ema.shadow
    assert '1.running_var' in ema.shadow
    assert ema.shadow['0.weight'].is_contiguous(memory_format=torch.channels_last)


def test_swapping_exchanges_values_keeps_addresses_and_twice_is_the_identity_bit_for_bit() -> None:
    model = make_model()
    ema = ExponentialMovingAverage(model)
    for tensor in ema.shadow.values():
        tensor.add_(1.0)
    model[0].weight.data[0, 0, 0, 0] = -0.0  # type: ignore[index,union-attr]
    ema.shadow['0.bias'][0] = float('nan')

    def bits(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        integer = {4: torch.int32, 8: torch.int64}
        return {k: v.detach().view(integer[v.element_size()]).clone() for k, v in tensors.items()}

    live, shadow = bits(model.state_dict()), bits(ema.shadow)
    addresses = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    ema.swap()
    assert ema.swapped
    swapped = bits(model.state_dict())
    assert all(torch.equal(swapped[name], shadow[name]) for name in shadow)
    assert torch.equal(swapped['1.num_batches_tracked'], live['1.num_batches_tracked'])
    assert not torch.equal(swapped['0.weight'], live['0.weight'])  # control
    ema.swap()
    assert not ema.swapped
    assert all(torch.equal(value, live[name]) for name, value in bits(model.state_dict()).items())
    assert all(torch.equal(value, shadow[name]) for name, value in bits(ema.shadow).items())
    assert addresses == {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}


def test_a_swapped_model_is_neither_averaged_nor_written() -> None:
    ema = ExponentialMovingAverage(make_model())
    ema.swap()
    with pytest.raises(RuntimeError, match='swap them out before training goes on'):
        ema.update()
    with pytest.raises(RuntimeError, match='swap them out before writing a checkpoint'):
        ema.state_dict()


def test_a_state_survives_a_file_of_plain_types_in_place(tmp_path: Path) -> None:
    model = make_model()
    ema = ExponentialMovingAverage(model)
    set_all(model, 3.0)
    for _ in range(5):
        ema.refresh()
        ema.update()
    torch.save({'ema': ema.state_dict()}, tmp_path / 'last.pth')
    state = torch.load(tmp_path / 'last.pth', weights_only=True)['ema']
    assert set(state) == {'shadow', 'num_updates'}
    resumed = ExponentialMovingAverage(make_model())
    addresses = [tensor.data_ptr() for tensor in resumed.shadow.values()]
    resumed.load_state_dict(state)
    assert resumed.num_updates == 5
    assert addresses == [tensor.data_ptr() for tensor in resumed.shadow.values()]
    assert all(torch.equal(resumed.shadow[name], tensor) for name, tensor in ema.shadow.items())


def test_averages_of_another_model_are_refused() -> None:
    state = ExponentialMovingAverage(nn.Linear(2, 3)).state_dict()
    with pytest.raises(ValueError, match='resume with the model that wrote them'):
        ExponentialMovingAverage(nn.Linear(2, 4)).load_state_dict(state)
    with pytest.raises(ValueError, match="such as \\['extra'\\]"):
        ExponentialMovingAverage(nn.Linear(2, 3)).load_state_dict(
            {'shadow': {**state['shadow'], 'extra': torch.ones(1)}, 'num_updates': 1}
        )


def test_a_state_is_a_copy() -> None:
    model = make_model()
    ema = ExponentialMovingAverage(model)
    state = ema.state_dict()
    before = copy.deepcopy(state['shadow'])
    set_all(model, 9.0)
    ema.refresh()
    ema.update()
    assert all(torch.equal(before[name], tensor) for name, tensor in state['shadow'].items())


def test_tensors_that_someone_replaced_are_found_again() -> None:
    model = make_model()
    ema = ExponentialMovingAverage(model)
    model.load_state_dict({k: torch.full_like(v, 2) for k, v in model.state_dict().items()}, assign=True)
    ema.bind()
    ema.refresh()
    ema.update()
    assert ema.shadow['0.bias'][0].item() == pytest.approx(2.0, abs=1e-2)
    model[0].bias = None  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match=r"came or went: \['0.bias'\]; start a new average"):
        ema.bind()


def test_an_update_reads_nothing_on_the_host(no_host_read: Callable[[], Any]) -> None:
    ema = ExponentialMovingAverage(make_model())
    with no_host_read():
        ema.refresh()
        ema.update()
        ema.swap()


@pytest.mark.parametrize('options', [{'decay': 1.0}, {'decay': -0.1}, {'warmup': 0.0}])
def test_a_constant_out_of_range_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match='use 0 <= decay < 1 and warmup > 0'):
        ExponentialMovingAverage(make_model(), **options)


def test_what_the_model_keeps_as_it_is_is_its_own_average_exactly() -> None:
    """Without that, rounding of the two factors moves a constant."""
    model = make_model()
    set_all(model, 0.3)
    model.frozen_state = frozenset({'0.weight', '1.running_var'})  # type: ignore[assignment]
    ema = ExponentialMovingAverage(model)
    ema.num_updates = 20_000
    for _ in range(2000):
        ema.refresh()
        ema.update()
    for name in ('0.weight', '1.running_var'):
        assert torch.equal(ema.shadow[name], model.state_dict()[name])
    assert not torch.equal(ema.shadow['1.running_mean'], model.state_dict()['1.running_mean']), 'the control'
    ema.swap()
    assert (model.get_parameter('0.weight') == torch.tensor(0.3)).all()


def test_an_update_that_failed_is_counted_and_leaves_the_averages_as_they_are() -> None:
    model = torch.nn.BatchNorm1d(3)
    ema = ExponentialMovingAverage(model)
    before = {name: tensor.clone() for name, tensor in ema.shadow.items()}
    with torch.no_grad():
        model.weight.fill_(3.0)
    ema.refresh()
    ema.update(torch.tensor(True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in ema.shadow.items())
    assert ema.num_updates == 1
    ema.refresh()
    ema.update(torch.tensor(False))
    assert not torch.equal(ema.shadow['weight'], before['weight'])  # control
