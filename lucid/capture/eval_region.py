"""Regions of evaluation: what a model computes in evaluation mode with gradients off."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lucid.capture.accumulation import AccumulationTable
from lucid.capture.compiling import SLOT
from lucid.capture.errors import TargetError
from lucid.capture.method_slot import MethodSlot, own_method
from lucid.capture.policy import Parts, Policy
from lucid.capture.pool import Pool
from lucid.capture.recording import Recording
from lucid.capture.region import Region, Served
from lucid.capture.report import Reason
from lucid.capture.signature import Signature

SEAM = 'infer'


class EvalRegion(Region):
    """Evaluation, captured: one graph per signature, a forward without backward.

    Without ``target`` it is the method ``infer`` of the model: lucid's detectors have network and decoding there. A
    ``target`` is the path of a module, as of a ``ModuleRegion``, whose calls in training it leaves alone: activate it
    after that region where both have one target, and release it before. Calls in evaluation mode with gradients off
    are replayed. Recordings read parameters and buffers where they are, so that an average that is swapped in by value
    is evaluated, and they keep nothing from one replay to the next.

    ``beside`` is a region of training in whose graph memory the recordings may lie too, if both make theirs by one
    ``SharedMemory``. That is safe because nothing of a recording of evaluation lives between replays, and because this
    region runs eager while a forward of the other waits for its backward.
    """

    def __init__(self, target: str | None = None, *, task: str | None = None) -> None:
        super().__init__(target or '', name='eval' if target is None else f'eval/{target}', task=task)
        self.beside: Region | None = None
        self._of_model = target is None

    def compiled_paths(self, model: nn.Module) -> Sequence[str]:
        """None: evaluation is not compiled."""
        return ()

    @property
    def active(self) -> bool:
        """Whether calls come here."""
        return self._module is not None and vars(self._module).get(self._key) is self._slot

    @property
    def _key(self) -> str:
        return SEAM if self._of_model else SLOT

    def activate(
        self,
        model: nn.Module,
        *,
        policy: Policy | None = None,
        accumulation: AccumulationTable | None = None,
        parts: Parts | None = None,
    ) -> None:
        """Take the target's calls in evaluation; the report does not miss any before ``routes.due`` is set.

        Raises TargetError if the model has no such target, or no ``infer``.
        """
        super().activate(model, policy=policy, accumulation=accumulation, parts=parts)
        self.routes.due = False

    def _attach(self, model: nn.Module, module: nn.Module) -> None:
        self._before = vars(module).get(self._key)  # the slot of a region of training
        owner = getattr(self._before, '__self__', None)
        if self._before is not None and (not isinstance(owner, Region) or isinstance(owner, EvalRegion)):
            raise TargetError(
                f'{self.name} is compiled, or captured already',
                'name each EvalRegion once, and do not compile its target',
            )
        self._plain: Callable[..., Any]
        self._slot: Any
        if not self._of_model:
            self._plain, self._slot = self._before or module._call_impl, self._call
        elif callable(getattr(type(model), SEAM, None)):
            self._plain, self._slot = own_method(model, SEAM), MethodSlot(model, SEAM, self._call)
        else:
            raise TargetError(
                f'{type(model).__name__} has no {SEAM}, in which network and decoding would be captured',
                "name a module: dict(type='EvalRegion', target='network')",
            )
        setattr(module, self._key, self._slot)

    def _detach(self, module: nn.Module) -> None:
        if vars(module).get(self._key) is not self._slot:
            self.routes.slot_taken = True
        elif self._before is None:
            delattr(module, self._key)
        else:
            setattr(module, self._key, self._before)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module
        assert module is not None
        if module.training or torch.is_grad_enabled():
            return self._plain(*args, **kwargs)
        served = self._serve(module, args, kwargs)
        if isinstance(served, Served):
            return served.recording.replay(served.leaves)
        self._count_eager(*served)
        return self._plain(*args, **kwargs)

    def _mode_reason(self, module: nn.Module) -> Reason | None:
        return Reason.INFERENCE if torch.is_inference_mode_enabled() else None

    def _open(self, module: nn.Module, args: Any, kwargs: Any) -> Pool | None:
        pool = super()._open(module, args, kwargs)
        if pool is not None:
            pool.neighbours = self._neighbours
        return pool

    def _neighbours(self) -> list[Pool]:
        other = self.beside._pool if self.beside is not None and self.beside._module is not None else None
        return [other] if other is not None and self._pool is not None and other.memory is self._pool.memory else []

    def _record(self, module: nn.Module, leaves: list[Any], signature: Signature, pool: Pool) -> Recording:
        recording = self._parts.recording(module, leaves, signature, pool)
        recording.call = self._plain
        return recording
