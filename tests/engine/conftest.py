from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

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
