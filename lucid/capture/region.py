"""What all regions share: which recording serves a call, or why none does."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from lucid.capture.accumulation import AccumulationTable
from lucid.capture.capturing import capturing, make
from lucid.capture.errors import CaptureError, GuardError, SignatureError, TargetError
from lucid.capture.graph import is_recording
from lucid.capture.guards import Guards
from lucid.capture.operators import tensors_in
from lucid.capture.policy import Parts, Policy
from lucid.capture.pool import Pool
from lucid.capture.report import Reason, Recorded, Routes
from lucid.capture.signature import Signature, flatten, signature_of
from lucid.capture.target import find

logger = logging.getLogger(__name__)

# A guard that fails after each recording's first call would spend the run on capturing.
MAX_FRUITLESS = 3


class Served(NamedTuple):
    """A call that a recording serves."""

    recording: Any
    leaves: list[Any]


class Region(ABC):
    """A part of a model, captured: what its calls have in common, whatever they record.

    Between ``activate`` and ``release`` calls in training with gradients on are replayed, all others run as they are;
    of an ``EvalRegion`` it is the other way round.
    ``micro_batches`` is the number of micro-batches of the current window; whoever drives the training sets it.
    ``compile`` runs training calls through torch.compile, replayed or not.
    Subclasses take the calls (``_attach``, ``_detach``) and make the recordings (``_record``).
    """

    def __init__(self, target: str, *, name: str, task: str | None = None, compile: bool = False) -> None:
        self.target = target
        self.task = task
        self.compile = compile
        self.name = name
        self.routes = Routes(name)
        self.micro_batches = 1
        self._module: nn.Module | None = None

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether calls come here."""

    @abstractmethod
    def compiled_paths(self, model: nn.Module) -> Sequence[str]:
        """Paths of the modules that the region compiles; none without ``compile``."""

    @abstractmethod
    def _attach(self, model: nn.Module, module: nn.Module) -> None:
        """Take the calls; TargetError if another party has them."""

    @abstractmethod
    def _detach(self, module: nn.Module) -> None:
        """Give the calls back, if they still come here."""

    @abstractmethod
    def _record(self, module: nn.Module, leaves: list[Any], signature: Signature, pool: Pool) -> Any:
        """A recording that is not in the pool yet."""

    def activate(
        self,
        model: nn.Module,
        *,
        policy: Policy | None = None,
        accumulation: AccumulationTable | None = None,
        parts: Parts | None = None,
    ) -> None:
        """Take the target's calls. Nothing is recorded before the first training call.

        Raises TargetError if the model has no such target, or it is compiled or captured already.
        """
        if self._module is not None:
            raise TargetError(f'the region {self.name} is active', 'release it first')
        module = find(model, self.target)
        self._policy = policy or Policy()
        self._parts = parts or Parts()
        self._eager_windows = (accumulation or AccumulationTable()).row(self.task, self.name).route == 'eager'
        self._pool: Pool | None = None
        self._device = torch.device('cpu')
        self._on_cuda = False
        self._guards: Guards | None = None
        self._failed: list[tuple[Signature, str]] = []
        self._stopped = ''
        self._stale = ''
        self._num_fruitless = self._num_moves = 0
        self._recorded: dict[int, Recorded] = {}  # by the id of the recording, those that are not retired
        self._num_bytes_left = 0  # in the pool's memory, by those that are
        self._candidate: Signature | None = None
        self.routes = Routes(self.name)
        self._attach(model, module)
        self._module = module

    def release(self) -> None:
        """Free the recordings and leave the model as if it had never been captured; a second call does nothing."""
        module, self._module = self._module, None
        if module is None:
            return
        self._detach(module)
        if self._pool is not None:
            self._pool.release()
        self._pool = self._guards = None

    def invalidate(self, reason: str) -> None:
        """Retire every recording before the next call: something that no guard sees has changed."""
        self._stale = reason

    def _serve(self, module: nn.Module, args: Any, kwargs: Any) -> Served | tuple[Reason, str]:
        """The recording for a call, made now if the policies say so; or why the call runs eager."""
        if reason := self._plain_reason(module):
            if reason is Reason.ACCUMULATION and self._has_no_memory(module, args, kwargs):
                return Reason.NO_CUDA, ''  # no row of the table would change that
            return reason, ''
        pool = self._open(module, args, kwargs)
        if pool is not None and pool.held:
            return Reason.HOLD, ''
        if pool is not None:
            if blocked := self._blocked(module):
                return blocked
            pool = self._open(module, args, kwargs)  # a retirement closes it, and the target may have moved
        if pool is None:
            return Reason.NO_CUDA, ''
        leaves, structure = flatten(args, kwargs)
        try:
            signature = signature_of(leaves, structure, self._device)
        except SignatureError as error:
            return Reason.INPUT, error.what
        recording = next((r for r in pool.recordings if r.signature == signature), None)
        if recording is None and (refused := self._refused(pool, signature)):
            return refused
        if recording is None or recording.outgrown:
            try:
                recording = self._capture(module, leaves, signature, pool)
            except CaptureError as error:
                if self._policy.on_error == 'raise':
                    raise
                self._failed.append((signature, error.what))
                return Reason.FAILED, error.what
        self._candidate = None
        self.routes.replays += 1
        return Served(recording, leaves)

    def _make_guards(self, module: nn.Module) -> Guards:
        return self._parts.guards(module)

    def _plain_reason(self, module: nn.Module) -> Reason | None:
        """Why this call cannot be one that the region replays, whatever has been recorded."""
        if is_recording() or (self._on_cuda and torch.cuda.is_current_stream_capturing()):
            return Reason.NESTED
        if reason := self._mode_reason(module):
            return reason
        if torch._C._len_torch_dispatch_stack() or torch.is_anomaly_enabled() or torch._C._get_tracing_state():
            return Reason.WATCHED
        return None

    def _mode_reason(self, module: nn.Module) -> Reason | None:
        """Why the mode of the target, or of torch, is none that the region replays."""
        if not module.training:
            return Reason.EVAL
        if not torch.is_grad_enabled():
            return Reason.NO_GRAD
        return Reason.ACCUMULATION if self._eager_windows and self.micro_batches > 1 else None

    def _blocked(self, module: nn.Module) -> tuple[Reason, str] | None:
        """Check the guards; retire what they refuse. Returns why the call must be eager, or None."""
        if self._stopped:
            return Reason.CHANGED, self._stopped
        change = self._stale or (self._guards.changed() if self._guards else None)
        if change:
            self._retire(change)
            if self._stopped:
                return Reason.CHANGED, self._stopped
        if self._guards is None:
            self._guards = self._make_guards(module)
        hook = self._guards.hooked()
        if hook and self._policy.on_change == 'raise':
            raise GuardError(f'{self.name}: {hook} would not run in a replay', "remove it, or on_change='eager'")
        return (Reason.HOOK, hook) if hook else None

    def _retire(self, change: str) -> None:
        self._stale = ''
        self._guards = None
        self._failed.clear()
        pool, self._pool = self._pool, None
        if pool is None or not pool.recordings:
            if pool is not None:
                pool.release()
            return
        fruitless = all(recording.num_replays <= 1 for recording in pool.recordings)
        self._num_fruitless = self._num_fruitless + 1 if fruitless else 0
        held = pool.memory.num_bytes()
        pool.release()
        self._forget(list(self._recorded), num_bytes=held - pool.memory.num_bytes())
        self.routes.retired[change] += 1
        logger.info('%s: recordings retired: %s', self.name, change)
        if self._policy.on_change == 'raise':
            raise GuardError(f'{self.name}: {change} after capture', "set on_change='recapture', or do not change it")
        if self._policy.on_change == 'eager':
            self._stopped = change
        elif self._num_fruitless >= MAX_FRUITLESS:
            self._stopped = f'{change}, {MAX_FRUITLESS} times in a row right after a capture'

    def _open(self, module: nn.Module, args: Any, kwargs: Any) -> Pool | None:
        """The pool, made on first use where the target is by then."""
        if self._pool is None:
            self._device = _device_of(module, args, kwargs)
            memory = self._parts.memory(self._device)
            self._on_cuda = self._device.type == 'cuda'
            if memory is not None:
                self._pool = self._parts.pool(memory, self._parts.ownership(self._policy.gradients))
        return self._pool

    def _has_no_memory(self, module: nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether no graph could lie where the target is; nothing is made on a card to find out."""
        device = _device_of(module, args, kwargs)
        return self._pool is None and device.type != 'cuda' and self._parts.memory(device) is None

    def _refused(self, pool: Pool, signature: Signature) -> tuple[Reason, str] | None:
        """Why a signature without recording is not captured now; None if it is."""
        for failed, what in self._failed:
            if failed == signature:
                return Reason.FAILED, what
        if not pool.recordings:
            return None
        if self._policy.on_new_signature == 'raise':
            raise SignatureError(
                f'{self.name} was called with {signature.describe()}, which has no recording',
                "drop the partial batch, or set on_new_signature='eager' or 'capture'",
            )
        if self._policy.on_new_signature == 'capture':
            full = len(pool.recordings) >= self._policy.max_signatures
            return (Reason.TOO_MANY, signature.describe()) if full else None
        # The first call may have been the odd one (a run that begins with a partial batch): a recording that served
        # that call only gives way to a signature seen twice in a row.
        odd = len(pool.recordings) == 1 and pool.recordings[0].num_replays <= 1
        if odd and self._candidate == signature and self._num_moves < self._policy.max_signatures:
            self._num_moves += 1
            self._drop(pool.recordings[0], pool, 'the first call was an odd one')
            return None
        self._candidate = signature
        return Reason.NEW_SIGNATURE, signature.describe()

    def _capture(self, module: nn.Module, leaves: list[Any], signature: Signature, pool: Pool) -> Any:
        started = time.perf_counter()
        with capturing(module, signature, name=self.name, parts=self._parts, device=self._device) as check:
            recording = self._record(module, leaves, signature, pool)
            before = pool.memory.num_bytes()
            make(recording, check)
        pool.add(recording)
        self.routes.captures += 1
        self._note(recording, signature.describe(), pool, before=before, started=started)
        logger.info('%s: captured %s', self.name, signature.describe())
        return recording

    def _note(self, made: object, what: str, pool: Pool, *, before: int, started: float) -> None:
        """Report a recording that was made."""
        seconds = time.perf_counter() - started
        self.routes.capture_seconds += seconds
        left, self._num_bytes_left = min(self._num_bytes_left, before), 0
        entry = Recorded(what, pool.memory.num_bytes() - before + left, seconds)
        self._recorded[id(made)] = entry
        self.routes.recordings.append(entry)

    def _drop(self, recording: Any, pool: Pool, reason: str) -> None:
        """Retire one recording of several, or for another one."""
        held = pool.memory.num_bytes()
        pool.remove(recording)
        self._forget([id(recording)], num_bytes=held - pool.memory.num_bytes())
        self.routes.retired[reason] += 1

    def _forget(self, keys: Sequence[int], *, num_bytes: int) -> None:
        """Report that recordings are retired, which gave ``num_bytes`` back: the rest is room for the next one."""
        entries = [self._recorded.pop(key) for key in keys]
        for entry in entries:
            entry.retired = True
        self._num_bytes_left += max(sum(entry.num_bytes for entry in entries) - num_bytes, 0)

    def _count_eager(self, reason: Reason, detail: str) -> None:
        if self.routes.count_eager(reason, detail):
            level = logging.INFO if reason.expected else logging.WARNING
            logger.log(level, '%s runs eager: %s%s', self.name, reason.text, f' ({detail})' if detail else '')


def _device_of(module: nn.Module, args: Any, kwargs: Any) -> torch.device:
    """Where the target is, or its inputs if it owns nothing."""
    tensors = chain(module.parameters(), module.buffers(), tensors_in((args, kwargs)))
    return next((tensor.device for tensor in tensors), torch.device('cpu'))
