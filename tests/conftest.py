import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

REQUIRE_CUDA = os.environ.get('LUCID_REQUIRE_CUDA') == '1'


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip ``cuda`` tests where there is no card; with LUCID_REQUIRE_CUDA=1 they run, and fail by themselves."""
    if torch.cuda.is_available() or REQUIRE_CUDA:
        return
    for item in items:
        if item.get_closest_marker('cuda'):
            item.add_marker(pytest.mark.skip(reason='needs a CUDA card'))


@pytest.fixture(autouse=True)
def full_precision_on_one_thread() -> None:
    """Expected values are float32's; on CUDA torch convolves in TF32 unless told not to.

    The networks of the tests are small: a second thread waits more than it works, and the suite has processes for it.
    """
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture(params=['cpu', pytest.param('cuda', marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def test_data() -> Path:
    """The folder of real images that LUCID_TEST_DATA names; the test skips where there is none."""
    root = os.environ.get('LUCID_TEST_DATA')
    if not root:
        pytest.skip('LUCID_TEST_DATA names no folder of real images')
    assert Path(root).is_dir(), f'LUCID_TEST_DATA={root} is no folder'
    return Path(root)


@pytest.fixture(scope='session')
def small_network() -> Mapping[str, Any]:
    """Config options of a detector with six convolutions before the head, for tests of what surrounds a network.

    A step of scale n takes three times as long: at 64 pixels the number of operators counts. Its modules have names of
    YOLOBackbone and YOLONeck.
    """
    from torch import Tensor, nn

    from lucid.models.layers import ConvUnit
    from lucid.registry import MODELS

    @MODELS.register_module(force=True)
    class SmallBackbone(nn.Module):
        def __init__(self, *, scale: str) -> None:
            super().__init__()
            self.out_channels, self.strides = (16, 16, 16), (8, 16, 32)
            first = (ConvUnit(channels, out_channels=16, kernel_size=3, stride=2) for channels in (3, 16, 16))
            self.to_p3 = nn.Sequential(*first)
            self.to_p4 = ConvUnit(16, out_channels=16, kernel_size=3, stride=2)
            self.to_p5 = ConvUnit(16, out_channels=16, kernel_size=3, stride=2)

        def forward(self, images_B3HW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            p3 = self.to_p3(images_B3HW)
            p4 = self.to_p4(p3)
            return p3, p4, self.to_p5(p4)

    @MODELS.register_module(force=True)
    class SmallNeck(nn.Module):
        def __init__(self, in_channels: tuple[int, ...], *, scale: str) -> None:
            super().__init__()
            self.out_channels = in_channels
            self.top_t4 = ConvUnit(in_channels[1], out_channels=in_channels[1])

        def forward(self, features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            p3, p4, p5 = features
            return p3, self.top_t4(p4), p5

    return {'model.backbone': {'type': 'SmallBackbone'}, 'model.neck': {'type': 'SmallNeck'}}


@pytest.fixture(autouse=True)
def fresh_mmengine() -> Iterator[None]:
    """mmengine keeps its scope, hub and visualizer in process-wide managers: give each test its own."""
    from mmengine.logging import MessageHub, MMLogger
    from mmengine.registry import DefaultScope
    from mmengine.visualization import Visualizer

    managers = (MessageHub, MMLogger, DefaultScope, Visualizer)
    for manager in managers:  # a fixture of wider scope may have left some
        manager._instance_dict.clear()
    yield
    for manager in managers:
        manager._instance_dict.clear()
