"""Parity names the first differing step and key."""

import pytest
import torch

from lucid.capture import first_difference, run_lockstep, training_values


def test_equal_values_have_no_difference():
    values = {'a': torch.tensor([1.0, float('nan')]), 'b': None, 'c': {'d': [1, torch.zeros(2)]}, 'e': 0.5}
    assert first_difference(values, values) is None


def test_the_first_difference_is_named_by_key():
    a = {'loss': torch.ones(2), 'state': {'x': [torch.zeros(3), None]}}
    b = {'loss': torch.ones(2), 'state': {'x': [torch.tensor([0.0, 0.5, 0.25]), None]}}
    assert str(first_difference(a, b, step=4)) == 'step 4: state.x.0: 2 of 3 elements, by up to 0.5'


def test_none_is_not_zeros_and_dtype_and_shape_count():
    zeros = torch.zeros(2)
    assert first_difference({'g': None}, {'g': zeros}).what == 'None against torch.float32 (2,)'
    assert first_difference({'g': zeros}, {'g': zeros.double()}) is not None
    assert first_difference({'g': zeros}, {'g': zeros[:1]}) is not None
    assert first_difference({'g': zeros}, {}).what == 'missing'
    assert first_difference({}, {'g': zeros}).what == 'only in the candidate'
    assert first_difference({'g': zeros}, {'g': torch.tensor([0.0, float('nan')])}) is not None


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_the_smallest_difference_of_any_precision_is_found_among_many_values(dtype):
    tiny = torch.finfo(dtype).smallest_normal
    values = {f'v{i}': torch.full((3,), tiny, dtype=dtype) for i in range(40)}
    others = {key: value.clone() for key, value in values.items()}
    assert first_difference(values, others) is None
    bits = others['v33'].view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    bits[1] += 1  # the next number that the precision has
    assert first_difference(values, others).key == 'v33'


def test_numbers_that_are_not_finite_are_compared_too():
    inf, nan = float('inf'), float('nan')
    values = {'a': torch.tensor([inf, nan]), 'b': torch.tensor([-inf, 1.0])}
    assert first_difference(values, {key: value.clone() for key, value in values.items()}) is None
    assert first_difference(values, {**values, 'b': torch.tensor([inf, 1.0])}).key == 'b'
    assert first_difference(values, {**values, 'a': torch.tensor([inf, 1.0])}).key == 'a'


def test_lockstep_keeps_one_generator_state_per_side():
    torch.manual_seed(0)
    assert run_lockstep(lambda i: {'x': torch.rand(2)}, lambda i: {'x': torch.rand(2)}, 3) is None
    found = run_lockstep(lambda i: {'x': torch.rand(2)}, lambda i: {'x': torch.rand(3)[:2] * 1}, 3)
    assert found is not None
    assert (found.step, found.key) == (0, 'generator.cpu')


def test_lockstep_names_the_step():
    found = run_lockstep(lambda i: {'x': torch.tensor(i)}, lambda i: {'x': torch.tensor(min(i, 2))}, 5)
    assert found is not None
    assert (found.step, found.key) == (3, 'x')


def test_training_values_hold_parameters_buffers_gradients_and_optimizer_state():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    values = training_values(model, optimizer)
    assert {'grad.0.weight', 'parameter.1.bias', 'buffer.1.running_mean'} <= values.keys()
    assert any(key.endswith('momentum_buffer') for key in values)
    kept = values['parameter.0.weight'].clone()
    optimizer.step()
    assert torch.equal(values['parameter.0.weight'], kept)
