import os
from collections.abc import Iterator
from pathlib import Path

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
