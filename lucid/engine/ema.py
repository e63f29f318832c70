"""An exponential moving average of a model's weights."""

import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn


class ExponentialMovingAverage:
    """Averages all floating-point entries of ``model.state_dict()``: parameters and buffers, BatchNorm's included.

    Update t = 1, 2, ... is ``shadow <- d * shadow + (1 - d) * live`` with ``d = decay * (1 - exp(-t / warmup))``.
    Integer entries and buffers that are not persistent have no average, and what the model says it keeps as it is
    (``frozen_state``, names) is its own average, exactly. ``refresh`` counts and fills ``d`` on the host,
    ``update`` is device arithmetic only. ``shadow`` belongs to this object; its tensors keep their addresses.

    ``swap`` exchanges values in place: no parameter of the model changes its address, so recordings stay valid.

    Args:
        model: Averaged where it is, without a distributed wrapper.
        decay: Limit of d, from 0 to below 1.
        warmup: Updates in which d comes within 1/e of its limit.

    Raises:
        ValueError: A number is out of range.

    Source: method of the YOLO lineage; the constants are its convention, unpublished.
    """

    def __init__(self, model: nn.Module, *, decay: float = 0.9999, warmup: float = 2000.0) -> None:
        check_decay(decay, warmup)
        self.model = model
        self.decay = decay
        self.warmup = warmup
        self.num_updates = 0
        self.swapped = False
        self._live = _floating(model)
        self.shadow = {name: tensor.detach().clone() for name, tensor in self._live.items()}
        self._frozen: frozenset[str] = getattr(model, 'frozen_state', frozenset())
        device = next(iter(self.shadow.values())).device
        self._keep = torch.zeros((), dtype=torch.float64, device=device)
        self._take = torch.ones((), dtype=torch.float64, device=device)

    def bind(self) -> None:
        """Look the model's tensors up again, in case someone replaced them; cheap enough once per epoch.

        Raises:
            RuntimeError: The model has other entries than when the average started.
        """
        live = _floating(self.model)
        if changed := live.keys() ^ self.shadow.keys():
            raise RuntimeError(f'EMA: entries of the model came or went: {sorted(changed)[:5]}; start a new average')
        self._live = live

    def refresh(self) -> None:
        """Count an update and fill its decay; exactly once before each ``update``.

        Raises:
            RuntimeError: The averages are swapped in: said here, on the host, because ``update`` may be replayed.
        """
        if self.swapped:
            raise RuntimeError('EMA: the model holds the averages; swap them out before training goes on')
        self.num_updates += 1
        keep = self.decay * (1 - math.exp(-self.num_updates / self.warmup))
        self._keep.fill_(keep)  # fill_, not rebind: a recording holds this address
        self._take.fill_(1 - keep)

    @torch.no_grad()
    def update(self, failed: Tensor | None = None) -> None:
        """Average the live values in, on the device only.

        Args:
            failed: 0-d bool; where it holds, the averages keep their values, if the live ones are finite, which they
                are as soon as others have undone theirs. The update was counted all the same.

        Raises:
            RuntimeError: The averages are swapped in.
        """
        if self.swapped:
            raise RuntimeError('EMA: the model holds the averages; swap them out before training goes on')
        keep, take = self._keep, self._take
        if failed is not None:
            keep, take = keep.masked_fill(failed, 1.0), take.masked_fill(failed, 0.0)
        for shadow, live in self._pairs(without=self._frozen):
            torch._foreach_mul_(shadow, keep.to(shadow[0].dtype))
            torch._foreach_add_(shadow, torch._foreach_mul(live, take.to(shadow[0].dtype)))

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's values and the averages, in place; twice changes nothing, bit for bit."""
        self.bind()
        for shadow, live in self._pairs():
            values = [torch.empty_like(tensor) for tensor in live]
            torch._foreach_copy_(values, live)  # not clones: a kernel each
            torch._foreach_copy_(live, shadow)
            torch._foreach_copy_(shadow, values)
        self.swapped = not self.swapped

    def state_dict(self, *, live: bool = False) -> dict[str, Any]:
        """Return what ``load_state_dict`` takes.

        Args:
            live: The averages themselves, which go on changing, where they are; otherwise copies on the CPU.

        Returns:
            ``shadow`` by name, and ``num_updates``.

        Raises:
            RuntimeError: The averages are swapped in, so that the checkpoint's weights would be them.
        """
        if self.swapped:
            raise RuntimeError('EMA: the model holds the averages; swap them out before writing a checkpoint')
        shadow = {name: tensor if live else tensor.to('cpu', copy=True) for name, tensor in self.shadow.items()}
        return {'shadow': shadow, 'num_updates': self.num_updates}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy averages into the existing tensors.

        Args:
            state: What ``state_dict`` returned.

        Raises:
            ValueError: The averages are of another model.
        """
        shadow = state['shadow']
        if strange := {
            name
            for name in self.shadow.keys() | shadow.keys()
            if name not in shadow or name not in self.shadow or shadow[name].shape != self.shadow[name].shape
        }:
            raise ValueError(
                f"EMA: {len(strange)} entries differ between the checkpoint's averages and the model, such as "
                f'{sorted(strange)[:5]}; resume with the model that wrote them'
            )
        for name, tensor in self.shadow.items():
            tensor.copy_(shadow[name])
        self.num_updates = int(state['num_updates'])

    def _pairs(self, without: frozenset[str] = frozenset()) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Return lists of averages and of live tensors, one pair per dtype, except those named."""
        pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for name, shadow in self.shadow.items():
            if name in without:
                continue  # keep * x + take * x is not x after rounding
            averages, live = pairs[shadow.dtype]
            averages.append(shadow)
            live.append(self._live[name])
        return list(pairs.values())


def check_decay(decay: float, warmup: float) -> None:
    """Raise ``ValueError`` for numbers with which nothing is averaged."""
    if not 0 <= decay < 1 or not warmup > 0:
        raise ValueError(f'EMA: decay={decay}, warmup={warmup}; use 0 <= decay < 1 and warmup > 0')


def _floating(model: nn.Module) -> dict[str, Tensor]:
    # keep_vars: the tensors themselves, so that a later ``param.data = x`` is seen.
    state = model.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor) and value.is_floating_point()}
