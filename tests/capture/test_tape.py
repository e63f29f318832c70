"""The CPU stand-in: what it records, and that it models the shared pool as measured on a card."""

import pytest
import torch
from torch import nn

from lucid.capture import RecordingError, TapeMemory
from lucid.capture.operators import tensors_in


def record(body, *, memory=None):
    forward, _ = (memory or TapeMemory()).graphs()
    return forward, forward.record(body)


def test_a_replay_runs_on_what_the_static_buffers_hold():
    x = torch.arange(4.0)
    tape, y = record(lambda: (x * 2 + 1).view(2, 2).t())
    address = y.data_ptr()
    x.copy_(torch.tensor([3.0, 2.0, 1.0, 0.0]))
    tape.replay()
    assert y.tolist() == [[7.0, 3.0], [5.0, 1.0]]
    assert y.data_ptr() == address


def test_in_place_operators_and_views_write_the_recorded_memory():
    x, total = torch.ones(3), torch.zeros(3)

    def body():
        y = x * 3
        y[1:].add_(10)
        y.view(-1).mul_(2)
        total.add_(y)
        return y

    tape, y = record(body)
    x.fill_(2)
    tape.replay()
    assert y.tolist() == [12.0, 32.0, 32.0]
    assert total.tolist() == [6.0 + 12.0, 26.0 + 32.0, 26.0 + 32.0]


def test_python_values_are_baked_in():
    scale = [2.0]
    x = torch.ones(2)
    tape, y = record(lambda: x * scale[0])
    scale[0] = 5.0
    tape.replay()
    assert y.tolist() == [2.0, 2.0]


def test_random_operators_draw_again():
    x = torch.ones(50)
    torch.manual_seed(0)
    tape, y = record(lambda: nn.functional.dropout(x, 0.5))
    first = y.clone()
    torch.manual_seed(3)
    expected = [nn.functional.dropout(x, 0.5), torch.rand(2)]
    torch.manual_seed(3)
    tape.replay()
    assert torch.equal(y, expected[0])
    assert torch.equal(torch.rand(2), expected[1])
    assert not torch.equal(first, y)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_autocast_s_casts_are_recorded_below_it(dtype):
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    with torch.autocast('cpu', dtype=dtype, cache_enabled=False):
        tape, y = record(lambda: layer(x))
    with torch.no_grad():
        layer.weight.mul_(2)
    tape.replay()
    with torch.autocast('cpu', dtype=dtype, cache_enabled=False):
        assert torch.equal(y, layer(x))


def test_a_replay_under_autocast_and_no_grad_runs_as_recorded():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    tape, y = record(lambda: layer(x))
    expected = layer(x)
    with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16):
        tape.replay()
    assert y.dtype == torch.float32
    assert torch.equal(y, expected)


def test_memory_that_the_target_moves_is_refused():
    x = torch.ones(3)
    with pytest.raises(RecordingError, match='aten::resize_'):
        record(lambda: x.clone().resize_(5))


def pair(shared):
    """x -> exp -> sum, with its backward; the memory's pair of tapes."""
    memory = TapeMemory(shared=shared)
    forward, backward = memory.graphs()
    x = torch.ones(3, requires_grad=True)
    y = forward.record(lambda: (x.exp() * 2).sum())
    one = torch.ones(())
    (grad,) = backward.record(lambda: [g.clone() for g in torch.autograd.grad([y], [x], [one])])
    return forward, backward, x, y.detach(), grad


def test_in_a_shared_pool_a_forward_replay_destroys_the_gradients_and_a_backward_the_activations():
    forward, backward, _, y, grad = pair(shared=True)
    assert grad.isfinite().all()
    forward.replay()
    assert grad.isnan().all()
    backward.replay()
    assert torch.equal(grad, 2 * torch.ones(3).exp())
    assert y.isfinite()  # the output of its own pair is not scratch
    backward.replay()
    assert grad.isnan().all()  # the saved activations are gone


def test_with_separate_pools_a_forward_replay_leaves_the_gradients():
    forward, backward, _, _, grad = pair(shared=False)
    forward.replay()
    backward.replay()
    forward.replay()
    assert torch.equal(grad, 2 * torch.ones(3).exp())
    backward.replay()
    assert torch.equal(grad, 2 * torch.ones(3).exp())


def test_a_replay_destroys_the_outputs_of_other_recordings_in_its_pool():
    memory, x = TapeMemory(), torch.ones(3)
    _, floats = record(lambda: x + 1, memory=memory)
    _, integers = record(lambda: (x > 0).long(), memory=memory)
    tape, last = record(lambda: x + 3, memory=memory)
    tape.replay()
    assert floats.isnan().all()
    assert (integers > 2**60).all()
    assert last.tolist() == [4.0, 4.0, 4.0]


def test_bytes_are_counted_and_freed():
    memory, x = TapeMemory(), torch.ones(256)
    tape, _ = record(lambda: x + 1, memory=memory)
    assert memory.num_bytes() == 1024
    tape.release()
    assert memory.num_bytes() == 0


def test_tensors_are_found_in_nested_results():
    a, b = torch.ones(1), torch.zeros(1)
    assert [t is u for t, u in zip(tensors_in({'x': [a, (None, b)]}), (a, b), strict=True)] == [True, True]
