"""The base of lucid's optimizers: what changes lives in 0-d device tensors, what runs is device arithmetic."""

import difflib
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from lucid.engine.optimizers.selection import as_bits, clear_if, undone_if

Hyper = dict[str, Tensor]

# torch's own, of which it adds the last to whatever is loaded; and mmengine's paramwise_cfg.
_FOREIGN_KEYS = {'params', 'param_names', 'differentiable', 'lr_mult', 'decay_mult'}


class DeviceOptimizer(Optimizer):
    """An optimizer whose update reads everything that changes from 0-d device tensors.

    ``param_groups`` keep Python floats, so that schedulers, logs and checkpoints see nothing unusual. ``refresh``
    copies them to float64 tensors on the parameters' device, which keep their addresses for the optimizer's life;
    ``update`` is device arithmetic only: no host read, no branch on a value, no branch that only the first step takes.
    So a recording of ``update`` replays what eager computes. State is allocated when parameters are added, and
    ``load_state_dict`` copies into it, so that a recording survives a resume.

    A parameter whose ``.grad`` is None is left out, as in ``torch.optim``; which ones are is decided in Python at each
    call, hence fixed in a recording. Move the model to its device and memory format before building its optimizer.

    Subclasses give ``limits``, ``hyper_values``, ``init_state`` and ``update_group``.
    """

    limits: ClassVar[dict[str, tuple[float, float]]]  # half-open range of each hyper-parameter
    neutral: ClassVar[dict[str, float] | None] = None  # with these and zero gradients, an update changes nothing
    _step_supports_amp_scaling = True  # torch's GradScaler hands over found_inf instead of reading it on the host
    grad_scale: Tensor | None  # both are set by torch's GradScaler around step(), and deleted after it
    found_inf: Tensor | None

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._hyper: list[Hyper] = []
        super().__init__(params, defaults)

    def hyper_values(self, group: dict[str, Any]) -> dict[str, float]:
        """Return the Python floats of ``group`` that live on the device, by the name ``update_group`` uses."""
        raise NotImplementedError

    def init_state(self, group: dict[str, Any]) -> None:
        """Allocate the state of ``group``'s parameters, such that the first update needs no branch."""
        raise NotImplementedError

    def update_group(self, group: dict[str, Any], hyper: Hyper, params: list[Tensor]) -> None:
        """Update ``params``, those of ``group`` that have a gradient, in place; gradients stay as they are.

        Args:
            group: One of ``param_groups``, for options that are no numbers.
            hyper: Its device scalars.
            params: Some of its parameters.
        """
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, check it, and allocate its state and device scalars.

        Args:
            param_group: ``params`` and any of the optimizer's options.

        Raises:
            ValueError: An option is unknown or out of range, or the parameters are on several devices.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        self.check(group)
        self.init_state(group)
        self._allocate(group)

    def _allocate(self, group: dict[str, Any]) -> None:
        device = group['params'][0].device
        hyper = {
            key: torch.full((), value, dtype=torch.float64, device=device)
            for key, value in self.hyper_values(group).items()
        }
        self._hyper.append(hyper)

    def _knows(self, key: str) -> bool:
        return key in self.defaults or key in _FOREIGN_KEYS or key.startswith('initial_')

    def check(self, group: dict[str, Any]) -> None:
        """Refuse options that no run can mean.

        Args:
            group: One of ``param_groups``.

        Raises:
            ValueError: An option is unknown or out of range, or the parameters are on several devices.
        """
        name, known = type(self).__name__, sorted(self.defaults)
        if not group['params']:
            raise ValueError(f'{name}: a parameter group has no parameters; leave it out')
        for key in group:
            if not self._knows(key):
                near = difflib.get_close_matches(key, known, n=1)
                hint = f'write {near[0]!r}' if near else f'it knows {", ".join(known)}'
                raise ValueError(f'{name}: unknown option {key!r} of a parameter group; {hint}')
        for key, value in self.hyper_values(group).items():
            low, high = self.limits[key]
            if not isinstance(value, int | float) or not math.isfinite(value) or not low <= value < high:
                raise ValueError(f'{name}: {key}={value!r}; give a number in [{low:g}, {high:g})')
        if len(devices := {str(param.device) for param in group['params']}) > 1:
            raise ValueError(f'{name}: parameters are on {sorted(devices)}; move the model to one device first')

    def refresh(self) -> None:
        """Fill the device scalars from ``param_groups``, without a host read. Call it before each ``update``."""
        for group, hyper in zip(self.param_groups, self._hyper, strict=True):
            for key, value in self.hyper_values(group).items():
                hyper[key].fill_(value)  # fill_, not rebind: a recording holds this address

    @torch.no_grad()
    def update(self, found_inf: Tensor | None = None) -> None:
        """Update all parameters that have a gradient, from the scalars of the last ``refresh``.

        Args:
            found_inf: 0-d, non-zero where this update must not be. Then parameters and state, step counters included,
                keep their values whatever the gradients hold, and the gradients may be cleared. An optimizer that
                knows ``neutral`` options computes with those, which costs one pass over the gradients, and a zero may
                lose its sign; else what it writes is undone bit for bit. None: the update is made in any case.
        """
        active = [
            (group, hyper, params)
            for group, hyper in zip(self.param_groups, self._hyper, strict=True)
            if (params := [param for param in group['params'] if param.grad is not None])
        ]
        if found_inf is None:
            for group, hyper, params in active:
                self.update_group(group, hyper, params)
            return
        failed = found_inf != 0
        if self.neutral is not None:
            clear_if(failed, as_bits(gradients([param for _, _, params in active for param in params])))
            for group, hyper, params in active:
                held = {key: hyper[key].masked_fill(failed, value) for key, value in self.neutral.items()}
                self.update_group(group, {**hyper, **held}, params)
            return
        touched = [param for _, _, params in active for param in params]
        touched += {id(t): t for param in touched for t in self.state[param].values()}.values()  # some are shared
        with undone_if(failed, as_bits(touched)):
            for group, hyper, params in active:
                self.update_group(group, hyper, params)

    def baked_options(self, group: dict[str, Any]) -> tuple[Hashable, ...]:
        """Return the options of ``group`` that ``update_group`` reads in Python, not from a device scalar."""
        return tuple(group[key] for key in self.defaults if key not in self.limits)

    def baked(self) -> tuple[Hashable, ...]:
        """Return, per group, the ids of its parameters and its ``baked_options``: what a recording of ``update`` keeps.

        A recording is of this optimizer's ``update`` as long as they are equal and the parameters with a gradient are
        the same ones; what ``refresh`` fills may change.
        """
        return tuple((tuple(map(id, group['params'])), self.baked_options(group)) for group in self.param_groups)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Refresh the scalars and update; works under ``torch.amp.GradScaler.step`` too, without a host read.

        Args:
            closure: Computes the loss again, with gradients, before the update.

        Returns:
            What ``closure`` returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.refresh()
        if (scale := getattr(self, 'grad_scale', None)) is not None:  # the scaler left the gradients scaled
            torch._foreach_div_(gradients([p for group in self.param_groups for p in group['params']]), scale)
        self.update(getattr(self, 'found_inf', None))
        return loss

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into the existing state tensors, whose addresses stay; options come from the state too.

        State that ``state_dict`` lacks for a parameter is set to zero, as before the first step.

        Args:
            state_dict: What ``state_dict`` returned; not changed.

        Raises:
            ValueError: It is another optimizer's, or of other parameters.
        """
        name = type(self).__name__
        for group in state_dict['param_groups']:
            if strange := sorted(key for key in group if not self._knows(key)):
                raise ValueError(
                    f'the optimizer state has {strange}, which {name} does not know: another optimizer wrote it; '
                    'resume with that optimizer, or load the weights only'
                )
        own = {param: dict(state) for param, state in self.state.items()}
        super().load_state_dict(state_dict)
        loaded, self.state = self.state, defaultdict(dict, own)
        for param, state in own.items():
            for key, tensor in state.items():
                value = loaded[param].get(key)
                if value is None:
                    tensor.zero_()
                elif value.shape != tensor.shape:
                    raise ValueError(
                        f'{name}: state {key!r} has shape {tuple(value.shape)} where {tuple(tensor.shape)} is needed: '
                        'the checkpoint is of another model; load its weights only'
                    )
                else:
                    tensor.copy_(value)  # copy_, not rebind: a recording holds this address
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)
        self.refresh()

    def __setstate__(self, state: dict[str, Any]) -> None:
        known = set(state.get('defaults', self.__dict__.get('defaults', ())))
        super().__setstate__(state)
        self.defaults = {key: value for key, value in self.defaults.items() if key in known}
        if '_hyper' not in self.__dict__:  # copied or unpickled: torch keeps groups, state and defaults only
            self._hyper = []
            for group in self.param_groups:
                self._allocate(group)


def gradients(params: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients that there are."""
    return [param.grad for param in params if param.grad is not None]


def cast(hyper: Hyper, params: Sequence[Tensor]) -> Hyper:
    """Return ``hyper`` in the precision of the arithmetic on ``params``: at least float32."""
    # One dtype for list and scalar keeps _foreach_* on CUDA in its few fused kernels.
    dtype = torch.promote_types(params[0].dtype, torch.float32)
    return {key: value.to(dtype) for key, value in hyper.items()}
