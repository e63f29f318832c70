"""A guard against what a recording cannot repeat, and scenes of the three tasks that have more than boxes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lucid.models.losses import KeypointLoss, OrientedLoss, SegmentationLoss
from lucid.structures import AnchorGrid, KeypointOutputs, OrientedOutputs, SegmentOutputs, Targets

CLASSES, PROTOTYPES, POINTS = 3, 6, 5


class NoHostRead(TorchDispatchMode):
    """Refuses what a recording cannot repeat: host reads, shapes from data, tensors made from host data."""

    refused = ('_local_scalar_dense', 'nonzero', 'masked_select', 'lift_fresh', 'is_nonzero', 'equal', 'unique')

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ('index', 'index_put', 'index_put_') and any(
            tensor is not None and tensor.dtype in (torch.bool, torch.uint8) for tensor in args[1]
        )
        if by_mask or name.removesuffix('_copy') in self.refused:
            raise AssertionError(f'{func} reads the device or makes a shape from data')
        return func(*args, **(kwargs or {}))


class Scene(NamedTuple):
    """A batch of one task, and its loss."""

    loss: nn.Module
    outputs: Any
    targets: Targets
    grid: AnchorGrid

    def to(self, device: torch.device) -> 'Scene':
        moved = (
            type(one)(*(None if tensor is None else tensor.to(device) for tensor in one))
            for one in (self.outputs, self.targets, self.grid)
        )
        return Scene(self.loss.to(device), *moved)

    def run(self) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Losses, and the gradient of their sum with respect to each output and parameter."""
        leaves = [None if tensor is None else tensor.detach().clone().requires_grad_() for tensor in self.outputs]
        losses = self.loss(type(self.outputs)(*leaves), self.targets, self.grid)
        wanted = [leaf for leaf in leaves if leaf is not None] + list(self.loss.parameters())
        return losses, list(torch.autograd.grad(total(losses), wanted))

    def without_boxes(self) -> 'Scene':
        return self._replace(targets=self.targets._replace(valid_BM=torch.zeros_like(self.targets.valid_BM)))


def total(losses: dict[str, Tensor]) -> Tensor:
    return sum(value for name, value in losses.items() if 'loss' in name)


def make_task_scene(
    task: str,
    seed: int,
    make_scene: Callable,
    rotate: Callable,
    options: dict[str, Any] | None = None,
    *,
    side: int = 64,
    **scene: Any,
) -> Scene:
    """A crowded batch on the CPU, whose targets have what the task needs."""
    raw, targets, grid = make_scene(seed, classes=CLASSES, side=side, **scene)
    generator = torch.Generator().manual_seed(100 + seed)
    batch, anchors = raw.o2m_logits_BAC.shape[:2]
    capacity, dtype = targets.valid_BM.shape[1], raw.o2m_logits_BAC.dtype

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    if task == 'segment':
        cells = side // 4
        masks = torch.rand(batch, capacity, cells, cells, generator=generator) < 0.4
        outputs = SegmentOutputs(
            *raw,
            normal(batch, anchors, PROTOTYPES).tanh(),
            normal(batch, anchors, PROTOTYPES).tanh(),
            normal(batch, PROTOTYPES, cells, cells),
            normal(batch, CLASSES, cells // 2, cells // 2),
        )
        targets = targets._replace(masks_BMHW=masks & targets.valid_BM[..., None, None])
        return Scene(SegmentationLoss(num_classes=CLASSES, **(options or {})), outputs, targets, grid)
    if task == 'oriented':
        outputs = OrientedOutputs(*raw, normal(batch, anchors, 1) * 2, normal(batch, anchors, 1) * 2)
        return Scene(OrientedLoss(num_classes=CLASSES, **(options or {})), outputs, rotate(targets, seed), grid)
    low, high = targets.boxes_BM4.unsqueeze(2).chunk(2, dim=-1)
    points = low + (high - low) * torch.rand(batch, capacity, POINTS, 2, generator=generator) * 1.2
    seen = torch.randint(0, 3, (batch, capacity, POINTS, 1), generator=generator).float()
    outputs = KeypointOutputs(*raw, *(normal(batch, anchors, POINTS, 2) for _ in range(4)))
    targets = targets._replace(keypoints_BMJ3=torch.cat((points, seen), dim=-1) * targets.valid_BM[..., None, None])
    torch.manual_seed(seed)
    loss = KeypointLoss(num_classes=CLASSES, num_keypoints=POINTS, **(options or {}))
    return Scene(loss, outputs, targets, grid)


@pytest.fixture(name='no_host_read')
def fixture_no_host_read() -> Callable[[], NoHostRead]:
    return NoHostRead


@pytest.fixture(name='task_scene')
def fixture_task_scene(make_scene: Callable, rotate: Callable) -> Callable[..., Scene]:
    def make(task: str, seed: int, options: dict[str, Any] | None = None, **scene: Any) -> Scene:
        return make_task_scene(task, seed, make_scene, rotate, options, **scene)

    return make
