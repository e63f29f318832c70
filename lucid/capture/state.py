"""Everything that capturing must leave as it was: values, attributes, gradients, generators."""

import random
import sys
from typing import Any

import torch
from torch import nn

from lucid.capture.errors import RecordingError
from lucid.capture.guards import SCALARS


class State:
    """A copy of a module's state and the generators', to put back in place.

    Warm-up runs the target for real: BatchNorm statistics move, dropout draws, a module may count its calls. Values
    are restored in place, because the graph holds addresses.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._device = device
        self._modules = list(module.named_modules())
        self._attributes = [dict(vars(m)) for _, m in self._modules]
        self._buffers = [dict(m._buffers) for _, m in self._modules]
        self._parameters = list(module.parameters())
        tensors = {id(t): t for t in (*self._parameters, *module.buffers())}
        self._values = [(t, t.detach().clone()) for t in tensors.values()]
        self._grads = [(p, p.grad) for p in self._parameters]
        self._grad_values = [(g, g.detach().clone()) for _, g in self._grads if g is not None]
        self._cpu_generator = torch.get_rng_state()
        self._cuda_generator = torch.cuda.get_rng_state(device) if device.type == 'cuda' else None
        self._python_generator = random.getstate()
        numpy: Any = sys.modules.get('numpy')
        self._numpy = numpy
        self._numpy_generator = numpy.random.get_state(legacy=False) if numpy else None

    def check(self) -> None:
        """Find state that a replay could not keep up; called after a warm-up, before anything is recorded.

        Raises RecordingError if the target draws from Python's or numpy's generator, changes a plain attribute, or
        rebinds a buffer.
        """
        if random.getstate() != self._python_generator or self._numpy_moved():
            raise RecordingError(
                "the target draws from Python's or numpy's random generator: every replay would repeat the same draw",
                'draw with torch on the device',
            )
        for (name, module), before, buffers in zip(self._modules, self._attributes, self._buffers, strict=True):
            for key, value in vars(module).items():
                old = before.get(key, value)
                if isinstance(value, SCALARS) and isinstance(old, SCALARS) and old != value:
                    raise RecordingError(
                        f'the target changes its attribute {_join(name, key)} in forward: replays would not',
                        'keep the value in a buffer and change it in place',
                    )
            for key, tensor in module._buffers.items():
                if tensor is not buffers.get(key):
                    raise RecordingError(
                        f'the target rebinds its buffer {_join(name, key)} in forward: replays would not',
                        'write it in place, with copy_ or an in-place operator',
                    )

    def restore(self) -> None:
        """Put everything back, in place and bitwise."""
        with torch.no_grad():
            # Through .data: a version counter that rises would break a backward that waits for an eager forward.
            for tensor, value in (*self._values, *self._grad_values):
                tensor.data.copy_(value)
        for parameter, grad in self._grads:
            parameter.grad = grad
        for (_, module), attributes, buffers in zip(self._modules, self._attributes, self._buffers, strict=True):
            _put_back(module._buffers, buffers)
            _put_back(vars(module), attributes)
        torch.set_rng_state(self._cpu_generator)
        if self._cuda_generator is not None:
            torch.cuda.set_rng_state(self._cuda_generator, self._device)
        random.setstate(self._python_generator)
        if self._numpy is not None:
            self._numpy.random.set_state(self._numpy_generator)

    def _numpy_moved(self) -> bool:
        if self._numpy is None or self._numpy_generator is None:
            return False
        now, then = self._numpy.random.get_state(legacy=False), self._numpy_generator
        return bool(now['state']['pos'] != then['state']['pos'] or (now['state']['key'] != then['state']['key']).any())


def _put_back(live: dict[str, Any], saved: dict[str, Any]) -> None:
    for key in live.keys() - saved.keys():
        del live[key]
    for key, value in saved.items():
        if live.get(key) is not value:
            live[key] = value


def _join(path: str, name: str) -> str:
    return f'{path}.{name}' if path else name
