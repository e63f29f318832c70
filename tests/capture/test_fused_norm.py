"""A target whose BatchNorm and SiLU are one operator of lucid's own, which writes buffers, trains as eager does."""

from typing import Any

import pytest
import torch
from torch import nn

from lucid.models.layers import ConvUnit, fuse_norms


def fused(kit: Any) -> Any:
    """The tiny detector with fused units in its stem and its levels."""
    model = kit.Detector()
    network = model.network
    network.stem = nn.Sequential(*(ConvUnit(c, out_channels=8, kernel_size=3, stride=2) for c in (3, 8)))
    network.level1 = ConvUnit(8, out_channels=8, kernel_size=3, stride=2)
    network.level2 = ConvUnit(8, out_channels=16, kernel_size=3, stride=2, activation=False)
    fuse_norms(model)
    return model


@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
@pytest.mark.parametrize('accumulate', [1, 2])
def test_it_trains_as_eager_does(graph: Any, kit: Any, dtype: torch.dtype | None, accumulate: int) -> None:
    a, b = kit.pair(graph, fused(kit))
    batches = kit.images(6)
    reference = kit.Training(a, accumulate=accumulate, dtype=dtype).run(batches)
    region = graph.capture(b)
    assert kit.difference(reference, kit.Training(b, accumulate=accumulate, dtype=dtype).run(batches)) is None
    graph.replays(region, 6)
    counts = [int(value) for name, value in b.named_buffers() if name.endswith('num_batches_tracked')]
    assert set(counts) == {6}


def test_fusing_after_capture_retires_the_recording(captured: Any, kit: Any) -> None:
    model = fused(kit).to(captured.device)
    region = captured.capture(model)
    training = kit.Training(model)
    training.run(kit.images(2))
    fuse_norms(model, fused=False)
    training.run(kit.images(2))
    assert sum(region.routes.retired.values()) == 1
    assert region.routes.captures == 2
