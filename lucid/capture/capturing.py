"""Making a recording: without side effects, or with a named error and nothing changed."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from lucid.capture.errors import CaptureError, RecordingError
from lucid.capture.graph import quiet
from lucid.capture.policy import Parts
from lucid.capture.pool import Pool
from lucid.capture.recording import Recording
from lucid.capture.signature import Signature


def capture(
    module: nn.Module,
    leaves: Sequence[Any],
    signature: Signature,
    pool: Pool,
    *,
    name: str,
    parts: Parts,
    device: torch.device,
    outside: Collection[int],
) -> Recording:
    """Record ``module`` for one call and put the recording into the pool.

    ``outside`` has the ids of parameters that the model uses outside the module as well. Raises RecordingError; the
    module, the generators and the process are as before in either case.
    """
    with quiet():
        state = parts.state(module, device)
        try:
            recording = parts.recording(module, leaves, signature, pool)
            recording.node.outside = outside
            try:
                recording.warm_up()
                state.check()
                _check_tied(module, recording, outside)
                recording.record()
            except BaseException:
                recording.release()
                raise
        except CaptureError:
            raise
        except torch.OutOfMemoryError as error:
            raise RecordingError(
                f'no memory to record {name} for {signature.describe()}: {error}',
                'use a smaller batch, capture a smaller target, or lower max_signatures',
            ) from error
        except Exception as error:
            raise RecordingError(
                f'recording {name} failed: {type(error).__name__}: {error}',
                "run the target eager to see its own error, or set on_error='eager'",
            ) from error
        finally:
            state.restore()
    pool.add(recording)
    return recording


def _check_tied(module: nn.Module, recording: Recording, outside: Collection[int]) -> None:
    """Refuse a sum that eager takes in another order: a replay adds the inside uses first, then the outside one."""
    for name, parameter in module.named_parameters():
        uses = recording.num_uses.get(id(parameter), 0)
        if uses > 1 and id(parameter) in outside:
            raise RecordingError(
                f'the parameter {name} is used {uses} times in the target and by a module outside it, and its gradient '
                'would be summed in another order',
                'capture a target that holds all of its users, or none',
            )
