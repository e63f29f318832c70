"""A target whose weights are cast together trains as eager does, whole or in part."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid.models.layers import Stage, set_cast_together


def cast(kit: Any) -> Any:
    """The tiny detector with stages in place of its sequences."""

    def stage(sequence: nn.Sequential) -> Stage:
        return Stage(*(stage(child) if type(child) is nn.Sequential else child for child in sequence))

    model = kit.Detector()
    network, head = model.network, model.network.head
    network.stem = stage(network.stem)
    head.one2many = nn.ModuleList(map(stage, head.one2many))
    head.one2one = nn.ModuleList(map(stage, head.one2one))
    set_cast_together(model)
    return model


@pytest.mark.parametrize('target', ['network', 'network.head', 'network.stem'])
@pytest.mark.parametrize('read', [(0, 1, 2, 3), (0,)], ids=['all outputs', 'one output'])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_it_trains_as_eager_does(graph: Any, kit: Any, target: str, read: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = kit.pair(graph, cast(kit))
    batches = kit.images(4)
    reference = kit.Training(a, read=read, dtype=dtype, accumulate=2).run(batches)
    region = graph.capture(b, target)
    assert kit.difference(reference, kit.Training(b, read=read, dtype=dtype, accumulate=2).run(batches)) is None
    graph.replays(region, 4)


def test_it_trains_as_without(graph: Any, kit: Any) -> None:
    a, b = kit.pair(graph, cast(kit))
    set_cast_together(a, together=False)
    batches = kit.images(4)
    reference = kit.Training(a, dtype=torch.bfloat16).run(batches)
    graph.capture(b)
    assert kit.difference(reference, kit.Training(b, dtype=torch.bfloat16).run(batches)) is None


def test_a_recording_reads_the_weights_of_each_step(captured: Any, kit: Any) -> None:
    """A cast that is made once would keep the weights of the first."""
    model = cast(kit).to(captured.device)
    captured.capture(model)
    training = kit.Training(model, dtype=torch.bfloat16)
    (images,) = kit.images(1)
    losses: list[Tensor] = [training.micro_step(images)['loss'] for _ in range(3)]
    assert len({float(loss) for loss in losses}) == 3
