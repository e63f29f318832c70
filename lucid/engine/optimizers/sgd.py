"""SGD with momentum, as torch's, with device scalars."""

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from lucid.engine.optimizers.device_optimizer import DeviceOptimizer, Hyper, cast, gradients
from lucid.registry import OPTIMIZERS


@OPTIMIZERS.register_module()
class SGD(DeviceOptimizer):
    """Momentum SGD with coupled weight decay: the arithmetic of ``torch.optim.SGD`` without dampening.

    With ``g' = g + weight_decay * p`` and ``m <- momentum * m + g'``, a parameter moves by ``-lr * m``, with
    ``nesterov`` by ``-lr * (g' + momentum * m)``. It differs from torch's in the last bits, because lr is a tensor.
    """

    limits: ClassVar = {'lr': (0.0, math.inf), 'momentum': (0.0, 1.0), 'weight_decay': (0.0, math.inf)}
    neutral: ClassVar = {'lr': 0.0, 'momentum': 1.0, 'weight_decay': 0.0}

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, {'lr': lr, 'momentum': momentum, 'weight_decay': weight_decay, 'nesterov': nesterov})

    def check(self, group: dict[str, Any]) -> None:
        """Refuse options that no run can mean.

        Args:
            group: One of ``param_groups``.

        Raises:
            ValueError: An option is unknown or out of range, or nesterov comes without momentum.
        """
        super().check(group)
        if group['nesterov'] and group['momentum'] == 0:
            raise ValueError('SGD: nesterov=True with momentum=0; give a momentum, 0.9 is usual')

    def hyper_values(self, group: dict[str, Any]) -> dict[str, float]:
        """Return the Python floats of ``group`` that live on the device."""
        return {key: group[key] for key in self.limits}

    def init_state(self, group: dict[str, Any]) -> None:
        """Allocate zero momentum: ``momentum * 0 + g`` is the first step's ``m``, without a branch."""
        for param in group['params']:
            self.state[param]['momentum_buffer'] = torch.zeros_like(param, memory_format=torch.preserve_format)

    def update_group(self, group: dict[str, Any], hyper: Hyper, params: list[Tensor]) -> None:
        """Update ``params`` in place."""
        hyper = cast(hyper, params)
        grads = torch._foreach_mul(params, hyper['weight_decay'])
        torch._foreach_add_(grads, gradients(params))
        buffers = [self.state[param]['momentum_buffer'] for param in params]
        torch._foreach_mul_(buffers, hyper['momentum'])
        torch._foreach_add_(buffers, grads)
        if group['nesterov']:
            torch._foreach_add_(grads, torch._foreach_mul(buffers, hyper['momentum']))
        directions = grads if group['nesterov'] else buffers
        torch._foreach_sub_(params, torch._foreach_mul(directions, hyper['lr']))
