"""Batches on their way from a loader's worker."""

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

SMALL = 2**16
"""Bytes of a tensor up to which it is copied instead of shared."""


class Parcel:
    """A batch that another process receives as the batch itself, its small tensors copied.

    torch shares each tensor as a file of its own, which a thread of the worker hands over on request: for a tensor of
    some hundred bytes that is most of the time between two processes.

    Args:
        batch: What ``pickle`` can carry.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __reduce__(self) -> tuple[Any, ...]:
        content = io.BytesIO()
        _Pickler(content, pickle.HIGHEST_PROTOCOL).dump(self.batch)
        return pickle.loads, (content.getvalue(),)


class _Pickler(ForkingPickler):
    """torch's way for all but small tensors on the host."""

    def reducer_override(self, value: Any) -> Any:
        """How one object is carried."""
        if type(value) is Tensor and value.device.type == 'cpu' and value.nbytes <= SMALL:
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented
