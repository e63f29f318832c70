import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset

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
