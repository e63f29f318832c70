"""Compiling modules whose training calls are then captured, or run as they are."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lucid.capture.errors import CaptureError, TargetError

# nn.Module's own route for module.compile(): not in state_dict, dropped by pickle and deepcopy, `forward` untouched.
SLOT = '_compiled_call_impl'
REMEDY = (
    'take compile=True from the region, or mend what the compiler names (it needs a C compiler and, on CUDA, Triton)'
)


def is_of_compiler(error: BaseException) -> bool:
    """Whether Dynamo or Inductor raised it."""
    return type(error).__module__.startswith(('torch._dynamo', 'torch._inductor'))


def compiled_call(module: nn.Module, name: str) -> Callable[..., Any]:
    """What calls ``module``: in training through Inductor as one graph per shape, otherwise as it is.

    Raises CaptureError where compiling fails. Under a dispatch mode, as the CPU stand-in and the inspection of a
    warm-up are, the module runs as it is: what is compiled cannot be watched.
    """
    plain = module._call_impl
    compiled = torch.compile(plain, fullgraph=True, dynamic=False)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not module.training or not torch.is_grad_enabled() or torch._C._len_torch_dispatch_stack():
            return plain(*args, **kwargs)  # type: ignore[no-untyped-call]
        try:
            return compiled(*args, **kwargs)
        except Exception as error:
            if not is_of_compiler(error):
                raise
            raise CaptureError(f'compiling {name} failed: {type(error).__name__}: {error}', REMEDY) from error

    return call


class CompiledModules:
    """Modules of a model by path, compiled until ``release``; raises TargetError if one is compiled or captured."""

    def __init__(self, model: nn.Module, paths: Sequence[str]) -> None:
        self._modules = {path: model.get_submodule(path) for path in paths}
        for path, module in self._modules.items():
            if vars(module).get(SLOT) is not None:
                raise TargetError(f'{path} is compiled with module.compile(), or captured already', 'do it once')
        for path, module in self._modules.items():
            setattr(module, SLOT, compiled_call(module, path))

    def release(self) -> None:
        """Leave the modules as they were; a second call does nothing."""
        for module in self._modules.values():
            vars(module).pop(SLOT, None)
        self._modules = {}
