"""Several processes that train one model: its wrapper, and what each process otherwise keeps for itself."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.dist import all_reduce_params
from mmengine.model import MMDistributedDataParallel, is_model_wrapper
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lucid.registry import MODEL_WRAPPERS

# Newer torch renamed the option and warns about the old name.
_BUFFERS = next(
    name
    for name in ('forward_sync_buffers', 'broadcast_buffers')
    if name in inspect.signature(DistributedDataParallel).parameters
)


@MODEL_WRAPPERS.register_module()
class DistributedModel(MMDistributedDataParallel):
    """mmengine's distributed model with the seam of lucid's detectors: ``prepare``, then ``step``.

    Gradients are averaged over the processes. Buffers are not touched in training, where BatchNorm uses its own batch;
    ``synchronise`` averages them before anyone reads them.

    Args:
        module: A model with ``prepare`` and ``parse_losses``, on its device.
        device_ids: The card of this process; None on a CPU.
        find_unused_parameters: Whether some parameters may get no gradient.
    """

    def __init__(
        self, module: nn.Module, *, device_ids: list[int] | None = None, find_unused_parameters: bool = False
    ) -> None:
        options = {'device_ids': device_ids, 'find_unused_parameters': find_unused_parameters, _BUFFERS: False}
        super().__init__(module, **options)

    def train_step(self, data: Mapping[str, Any], optim_wrapper: OptimWrapper) -> dict[str, Tensor]:
        """``step(prepare(data), optim_wrapper)``; only the forward is under autocast."""
        return self.step(self.module.prepare(data), optim_wrapper)

    def step(self, data: Mapping[str, Any], optim_wrapper: OptimWrapper) -> dict[str, Tensor]:
        """Forward, loss, backward and update, without a host read.

        Args:
            data: A batch from ``prepare``.
            optim_wrapper: Whose parameters are updated.

        Returns:
            Named 0-d tensors on the device, detached, of this process's batch.
        """
        with optim_wrapper.optim_context(self):
            losses = self(**data, mode='loss')
        loss, log_vars = self.module.parse_losses(losses)
        optim_wrapper.update_params(loss)
        return {name: value.detach() for name, value in log_vars.items()}


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside a distributed wrapper, or the model itself."""
    inner = model.module if is_model_wrapper(model) else model
    assert isinstance(inner, nn.Module)
    return inner


def buffer_names(model: nn.Module) -> list[str]:
    """Return the names of the floating-point buffers in the state of ``model`` that training changes."""
    others = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    # The mean of equal values need not be that value: (x + x + x) / 3.
    others |= getattr(model, 'frozen_state', frozenset())
    return [name for name, value in model.state_dict().items() if name not in others and value.is_floating_point()]


@torch.no_grad()
def synchronise(runner: Runner) -> None:
    """Give all processes the mean of their buffers; every process calls it, a single one pays nothing.

    Hooks that keep values of their own for buffers take part by ``synchronise(runner)``. As averages of buffers are
    linear in them, it changes no later mean when this is called.

    Args:
        runner: The runner.
    """
    if runner.world_size == 1:
        return
    model = unwrapped(runner.model)
    state = model.state_dict()
    all_reduce_params([state[name] for name in buffer_names(model)], op='mean')
    runner.call_hook('synchronise')
