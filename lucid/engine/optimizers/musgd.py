"""MuSGD: momentum SGD whose matrices also move along their orthogonalised momentum."""

import math
from collections.abc import Hashable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from lucid.engine.optimizers.device_optimizer import DeviceOptimizer, Hyper, cast, gradients
from lucid.engine.optimizers.newton_schulz import muon_directions
from lucid.registry import OPTIMIZERS

NS_DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16}


@OPTIMIZERS.register_module()
class MuSGD(DeviceOptimizer):
    """Momentum SGD, for tensors of two or more dimensions mixed with Muon.

    With ``m <- momentum * m + g`` and ``n = g + momentum * m`` (Nesterov), every parameter moves by ``-lr * u``. For
    tensors of two or more dimensions, seen as matrices (A, B) = (out, rest), depthwise kernels too,
    ``u = w_muon * 0.2 * sqrt(max(A, B)) * orthogonalised(n) + w_sgd * n + weight_decay * p``; for vectors (biases,
    normalisation) ``u = n``: no decay, no Muon. Decay is decoupled: it enters neither ``m`` nor the orthogonalisation.

    Matrices of a parameter group that have equal sizes are orthogonalised together. One group over all parameters is
    meant; with a group per parameter (``paramwise_cfg``) nothing is batched, and steps take longer.

    Args:
        params: Parameters, or groups of them with their own options.
        lr: Learning rate.
        momentum: Of the one buffer per parameter.
        weight_decay: Decoupled, on matrices only.
        w_muon: Weight of the orthogonalised direction; 0 leaves the iteration out.
        w_sgd: Weight of the Nesterov gradient; independent of ``w_muon``.
        ns_steps: Newton-Schulz iterations.
        ns_dtype: Precision of the iteration: 'float32' (at least, float64 parameters stay) or 'bfloat16'.
        ns_lanes: On a card, streams on which groups of matrices iterate side by side; the bits are the same.

    Source: YOLO26 (arXiv:2606.03748), section 3.3.1; Muon (arXiv:2502.16982), equation 4.
    """

    limits: ClassVar = {
        'lr': (0.0, math.inf),
        'momentum': (0.0, 1.0),
        'weight_decay': (0.0, math.inf),
        'w_muon': (0.0, math.inf),
        'w_sgd': (0.0, math.inf),
    }
    neutral: ClassVar = {'lr': 0.0, 'momentum': 1.0}

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float = 0.01,
        momentum: float = 0.95,
        weight_decay: float = 5e-4,
        w_muon: float = 0.5,
        w_sgd: float = 0.5,
        ns_steps: int = 5,
        ns_dtype: str = 'float32',
        ns_lanes: int = 1,
    ) -> None:
        super().__init__(
            params,
            {
                'lr': lr,
                'momentum': momentum,
                'weight_decay': weight_decay,
                'w_muon': w_muon,
                'w_sgd': w_sgd,
                'ns_steps': ns_steps,
                'ns_dtype': ns_dtype,
                'ns_lanes': ns_lanes,
            },
        )

    def check(self, group: dict[str, Any]) -> None:
        """Refuse options that no run can mean.

        Args:
            group: One of ``param_groups``.

        Raises:
            ValueError: An option is unknown or out of range.
        """
        super().check(group)
        if group['ns_dtype'] not in NS_DTYPES:
            raise ValueError(f'MuSGD: ns_dtype={group["ns_dtype"]!r}; choose one of {sorted(NS_DTYPES)}')
        for key, usual in (('ns_steps', '5 is usual'), ('ns_lanes', '1 runs nothing side by side')):
            if not isinstance(group[key], int) or isinstance(group[key], bool) or group[key] < 1:
                raise ValueError(f'MuSGD: {key}={group[key]!r}; give a whole number from 1, {usual}')

    def hyper_values(self, group: dict[str, Any]) -> dict[str, float]:
        """Return the Python floats of ``group`` that live on the device."""
        return {key: group[key] for key in self.limits}

    def baked_options(self, group: dict[str, Any]) -> tuple[Hashable, ...]:
        """Return the options that ``update_group`` reads in Python: also whether there is an iteration at all."""
        return (*super().baked_options(group), group['w_muon'] != 0)

    def init_state(self, group: dict[str, Any]) -> None:
        """Allocate zero momentum: ``momentum * 0 + g`` is the first step's ``m``, without a branch."""
        for param in group['params']:
            self.state[param]['momentum_buffer'] = torch.zeros_like(param, memory_format=torch.preserve_format)

    def update_group(self, group: dict[str, Any], hyper: Hyper, params: list[Tensor]) -> None:
        """Update ``params`` in place."""
        hyper = cast(hyper, params)
        grads = gradients(params)
        buffers = [self.state[param]['momentum_buffer'] for param in params]
        torch._foreach_mul_(buffers, hyper['momentum'])
        torch._foreach_add_(buffers, grads)
        directions = torch._foreach_mul(buffers, hyper['momentum'])
        torch._foreach_add_(directions, grads)
        if pairs := [(param, n) for param, n in zip(params, directions, strict=True) if param.ndim >= 2]:
            matrices, nesterov = (list(column) for column in zip(*pairs, strict=True))
            self._turn(nesterov, matrices, group, hyper)
        torch._foreach_mul_(directions, hyper['lr'])
        torch._foreach_sub_(params, directions)

    @staticmethod
    def _turn(nesterov: list[Tensor], matrices: list[Tensor], group: dict[str, Any], hyper: Hyper) -> None:
        """Turn the Nesterov gradients of ``matrices`` into their directions, in place."""
        orthogonal = None
        if group['w_muon'] != 0:
            orthogonal = muon_directions(
                nesterov, steps=group['ns_steps'], dtype=NS_DTYPES[group['ns_dtype']], lanes=group['ns_lanes']
            )
            torch._foreach_mul_(orthogonal, hyper['w_muon'])
        torch._foreach_mul_(nesterov, hyper['w_sgd'])
        torch._foreach_add_(nesterov, torch._foreach_mul(matrices, hyper['weight_decay']))
        if orthogonal is not None:
            torch._foreach_add_(nesterov, orthogonal)
