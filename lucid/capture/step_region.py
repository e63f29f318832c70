"""The step region: the whole training step of a model as graphs."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from lucid.capture.accumulator import Accumulator
from lucid.capture.capturing import capturing, make
from lucid.capture.compiling import CompiledModules
from lucid.capture.errors import CaptureError, TargetError
from lucid.capture.guards import Guards
from lucid.capture.method_slot import MethodSlot
from lucid.capture.pool import Pool
from lucid.capture.region import Region, Served
from lucid.capture.report import Reason
from lucid.capture.signature import Signature
from lucid.capture.step import MicroBatch, StepWrapper, WindowEnd

SEAM = ('compute', 'step')
NEEDS = ('scale_loss', 'amplify', 'advance', 'step', 'apply', 'abandon', 'baked')


class StepRegion(Region):
    """The training step of a model, captured: forward, loss, backward and accumulation as one graph per signature;
    clip, optimizer and what follows it, such as an average of the weights, as another that ends a window.

    The model has ``compute(data, optim_wrapper) -> (loss, values for the log)`` and ``step(data, optim_wrapper)``,
    which calls it; ``data`` is a prepared batch, whose ``metas`` stay on the host. The wrapper keeps what the host
    decides apart from what the device computes (``StepWrapper``). What changes from step to step must lie in tensors
    that are filled in place. With ``compile`` the modules that the model's ``branch_free`` names, or those of them that
    ``compile`` names, go through torch.compile, in replayed and in eager steps.
    """

    def __init__(self, *, task: str | None = None, compile: bool | str | Sequence[str] = False) -> None:
        super().__init__('', name='step', task=task, compile=bool(compile))
        chosen = (compile,) if isinstance(compile, str) else compile
        self._chosen = () if isinstance(chosen, bool) else tuple(chosen)
        self._compiled: CompiledModules | None = None
        self._wrapper: Any = None
        self._sums: Accumulator | None = None
        self._ends: dict[tuple[bool, ...], WindowEnd] = {}
        self._failed_ends: set[tuple[bool, ...]] = set()

    def compiled_paths(self, model: nn.Module) -> Sequence[str]:
        """The modules that ``model.branch_free`` names, or those chosen among them, if the region compiles."""
        return (self._chosen or getattr(model, 'branch_free', ())) if self.compile else ()

    @property
    def active(self) -> bool:
        """Whether steps come here."""
        return self._module is not None and vars(self._module).get('step') is self._slot

    def _attach(self, model: nn.Module, module: nn.Module) -> None:
        if missing := [name for name in SEAM if not callable(getattr(type(model), name, None))]:
            raise TargetError(
                f'{type(model).__name__} has no {" and no ".join(missing)}, through which a step is captured',
                "capture a module of it: dict(type='ModuleRegion', target=...)",
            )
        seams = {name: _place(type(model), name) for name in SEAM}
        if seams['step'] < seams['compute']:
            raise TargetError(
                f'{type(model).__name__} overrides step, which a replay would not run',
                'override compute, or capture a module',
            )
        if 'step' in vars(model):
            raise TargetError('the step is captured already', 'name StepRegion once')
        known = getattr(model, 'branch_free', ())
        if self.compile and not known:
            raise TargetError(
                f'{type(model).__name__} does not say what can be compiled', 'name modules in an attribute branch_free'
            )
        if strange := [path for path in self._chosen if path not in known]:
            raise TargetError(
                f'compile names {", ".join(map(repr, strange))}, which {type(model).__name__} does not name itself',
                f'choose among {", ".join(map(repr, known))}, or compile=True for all',
            )
        self._wrapper = self._sums = None
        self._ends = {}
        self._compiled = CompiledModules(model, self.compiled_paths(model))
        self._slot = MethodSlot(model, 'step', self._step)
        vars(model)['step'] = self._slot

    def _detach(self, module: nn.Module) -> None:
        if vars(module).get('step') is self._slot:
            del vars(module)['step']
        else:
            self.routes.slot_taken = True
        if self._compiled is not None:
            self._compiled.release()
        # A window that is not over goes on eager, on memory that nobody else writes.
        self._wrapper = self._sums = None
        self._ends = {}

    @staticmethod
    def check_wrapper(wrapper: object) -> None:
        """Raise TargetError for an optimizer wrapper whose step cannot be recorded."""
        kind = type(wrapper)
        if missing := [name for name in NEEDS if not hasattr(wrapper, name)]:
            raise TargetError(
                f'{kind.__module__}.{kind.__name__} has no {", ".join(missing)}: its step reads the host',
                "use lucid's OptimWrapper or AmpOptimWrapper with one of lucid's optimizers, in default_scope='lucid'",
            )
        for name in ('update_params', 'backward', 'run_backward'):
            if hasattr(kind, name) and _place(kind, name) < _place(kind, 'scale_loss'):
                raise TargetError(
                    f'{kind.__name__} overrides {name}, which a replay would not run', 'override amplify or apply'
                )

    def _step(self, data: Mapping[str, Any], optim_wrapper: Any) -> dict[str, Tensor]:
        model: Any = self._module
        if self._wrapper is not optim_wrapper:
            self.check_wrapper(optim_wrapper)
            if self._wrapper is not None:
                self.invalidate('the optimizer wrapper')
            self._wrapper = optim_wrapper
        tensors = {key: value for key, value in data.items() if key != 'metas'}
        served = self._serve(model, (), tensors)
        if not isinstance(served, Served):
            self._count_eager(*served)
            eager: dict[str, Tensor] = type(model).step(model, data, optim_wrapper)
            return eager
        assert self._sums is not None
        self._sums.place(served.recording.reached)
        logs: dict[str, Tensor] = served.recording.replay(served.leaves)
        optim_wrapper.advance()
        if optim_wrapper.window_ended:
            optim_wrapper.step(apply=partial(self._end, optim_wrapper, served.recording.signature))
        return logs

    def _end(self, wrapper: StepWrapper, signature: Signature) -> None:
        """Make the optimizer step of a window whose gradients lie in the sums."""
        sums, pool, model = self._sums, self._pool, self._module
        assert sums is not None
        assert pool is not None
        assert model is not None
        pattern = sums.pattern()
        owned = (parameter for group in wrapper.param_groups for parameter in group['params'])
        if pattern in self._failed_ends or any(p.grad is not None and id(p) not in sums.ids for p in owned):
            if pattern not in self._failed_ends:
                self._count_eager(Reason.GRADIENT, 'at the end of a window')
            wrapper.apply()
            return
        end = self._ends.get(pattern)
        if end is None:
            started, before = time.perf_counter(), pool.memory.num_bytes()
            end = WindowEnd(wrapper, pool, sums, pattern)
            try:
                with capturing(model, signature, name='the step', parts=self._parts, device=self._device) as check:
                    make(end, check)
            except CaptureError as error:
                sums.restore(pattern)
                wrapper.abandon()
                self._failed_ends.add(pattern)
                if self._policy.on_error == 'raise':
                    raise
                self._count_eager(Reason.FAILED, error.what)
                wrapper.apply()
                return
            self._ends[pattern] = end
            pool.extras.append(end)
            self._note(end, 'the end of a window', pool, before=before, started=started)
        end.replay()

    def _make_guards(self, module: nn.Module) -> Guards:
        self._ends, self._failed_ends = {}, set()  # those that there were went with their pool
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if self._sums is None or not self._sums.fits(trainable):
            self._sums = Accumulator(trainable)
        return StepGuards(super()._make_guards(module), self._wrapper, trainable)  # type: ignore[return-value]

    def _record(self, module: nn.Module, leaves: list[Any], signature: Signature, pool: Pool) -> MicroBatch:
        assert self._sums is not None
        return MicroBatch(module, self._wrapper, leaves, signature, pool, self._sums)


def _place(kind: type, name: str) -> int:
    """How far up the bases of a class a method is defined."""
    return next(i for i, base in enumerate(kind.__mro__) if name in vars(base))


class StepGuards:
    """The guards of a model, and what else a recorded step holds: options of the wrapper, hooks on parameters."""

    def __init__(self, guards: Guards, wrapper: StepWrapper, parameters: Sequence[nn.Parameter]) -> None:
        self._guards, self._wrapper, self._parameters = guards, wrapper, parameters
        self._baked = wrapper.baked()

    def changed(self) -> str | None:
        """What no longer is as recorded, or None."""
        if self._wrapper.baked() != self._baked:
            return 'an option of the optimizer, or of its wrapper, changed'
        return self._guards.changed()

    def hooked(self) -> str | None:
        """The first hook that a replay would not run, or None."""
        if any(map(_backward_hooks, self._parameters)) or any(map(_accumulate_hooks, self._parameters)):
            return 'a hook on a parameter'
        return self._guards.hooked()


_backward_hooks: Any = attrgetter('_backward_hooks')
_accumulate_hooks: Any = attrgetter('_post_accumulate_grad_hooks')
