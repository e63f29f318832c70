import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, Sampler

from lucid.datasets import EpochSampler
from lucid.engine.batch_stream import BatchStream
from lucid.engine.drawing import Drawing
from lucid.engine.optim_wrappers import OptimWrapper
from lucid.engine.optimizers import SGD

COUNT = itertools.count()

HOST_READS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
}


class NoHostRead(TorchDispatchMode):
    """Refuses operators that wait for a value, or a shape, of the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in HOST_READS:
            raise AssertionError(f'{func} reads the device')
        return func(*args, **(kwargs or {}))


@pytest.fixture
def no_host_read() -> Callable[[], NoHostRead]:
    return NoHostRead


class ToyModel(BaseModel):
    """A convolution with BatchNorm, whose loss has a branch weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.criterion = nn.Module()
        self.criterion.register_buffer('branch_weight', torch.tensor(0.5), persistent=False)
        self.weights_seen: list[float] = []

    def forward(self, inputs: Tensor, mode: str = 'tensor') -> Any:
        features = self.norm(self.conv(inputs))
        if mode == 'loss':
            self.weights_seen.append(self.criterion.branch_weight.item())
            return {'loss': features.square().mean()}
        return [features]


class ToyData(Dataset):
    """Eight images; the metric below asks nothing of them."""

    metainfo: dict[str, Any] = {}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {'inputs': torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(index))}


class ToyMetric(BaseMetric):
    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(0)

    def compute_metrics(self, results: list[int]) -> dict[str, float]:
        return {'score': float(len(results))}


@pytest.fixture
def toy_runner(tmp_path: Path) -> Callable[..., Runner]:
    """Build a runner over eight images, of which options override any part."""

    def build(**options: Any) -> Runner:
        loader = {
            'batch_size': 2,
            'num_workers': 0,
            'dataset': ToyData(),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'collate_fn': {'type': 'default_collate'},
        }
        config: dict[str, Any] = {
            'model': ToyModel(),
            'work_dir': str(tmp_path),
            'train_dataloader': loader,
            'train_cfg': {'type': 'EpochBasedTrainLoop', 'max_epochs': 3},
            'optim_wrapper': {'type': 'OptimWrapper', 'optimizer': {'type': 'SGD', 'lr': 0.1, 'momentum': 0.9}},
            'val_dataloader': loader,
            'val_cfg': {'type': 'mmengine.ValLoop'},
            'val_evaluator': [ToyMetric()],
            'default_hooks': {
                'runtime_info': None,
                'timer': None,
                'logger': None,
                'checkpoint': None,
                'param_scheduler': {'type': 'SchedulerHook'},
            },
            'default_scope': 'lucid',
            'experiment_name': f'toy{next(COUNT)}',
        }
        return Runner(**{**config, **options})

    return build


class Rows(Dataset):
    """Row i is (i, 1); asked by a plain index or by the key of a sampler."""

    metainfo = {'classes': ('a', 'b')}
    classes = ('a', 'b')

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Any) -> int:
        return getattr(key, 'index', key)


def collate_rows(indices: list[int]) -> dict[str, Any]:
    rows = torch.tensor([[float(index), 1.0] for index in indices])
    return {'inputs': rows, 'metas': [{'file': f'{index}.jpg', 'image_id': index} for index in indices]}


class Line(BaseModel):
    """loss_fit pulls the weights towards zero; ``poison`` makes the loss of that iteration not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(self.line.weight, 0.5)
        torch.nn.init.zeros_(self.line.bias)
        self.poison: int | None = None
        self.calls = 0

    def forward(self, inputs: Tensor, metas: Any = None, mode: str = 'tensor') -> Any:
        if mode == 'predict':
            return [{'value': row} for row in self.line(inputs)]
        fit = self.line(inputs).square().mean() / 100
        if self.calls == self.poison:
            fit = fit * float('nan')
        self.calls += 1
        return {'loss_fit': fit, 'rows': inputs[:, 0].mean()}


class Score(BaseMetric):
    """``toy/score`` is the next of ``scores``."""

    default_prefix = 'toy'

    def __init__(self, scores: Iterable[float]) -> None:
        super().__init__()
        self.scores = iter(scores)

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results += [0] * len(data_samples)

    def compute_metrics(self, results: list) -> dict[str, float]:
        return {'score': next(self.scores)}


@pytest.fixture
def line_runner(tmp_path: Path) -> Callable[..., Runner]:
    """A runner with lucid's loops and none of mmengine's hooks, over rows of two numbers."""

    def make(
        hooks: Sequence[Hook] = (),
        *,
        length: int = 10,
        rows: Rows | None = None,
        workers: int = 0,
        lasting: bool = True,
        epochs: int = 2,
        accumulate: int = 1,
        scores: Iterable[float] | None = None,
        sampler: Sampler | None = None,
        train_cfg: dict[str, Any] | None = None,
        load_from: Path | None = None,
        work_dir: Path | None = None,
        on_nonfinite: str = 'raise',
        model: BaseModel | None = None,
    ) -> Runner:
        rows = rows or Rows(length)
        loader = partial(DataLoader, rows, batch_size=2, collate_fn=collate_rows)
        options = {'num_workers': workers, 'persistent_workers': lasting and workers > 0}
        model = model or Line()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        validation = {
            'val_dataloader': loader(),
            'val_cfg': {'type': 'ValLoop'},
            'val_evaluator': Evaluator([Score(scores or ())]),
        }
        none = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')
        return Runner(
            model=model,
            work_dir=str(work_dir or tmp_path),
            train_dataloader=loader(sampler=sampler or EpochSampler(rows, seed=0), **options),
            train_cfg={'type': 'EpochTrainLoop', 'max_epochs': epochs, **(train_cfg or {})},
            optim_wrapper=OptimWrapper(
                optimizer,
                accumulative_counts=accumulate,
                clip_grad={'max_norm': 10.0},
                on_nonfinite=on_nonfinite,
            ),
            default_hooks=dict.fromkeys(none),
            custom_hooks=list(hooks),
            load_from=None if load_from is None else str(load_from),
            resume=load_from is not None,
            default_scope='lucid',
            experiment_name=f'line{next(COUNT)}',
            randomness={'seed': 0},
            **(validation if scores is not None else {}),
        )

    return make


class Counted(Dataset):
    """Gives back the index; counts what is asked where all processes see it, and fails at an index of a pass."""

    metainfo = {'classes': ('a', 'b')}

    def __init__(self, length: int = 10, *, fail_at: tuple[int, int] | None = None) -> None:
        self.length, self.fail_at = length, fail_at
        self.asked = torch.zeros(length, dtype=torch.int64).share_memory_()
        self.begun = [multiprocessing.Event() for _ in range(10)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        number = int(self.asked[index])
        self.asked[index] += 1
        self.begun[number].set()
        if (number, index) == self.fail_at:
            raise ArithmeticError(f'bad image {index}')
        return index


@pytest.fixture
def stream() -> Iterator[Callable[[DataLoader], BatchStream]]:
    """Makes streams whose workers end with the test."""
    made: list[BatchStream] = []

    def make(loader: DataLoader) -> BatchStream:
        made.append(BatchStream(loader))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def drawn_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process draws, so that what a painter remembers is seen."""
    monkeypatch.setattr(Drawing, 'begin', lambda self, runner: None)
