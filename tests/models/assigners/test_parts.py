"""Many boxes are looked at in parts: the same bits, and memory that is bounded."""

import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lucid.models.assigners import TaskAlignedAssigner, task_aligned
from lucid.structures import Targets
from lucid.structures.anchors import decode_boxes, make_anchor_grid
from lucid.structures.boxes import pairwise_iou

BRANCHES = [{'topk': 10}, {'topk': 7, 'topk_final': 1}]


class Live(TorchDispatchMode):
    """Counts the bytes that are alive of what is made inside, and the most of them."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.bytes = 0
        self.sizes: list[int] = []
        self._handles = Counter[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, Tensor):
                continue
            key, size = tensor.untyped_storage()._cdata, tensor.untyped_storage().nbytes()
            if key in given and key not in self._handles:
                continue  # a view of what was there before
            if key not in self._handles:
                self.bytes += size
                self.peak = max(self.peak, self.bytes)
                self.sizes.append(size)
            self._handles[key] += 1
            weakref.finalize(tensor, self._gone, key, size)
        return result

    def _gone(self, key: int, size: int) -> None:
        self._handles[key] -= 1
        if not self._handles[key]:
            del self._handles[key]
            self.bytes -= size


def crowd(num_boxes: int, *, batch: int = 2, side: int = 160) -> tuple[Tensor, Tensor, Targets, Any]:
    generator = torch.Generator().manual_seed(num_boxes)
    grid = make_anchor_grid((side, side))
    num_anchors = grid.strides_A.numel()
    centers = torch.rand(batch, num_boxes, 2, generator=generator) * side
    sides = torch.rand(batch, num_boxes, 2, generator=generator) * 40 + 2
    targets = Targets(
        torch.cat((centers - sides / 2, centers + sides / 2), dim=-1),
        torch.randint(3, (batch, num_boxes), generator=generator),
        torch.ones(batch, num_boxes, dtype=torch.bool),
    )
    logits = torch.randn(batch, num_anchors, 3, generator=generator)
    predicted = torch.rand(batch, num_anchors, 4, generator=generator) * side
    return logits, predicted, targets, grid


def noted(sizes: list[int], truth_BM4: Tensor, boxes_BA4: Tensor) -> Tensor:
    sizes.append(truth_BM4.shape[1])
    return pairwise_iou(truth_BM4, boxes_BA4)


@pytest.mark.parametrize('options', BRANCHES, ids=['one-to-many', 'one-to-one'])
@pytest.mark.parametrize('num_parts', [2, 3, 8])
@pytest.mark.parametrize('rotated', [False, True])
def test_parts_have_the_bits_of_the_whole(
    options: dict[str, Any],
    num_parts: int,
    rotated: bool,
    device: torch.device,
    make_scene: Callable,
    rotate: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assigner = TaskAlignedAssigner(**options, rotated=rotated)
    for seed in range(6):
        outputs, targets, grid = make_scene(seed, tied=seed % 2 == 0, dtype=torch.float32, side=96, capacity=8)
        targets = rotate(targets, seed) if rotated else targets
        logits, boxes = outputs.o2m_logits_BAC.to(device), decode_boxes(outputs.o2m_boxes_BA4, grid).to(device)
        if seed == 4:
            boxes[:, 5:9], logits[:, 7] = float('nan'), float('inf')
        targets, grid = (type(x)(*(t if t is None else t.to(device) for t in x)) for x in (targets, grid))
        looked_at: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(task_aligned, 'pairwise_iou', partial(noted, looked_at))
            whole = assigner.assign(logits, boxes, targets, grid)
            patch.setattr(task_aligned, 'MAX_PAIRS', -(-8 // num_parts) * boxes.shape[0] * boxes.shape[1])
            parts = assigner.assign(logits, boxes, targets, grid)
        assert looked_at[0] == 8
        assert len(looked_at) == 1 + num_parts
        assert sum(looked_at) == 16
        assert whole.foreground_BA.any()
        for name, one, other in zip(whole._fields, whole, parts, strict=True):
            assert torch.equal(one, other), name
            assert one.stride() == other.stride(), name


def test_memory_is_that_of_the_pairs_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six times the boxes, at the same bound: their pairs are never there at once."""
    limit = 2**16
    peaks = {}
    for bound in (limit, 2**40):
        monkeypatch.setattr(task_aligned, 'MAX_PAIRS', bound)
        for num_boxes in (128, 768):
            logits, predicted, targets, grid = crowd(num_boxes)
            with Live() as live:
                found = TaskAlignedAssigner(topk=10).assign(logits, predicted, targets, grid)
            peaks[bound, num_boxes] = live.peak
            assert found.foreground_BA.any()
            if bound == limit:
                assert max(live.sizes) <= 4 * limit
    picks = 2 * 768 * 10 * (4 + 8)  # a metric and an anchor of each pick, in bytes
    assert peaks[limit, 768] < 4.3 * 4 * limit + 8 * picks
    assert peaks[2**40, 768] > 5.5 * peaks[2**40, 128]  # control: without a bound it grows with the boxes


def test_the_bound_lets_common_batches_be_one_part() -> None:
    for batch, capacity, side in ((128, 64, 640), (16, 256, 640), (16, 256, 1024)):
        num_anchors = make_anchor_grid((side, side)).strides_A.numel()
        assert batch * capacity * num_anchors <= task_aligned.MAX_PAIRS
