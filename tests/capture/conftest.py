"""The tiny detector, the ``graph`` fixture with its three runs, and what equal means."""

import copy
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lucid.capture import (
    CudaMemory,
    ModuleRegion,
    Parts,
    Policy,
    TapeMemory,
    first_difference,
    training_values,
)


@pytest.fixture(autouse=True)
def fresh_mmengine() -> None:
    """Capture needs no mmengine, and neither do its tests."""


class ConvBNSiLU(nn.Sequential):
    def __init__(self, c1: int, c2: int, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(c1, c2, 3, stride, 1, bias=False), nn.BatchNorm2d(c2), nn.SiLU(inplace=True))


class Head(nn.Module):
    """Two levels, two branches: four outputs. The one-to-one branch sends no gradient to the features."""

    def __init__(self, channels: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        self.one2many = nn.ModuleList(nn.Sequential(ConvBNSiLU(c, 8), nn.Conv2d(8, 6, 1)) for c in channels)
        self.one2one = nn.ModuleList(nn.Sequential(ConvBNSiLU(c, 8), nn.Conv2d(8, 6, 1)) for c in channels)
        self.dropout = nn.Dropout(dropout)
        self.gain = 1.0

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        many = [self.dropout(branch(x)) * self.gain for branch, x in zip(self.one2many, features, strict=True)]
        one = [branch(x.detach()) for branch, x in zip(self.one2one, features, strict=True)]
        return (*many, *one)


class Network(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvBNSiLU(3, 8, 2), ConvBNSiLU(8, 8, 2))
        self.level1, self.level2 = ConvBNSiLU(8, 8, 2), ConvBNSiLU(8, 16, 2)
        self.head = Head((8, 16), dropout)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        first = self.level1(self.stem(images))
        return self.head((first, self.level2(first)))


class Detector(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.network = Network(dropout)

    def forward(self, images: Tensor, read: Sequence[int] = (0, 1, 2, 3)) -> Tensor:
        outputs = self.network(images)
        loss = images.new_zeros(())
        for i in read:
            goal = F.adaptive_avg_pool2d(images, outputs[i].shape[-2:]).repeat(1, 2, 1, 1)
            loss = loss + (1.0 + i) * F.smooth_l1_loss(outputs[i].float(), goal)
        return loss


class EagerRegion:
    """The stand-in of the eager run: nothing is captured, so that the reference is held against itself."""

    micro_batches = 1

    def release(self) -> None:
        pass

    def invalidate(self, reason: str) -> None:
        pass


@dataclass
class Graph:
    """How the candidate of a test runs."""

    name: str
    device: torch.device
    regions: list[Any] = field(default_factory=list)

    @property
    def captures(self) -> bool:
        return self.name != 'eager'

    def memory(self, *, shared: bool = True) -> Any:
        if self.name == 'cuda':
            return CudaMemory(self.device, shared=shared)
        return TapeMemory(shared=shared)

    def capture(
        self, model: nn.Module, target: str = 'network', *, shared: bool = True, parts: Any = None, **policy: Any
    ) -> Any:
        if not self.captures:
            return EagerRegion()
        region = ModuleRegion(target)
        replaced = {'memory': lambda _: self.memory(shared=shared), **(parts or {})}
        region.activate(model, policy=Policy(**policy), parts=Parts(**replaced))
        self.regions.append(region)
        return region

    def replays(self, region: Any, count: int) -> None:
        if self.captures:
            assert region.routes.replays == count, region.routes.as_dict()


@pytest.fixture(params=['eager', 'tape', pytest.param('cuda', marks=pytest.mark.cuda)])
def graph(request: pytest.FixtureRequest) -> Iterator[Graph]:
    yield from _graph(request.param)


@pytest.fixture(params=['tape', pytest.param('cuda', marks=pytest.mark.cuda)])
def captured(request: pytest.FixtureRequest) -> Iterator[Graph]:
    """The runs that capture, for negative controls: eager has no guard to remove."""
    yield from _graph(request.param)


@pytest.fixture
def on_cuda() -> Iterator[Graph]:
    """For tests that only a card can run; they are marked ``cuda``."""
    yield from _graph('cuda')


def _graph(name: str) -> Iterator[Graph]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kept = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    graph = Graph(name, torch.device('cuda', 0) if name == 'cuda' else torch.device('cpu'))
    yield graph
    torch.backends.cudnn.deterministic = kept
    for region in graph.regions:
        region.release()
    if name == 'cuda':
        gc.collect()


class Training:
    """A model, its optimizer and what a step of it does; every micro-step returns all that must be equal."""

    def __init__(
        self,
        model: nn.Module,
        *,
        accumulate: int = 1,
        read: Sequence[int] = (0, 1, 2, 3),
        dtype: torch.dtype | None = None,
        scale: float = 2.0**16,
        set_to_none: bool = True,
    ) -> None:
        torch.manual_seed(0)  # both sides draw the same sequence, and their generators are compared
        self.model = model
        self.device = next(model.parameters()).device
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        self.accumulate, self.read, self.dtype, self.set_to_none = accumulate, read, dtype, set_to_none
        self.scaler = torch.amp.GradScaler(
            self.device.type, enabled=dtype == torch.float16, init_scale=scale, growth_interval=4
        )
        self.count = 0

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(
            self.device.type, dtype=self.dtype or torch.bfloat16, enabled=self.dtype is not None, cache_enabled=False
        ):
            return self.model(images, self.read)

    def micro_step(self, images: Tensor) -> dict[str, Any]:
        loss = self.forward(images.to(self.device))
        self.scaler.scale(loss / self.accumulate).backward()
        return self.finish(loss)

    def finish(self, loss: Tensor) -> dict[str, Any]:
        """Take the values, and step at the end of a window."""
        values = {'loss': loss.detach().clone(), 'scale': self.scaler.get_scale()}
        values |= training_values(self.model, self.optimizer)
        values['generator.cpu'] = torch.get_rng_state()
        if self.device.type == 'cuda':
            values['generator.cuda'] = torch.cuda.get_rng_state(self.device)
        self.count += 1
        if self.count % self.accumulate == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=self.set_to_none)
        return values

    def run(self, batches: Sequence[Tensor]) -> list[dict[str, Any]]:
        return [self.micro_step(images) for images in batches]


def images(count: int, batch: int = 4, size: int = 64, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, size, size, generator=generator) for _ in range(count)]


def difference(reference: Sequence[dict[str, Any]], candidate: Sequence[dict[str, Any]]) -> Any:
    """The first difference of two runs, by step and key, or None."""
    assert len(reference) == len(candidate)
    for step, (a, b) in enumerate(zip(reference, candidate, strict=True)):
        if found := first_difference(a, b, step=step):
            return found
    return None


def pair(graph: Graph, model: nn.Module | None = None) -> tuple[nn.Module, nn.Module]:
    """Two models of equal values on the graph's device: reference and candidate."""
    model = Detector() if model is None else model
    return copy.deepcopy(model).to(graph.device), model.to(graph.device)


@pytest.fixture
def kit() -> Any:
    """What the tests share: classes and functions, so that test modules need no package."""
    return SimpleNamespace(
        ConvBNSiLU=ConvBNSiLU,
        Detector=Detector,
        Head=Head,
        Network=Network,
        Training=Training,
        difference=difference,
        images=images,
        pair=pair,
    )


@pytest.fixture
def no_kept_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings whose backward reuses the activations' memory, as of a region that has captured another signature."""
    from lucid.capture.incoming import IncomingGradients

    monkeypatch.setattr(IncomingGradients, 'may_differ', property(lambda self: False))
