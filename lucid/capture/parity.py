"""Parity: whether two trainings compute the same, and the first place where they do not."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path

Values = Mapping[str, Any]


class Difference(NamedTuple):
    """The first difference: at which step, under which key, and what it is."""

    step: int
    key: str
    what: str

    def __str__(self) -> str:
        return f'step {self.step}: {self.key}: {self.what}'


def first_difference(reference: Values, candidate: Values, *, step: int = 0) -> Difference | None:
    """Compare two flat or nested mappings of values in the order of ``reference``.

    Tensors are equal if dtype, shape and every element are, with NaN equal to NaN and ``None`` equal to ``None`` only.
    """
    ours, theirs = _flat(reference), _flat(candidate)
    alike = _alike(ours, theirs)
    for key, a in ours.items():
        if key in alike:
            continue
        if key not in theirs:
            return Difference(step, key, 'missing')
        if what := _differs(a, theirs[key]):
            return Difference(step, key, what)
    extra = next((key for key in theirs if key not in ours), None)
    return Difference(step, extra, 'only in the candidate') if extra is not None else None


def run_lockstep(
    reference: Callable[[int], Values], candidate: Callable[[int], Values], num_steps: int
) -> Difference | None:
    """Run both step by step, comparing what they return; the first difference, or None.

    The generators are shared by the process: each side must draw from the state that it left. This function keeps one
    state per side.
    """
    states = [_generators(), _generators()]
    for step in range(num_steps):
        values = []
        for side, run in enumerate((reference, candidate)):
            _set_generators(states[side])
            values.append({**run(step)})
            states[side] = _generators()
        for side, state in enumerate(states):
            values[side] |= {f'generator.{name}': value for name, value in state.items()}
        if difference := first_difference(values[0], values[1], step=step):
            return difference
    return None


def training_values(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, copied: bool = True
) -> dict[str, Any]:
    """Every parameter, buffer, gradient and optimizer state; their own memory unless they are copied."""
    values: dict[str, Any] = {f'grad.{n}': p.grad for n, p in model.named_parameters()}
    values |= {f'parameter.{n}': p for n, p in model.named_parameters()}
    values |= {f'buffer.{n}': b for n, b in model.named_buffers()}
    if optimizer is not None:
        values |= {f'optimizer.{key}': value for key, value in _flat(optimizer.state_dict()).items()}
    return {key: _copy(value) for key, value in values.items()} if copied else values


def _flat(tree: Any) -> dict[str, Any]:
    leaves, _ = tree_flatten_with_path(tree, is_leaf=lambda node: node is None)
    return {'.'.join(_names(path)): leaf for path, leaf in leaves}


def _names(path: Iterable[Any]) -> Iterator[str]:
    for key in path:
        yield str(getattr(key, 'key', getattr(key, 'idx', getattr(key, 'name', key))))


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _differs(a: Any, b: Any) -> str | None:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            return f'{_kind(a)} against {_kind(b)}'
        return None if a == b else f'{a!r} against {b!r}'
    if a.shape != b.shape or a.dtype != b.dtype:
        return f'{_kind(a)} against {_kind(b)}'
    if torch.equal(a, b):
        return None
    wrong = ~((a == b) | ((a != a) & (b != b)))
    if not bool(wrong.any()):
        return None
    error = (a.double() - b.double())[wrong].abs().max()
    return f'{int(wrong.sum())} of {a.numel()} elements, by up to {float(error):.3g}'


def _alike(ours: Values, theirs: Values) -> frozenset[str]:
    """Keys of tensors that are equal for sure, found with one read of the device for all of a kind.

    Two finite floats are equal exactly if their difference is zero; NaN and infinity are left to a closer look.
    """
    kinds: dict[tuple[Any, ...], list[str]] = {}
    for key, a in ours.items():
        b = theirs.get(key)
        if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.is_floating_point() and a.numel()):
            continue
        if (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape):
            kinds.setdefault((a.dtype, a.device), []).append(key)
    alike: list[str] = []
    for keys in kinds.values():
        with torch.no_grad():
            apart = torch._foreach_sub([ours[key] for key in keys], [theirs[key] for key in keys])
            largest = torch.stack(torch._foreach_norm(apart, float('inf'))).tolist()
        alike += [key for key, value in zip(keys, largest, strict=True) if value == 0]
    return frozenset(alike)


def _kind(value: Any) -> str:
    return f'{value.dtype} {tuple(value.shape)}' if isinstance(value, Tensor) else repr(value)


def _generators() -> dict[str, Tensor]:
    states = {'cpu': torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states['cuda'] = torch.cuda.get_rng_state()
    return states


def _set_generators(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states['cpu'])
    if 'cuda' in states:
        torch.cuda.set_rng_state(states['cuda'])
