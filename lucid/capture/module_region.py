"""Regions of one module: the network, a head, the loss, any path."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lucid.capture.accumulation import AccumulationTable
from lucid.capture.compiling import SLOT, compiled_call
from lucid.capture.errors import TargetError
from lucid.capture.policy import Parts, Policy
from lucid.capture.pool import Pool
from lucid.capture.recording import Recording
from lucid.capture.region import Region, Served
from lucid.capture.signature import Signature
from lucid.capture.target import held_outside

logger = logging.getLogger(__name__)


class ModuleRegion(Region):
    """One module of a model, captured.

    ``target`` is the module's path in the model, such as ``'network'`` or ``'network.head'``; ``''`` is the model
    itself. Calls of the module, made as ``module(...)``, are replayed. With ``compile`` its training calls go through
    torch.compile first, replayed or not.
    """

    def __init__(self, target: str, *, task: str | None = None, compile: bool = False) -> None:
        super().__init__(target, name=target or 'model', task=task, compile=compile)

    def compiled_paths(self, model: nn.Module) -> Sequence[str]:
        """The target, if the region compiles."""
        return [self.target] if self.compile else []

    @property
    def active(self) -> bool:
        """Whether calls of the target come here; False also after another party took the routing slot."""
        return self._module is not None and vars(self._module).get(SLOT) is self._slot

    def _attach(self, model: nn.Module, module: nn.Module) -> None:
        if vars(module).get(SLOT) is not None:
            raise TargetError(
                f'{self.name} is compiled with module.compile(), or captured already',
                'remove the compile() call, or `compile` from the config, or capture without it',
            )
        self._outside = held_outside(model, self.target)
        self._plain = compiled_call(module, self.name) if self.compile else module._call_impl
        self._eager_before = False  # since the last replay: its graph may wait for the same backward as the next
        self._slot = self._call
        setattr(module, SLOT, self._slot)

    def _detach(self, module: nn.Module) -> None:
        if vars(module).get(SLOT) is self._slot:
            delattr(module, SLOT)
        else:
            self.routes.slot_taken = True

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module
        assert module is not None
        served = self._serve(module, args, kwargs)
        if isinstance(served, Served):
            direct, self._eager_before = self._eager_before, False
            return served.recording.replay(served.leaves, direct=direct)
        self._count_eager(*served)
        self._eager_before = self._eager_before or (module.training and torch.is_grad_enabled())
        return self._plain(*args, **kwargs)

    def _record(self, module: nn.Module, leaves: list[Any], signature: Signature, pool: Pool) -> Recording:
        outgrown = next((recording for recording in pool.recordings if recording.signature == signature), None)
        for other in pool.recordings:
            other.give_up_graph()
        if outgrown is not None:
            self._drop(outgrown, pool, 'the strides of the gradients that came in')
        recording = self._parts.recording(module, leaves, signature, pool)
        if outgrown is not None:
            recording.incoming.follow(outgrown.incoming)
        recording.on_eager_backward = self._count_eager_backward
        recording.node.outside = self._outside
        recording.call = self._plain
        return recording

    def _count_eager_backward(self, reason: str) -> None:
        if self.routes.count_eager_backward(reason):
            logger.info('%s runs a backward eager: %s', self.name, reason)


class LossRegion(ModuleRegion):
    """The loss of a model, captured: assignment and loss over raw outputs and padded targets.

    Targets have few capacities, one signature each: other signatures are captured too where the policy would run them
    eager. The loss owns no parameters, so that the accumulation table has nothing to say.
    """

    def __init__(self, target: str = 'criterion', *, task: str | None = None, compile: bool = False) -> None:
        super().__init__(target, task=task, compile=compile)
        self.name = 'loss'

    def activate(
        self,
        model: nn.Module,
        *,
        policy: Policy | None = None,
        accumulation: AccumulationTable | None = None,
        parts: Parts | None = None,
    ) -> None:
        """Take the loss's calls.

        Raises TargetError if the model has no such module, or it is compiled or captured already.
        """
        policy = policy or Policy()
        if policy.on_new_signature == 'eager':
            policy = replace(policy, on_new_signature='capture')
        super().activate(model, policy=policy, accumulation=accumulation, parts=parts)
