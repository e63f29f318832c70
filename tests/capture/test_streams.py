"""A target that forks onto several streams: its recording has branches, and trains as eager does."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lucid.streams import side_by_side


def forking(kit: Any) -> Any:
    """The tiny detector whose head runs each branch of each level on a stream of its own, nested."""

    class Head(kit.Head):
        def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
            calls = [partial(self.branch, stems, features) for stems in (self.one2many, self.one2one)]
            many, one = side_by_side(calls)
            return (*many, *one)

        @staticmethod
        def branch(stems: Any, features: Sequence[Tensor]) -> list[Tensor]:
            return side_by_side([partial(stem, x) for stem, x in zip(stems, features, strict=True)])

    model = kit.Detector()
    model.network.head = Head((8, 16))
    return model


@pytest.mark.parametrize('target', ['network', 'network.head'])
@pytest.mark.parametrize('accumulate', [1, 2])
def test_a_forking_target_trains_as_eager_does(graph: Any, kit: Any, target: str, accumulate: int) -> None:
    a, b = kit.pair(graph, forking(kit))
    batches = kit.images(6)
    reference = kit.Training(a, accumulate=accumulate).run(batches)
    region = graph.capture(b, target)
    assert kit.difference(reference, kit.Training(b, accumulate=accumulate).run(batches)) is None
    graph.replays(region, 6)


def test_it_trains_as_the_same_target_on_one_stream_does(graph: Any, kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = kit.pair(graph, forking(kit))
    batches = kit.images(6)
    graph.capture(b)
    candidate = kit.Training(b).run(batches)
    monkeypatch.setattr('lucid.streams.on_card', lambda tensor: False)
    assert kit.difference(kit.Training(a).run(batches), candidate) is None


@pytest.mark.cuda
def test_a_branch_that_raises_on_a_side_stream_leaves_the_process_healthy(on_cuda: Any, kit: Any) -> None:
    model = forking(kit).to(on_cuda.device)
    plain = model.network.head.one2one[1].forward

    def fail(x: Tensor) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise ArithmeticError('in the capture')
        return plain(x)

    model.network.head.one2one[1].forward = fail
    region = on_cuda.capture(model, on_error='eager')
    training = kit.Training(model)
    training.run(kit.images(2))
    assert region.routes.replays == 0
    del model.network.head.one2one[1].forward
    region.invalidate('mended')
    training.run(kit.images(2))
    assert region.routes.replays > 0
