"""Weights cast together: the bits of autocast's own casts, with fewer operators."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lucid.models.layers import Stage, set_cast_together, weights_cast
from lucid.registry import MODELS

TASKS = [
    ('DetectHead', {}),
    ('SegmentHead', {}),
    ('OrientedHead', {}),
    ('KeypointHead', {'num_keypoints': 2}),
]


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func._schema.name.removeprefix('aten::')] += 1
        return func(*args, **(kwargs or {}))


def autocast(dtype: torch.dtype = torch.bfloat16) -> torch.autocast:
    return torch.autocast('cpu', dtype=dtype, cache_enabled=False)


def make(*, together: bool, head: str = 'DetectHead', frozen: tuple[str, ...] = (), **more: Any) -> Any:
    torch.manual_seed(0)
    return MODELS.build(
        {
            'type': 'YOLODetector',
            'num_classes': 3,
            'head': {'type': head},
            'cast_together': together,
            'frozen': frozen,
            **more,
        }
    ).train()


def run(model: Any, read: slice = slice(None), dtype: torch.dtype = torch.bfloat16) -> tuple[list[Any], Counter[str]]:
    """Outputs and gradients of the network, and the operators that they took."""
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with Count() as count:
        with autocast(dtype):
            outputs = [output for output in model.network(images) if output is not None]
        sum(output.float().square().mean() for output in outputs[read]).backward()
    return [*outputs, *(parameter.grad for parameter in model.parameters())], count.names


def same(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None) == (b is None) and (a is None or (a.stride() == b.stride() and torch.equal(a, b)))


@pytest.mark.parametrize(('head', 'more'), TASKS, ids=[head for head, _ in TASKS])
def test_outputs_and_gradients_have_the_bits_of_autocast_with_fewer_operators(head: str, more: dict[str, Any]) -> None:
    plain, counts = run(make(together=False, head=head, **more))
    found, fewer = run(make(together=True, head=head, **more))
    assert all(map(same, plain, found))
    # Without: a cast per weight and bias, and one per gradient. With: one per stage, forward and backward.
    num_cast = counts['_to_copy'] - fewer['_to_copy']
    assert num_cast > 2 * 127
    assert fewer['_foreach_copy_'] < 64
    assert counts['_foreach_copy_'] == 0


@pytest.mark.parametrize('read', [slice(0, 1), slice(2, 4)], ids=['one kind of one branch', 'one branch'])
def test_what_is_not_read_has_no_gradient(read: slice) -> None:
    plain, _ = run(make(together=False), read)
    found, _ = run(make(together=True), read)
    assert any(value is None for value in plain)
    assert all(map(same, plain, found))


def test_a_level_that_is_not_read_has_no_gradient() -> None:
    grads = []
    for together in (False, True):
        model = make(together=together)
        with autocast():
            first, *_ = model.network.neck(model.network.backbone(torch.rand(2, 3, 64, 64)))
        first.float().square().mean().backward()
        grads.append([parameter.grad is None for parameter in model.network.neck.parameters()])
    assert grads[0] == grads[1]
    assert 0 < sum(grads[0]) < len(grads[0])


def test_a_convolution_that_the_loss_does_not_reach_has_no_gradient_beside_one_that_it_does() -> None:
    stage = Stage(nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1))
    with autocast(), weights_cast(stage, together=True):
        y = stage[1](torch.rand(1, 3, 2, 2))
    y.float().sum().backward()
    assert [parameter.grad is None for parameter in stage.parameters()] == [True, True, False, False]


def test_frozen_weights_are_cast_and_no_gradient_of_them_is_computed() -> None:
    plain, counts = run(make(together=False, frozen=('backbone.to_p3.0', 'neck.top_t4')))
    found, fewer = run(make(together=True, frozen=('backbone.to_p3.0', 'neck.top_t4')))
    assert all(map(same, plain, found))
    assert counts['convolution_backward'] == fewer['convolution_backward']


def test_float16_too_and_nothing_without_autocast() -> None:
    plain, _ = run(make(together=False), dtype=torch.float16)
    found, _ = run(make(together=True), dtype=torch.float16)
    assert all(map(same, plain, found))
    model = make(together=True)
    with Count() as count:
        model.network(torch.rand(2, 3, 64, 64))
    assert count.names['_foreach_copy_'] == 0


def test_parameters_are_themselves_inside_and_their_names_are_free_afterwards() -> None:
    stage = Stage(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1, bias=False))
    parameters = dict(stage.named_parameters())
    set_cast_together(stage)
    with autocast(), weights_cast(stage, together=True):
        outer = stage[0].weight
        assert outer.dtype == torch.bfloat16
        assert all(value is parameters[name] for name, value in stage.named_parameters())
        with pytest.raises(RuntimeError, match='expected input'):
            stage(torch.rand(1, 5, 2, 2))  # a stage in a stage
        assert stage[0].weight is outer
    assert stage[0].weight is parameters['0.weight']
    assert 'weight' not in vars(stage[0])


def test_weights_of_other_dtypes_are_left_alone() -> None:
    stage = Stage(nn.Conv2d(3, 4, 1).double(), nn.Conv2d(3, 4, 1))
    with autocast(), weights_cast(stage, together=True):
        assert stage[0].weight.dtype == torch.float64
        assert stage[1].weight.dtype == torch.bfloat16
