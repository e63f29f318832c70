"""Making a recording: without side effects, or with a named error and nothing changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import nn

from lucid.capture.compiling import REMEDY, is_of_compiler
from lucid.capture.errors import CaptureError, RecordingError
from lucid.capture.graph import quiet
from lucid.capture.policy import Parts
from lucid.capture.signature import Signature


class Recordable(Protocol):
    """What ``make`` makes."""

    def warm_up(self) -> None:
        """Run what is to be recorded, inspected."""

    def record(self) -> None:
        """Record it."""

    def release(self) -> None:
        """Give everything back."""


def make(recording: Recordable, check: Callable[[], None]) -> None:
    """Warm up, ``check`` and record; what fails is released."""
    try:
        recording.warm_up()
        check()
        recording.record()
    except BaseException:
        recording.release()
        raise


@contextmanager
def capturing(
    module: nn.Module, signature: Signature, *, name: str, parts: Parts, device: torch.device
) -> Iterator[Callable[[], None]]:
    """Around the making of a recording of ``module``; yields the check of its state to call after a warm-up.

    Raises RecordingError for whatever fails; the module, the generators and the process are as before in either case.
    """
    with quiet():
        state = parts.state(module, device)
        try:
            yield state.check
        except CaptureError:
            raise
        except torch.OutOfMemoryError as error:
            raise RecordingError(
                f'no memory to record {name} for {signature.describe()}: {error}',
                'use a smaller batch, capture a smaller target, or lower max_signatures',
            ) from error
        except Exception as error:
            if is_of_compiler(error):
                raise RecordingError(f'compiling {name} failed: {type(error).__name__}: {error}', REMEDY) from error
            raise RecordingError(
                f'recording {name} failed: {type(error).__name__}: {error}',
                "run the target eager to see its own error, or set on_error='eager'",
            ) from error
        finally:
            state.restore()
