"""AdamW, as torch's, with device scalars."""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lucid.engine.optimizers.device_optimizer import DeviceOptimizer, Hyper, cast, gradients
from lucid.registry import OPTIMIZERS


@OPTIMIZERS.register_module()
class AdamW(DeviceOptimizer):
    """Adam with decoupled weight decay: the arithmetic of ``torch.optim.AdamW``, with one step counter per group.

    The counter is a 0-d float64 tensor that all parameters of a group share as their ``state['step']``; it counts the
    updates in which any of them had a gradient. torch counts each parameter's own, which differs only for parameters
    without a gradient in some steps. It differs from torch's in the last bits, because lr is a tensor.

    Source: arXiv:1711.05101.
    """

    limits: ClassVar = {
        'lr': (0.0, math.inf),
        'beta1': (0.0, 1.0),
        'beta2': (0.0, 1.0),
        'eps': (0.0, math.inf),
        'weight_decay': (0.0, math.inf),
    }

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float = 1e-3,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {'lr': lr, 'betas': tuple(betas), 'eps': eps, 'weight_decay': weight_decay})

    def check(self, group: dict[str, Any]) -> None:
        """Refuse options that no run can mean.

        Args:
            group: One of ``param_groups``.

        Raises:
            ValueError: An option is unknown or out of range.
        """
        if len(group['betas']) != 2:
            raise ValueError(f'AdamW: betas={group["betas"]!r}; give two numbers, (0.9, 0.999) is usual')
        super().check(group)

    def hyper_values(self, group: dict[str, Any]) -> dict[str, float]:
        """Return the Python floats of ``group`` that live on the device."""
        beta1, beta2 = group['betas']
        return {
            'lr': group['lr'],
            'beta1': beta1,
            'beta2': beta2,
            'eps': group['eps'],
            'weight_decay': group['weight_decay'],
        }

    def baked_options(self, group: dict[str, Any]) -> tuple[Hashable, ...]:
        """Return nothing: the betas are device scalars too."""
        return ()

    def init_state(self, group: dict[str, Any]) -> None:
        """Allocate zero averages and the group's counter."""
        step = torch.zeros((), dtype=torch.float64, device=group['params'][0].device)
        for param in group['params']:
            self.state[param].update(
                step=step,
                exp_avg=torch.zeros_like(param, memory_format=torch.preserve_format),
                exp_avg_sq=torch.zeros_like(param, memory_format=torch.preserve_format),
            )

    def update_group(self, group: dict[str, Any], hyper: Hyper, params: list[Tensor]) -> None:
        """Update ``params`` in place."""
        step = self.state[params[0]]['step'].add_(1)
        # In float64: in float32 1 - 0.999 ** 1 is wrong by 3e-5.
        derived = {
            'keep': 1 - hyper['lr'] * hyper['weight_decay'],
            'beta1': hyper['beta1'],
            'rest1': 1 - hyper['beta1'],
            'beta2': hyper['beta2'],
            'rest2': 1 - hyper['beta2'],
            'rate': hyper['lr'] / (1 - hyper['beta1'] ** step),
            'correction': (1 - hyper['beta2'] ** step).rsqrt(),
            'eps': hyper['eps'],
        }
        h = cast(derived, params)
        grads = gradients(params)
        averages = [self.state[param]['exp_avg'] for param in params]
        squares = [self.state[param]['exp_avg_sq'] for param in params]
        torch._foreach_mul_(params, h['keep'])
        torch._foreach_mul_(averages, h['beta1'])
        torch._foreach_add_(averages, torch._foreach_mul(grads, h['rest1']))
        new_squares = torch._foreach_mul(grads, grads)
        torch._foreach_mul_(new_squares, h['rest2'])
        torch._foreach_mul_(squares, h['beta2'])
        torch._foreach_add_(squares, new_squares)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_mul_(roots, h['correction'])
        # By overload: torch._foreach_add_ would take the 0-d tensor for a number, and read it on the host.
        torch.ops.aten._foreach_add_.Tensor(roots, h['eps'])
        moves = torch._foreach_div(averages, roots)
        torch._foreach_mul_(moves, h['rate'])
        torch._foreach_sub_(params, moves)
