"""Starting from the weights of another run, whose classes may be others."""

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from lucid.engine.checkpoint import CheckpointError, Weights, chosen_weights


@dataclass(frozen=True)
class Transfer:
    """What a model takes over from a checkpoint, by the names of its state; nothing is written before ``apply``.

    whole:  tensors that fit in name and shape
    rows:   tensors with a row per class, of which those of shared classes are taken
    fresh:  tensors that stay as they were initialised, with the reason
    unused: tensors of the checkpoint that the model does not have
    shared, new, dropped: names of classes that both know, only the data, only the checkpoint; empty where either knows
            no names, or the model says no ``class_rows``
    """

    model: nn.Module
    whole: dict[str, Tensor]
    rows: dict[str, Tensor]
    fresh: dict[str, str]
    unused: tuple[str, ...]
    shared: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @torch.no_grad()
    def apply(self) -> None:
        """Copy the values into the model, in place."""
        state = self.model.state_dict()
        for name, value in {**self.whole, **self.rows}.items():
            state[name].copy_(value)

    def report(self) -> dict[str, Any]:
        """Return every name and what became of it, as plain types."""
        return {
            'loaded': sorted(self.whole),
            'loaded_rows': sorted(self.rows),
            'fresh': dict(sorted(self.fresh.items())),
            'unused': sorted(self.unused),
            'classes': {'shared': list(self.shared), 'new': list(self.new), 'dropped': list(self.dropped)},
        }

    def loaded_share(self) -> float:
        """Return the share of the parameters' numbers that come from the checkpoint; shared rows count as whole."""
        sizes = {name: parameter.numel() for name, parameter in self.model.named_parameters()}
        return sum(size for name, size in sizes.items() if name not in self.fresh) / max(sum(sizes.values()), 1)

    def table(self) -> str:
        """Return a table for the log: what was loaded by part, and what was not by name."""
        table = Table('part', 'tensors', 'what', box=box.SIMPLE_HEAD, pad_edge=False)
        for part, count in Counter(_part(name) for name in self.whole).items():
            table.add_row(part, str(count), 'loaded')
        for names, what in (
            (self.rows, f'loaded for shared classes: {_listed(self.shared)}'),
            *((names, f'fresh: {reason}') for reason, names in _by_reason(self.fresh).items()),
            (self.unused, 'not used: the model has no such tensor'),
        ):
            for part, count in _grouped(names).items():
                table.add_row(part, str(count), what)
        lines = [f'classes that start fresh: {_listed(self.new)}'] if self.new else []
        if self.dropped:
            lines.append(f'classes of the checkpoint that the data does not have: {_listed(self.dropped)}')
        stream = io.StringIO()
        console = Console(file=stream, width=120, no_color=True, highlight=False, markup=False)
        console.print(table)
        return '\n'.join(['', *(line.rstrip() for line in stream.getvalue().strip('\n').splitlines()), *lines])


def plan_transfer(
    model: nn.Module, checkpoint: Mapping[str, Any], *, classes: Sequence[str] = (), weights: Weights = 'auto'
) -> Transfer:
    """Find out what a model can take over from a checkpoint.

    A tensor whose name and shape fit is taken as it is. One that the model lists among its ``class_rows`` is taken row
    by row, by the names of the classes, where both sides know them; other rows stay as initialised.

    Args:
        model: Initialised, not wrapped; not changed.
        checkpoint: What ``checkpoint.load`` returned.
        classes: Names by label, of the data that the model is trained on.
        weights: Averaged or trained ones, as in ``load_weights``.

    Returns:
        What ``apply`` copies.

    Raises:
        CheckpointError: No weight of the checkpoint fits, or it has no averaged ones though these are asked for.
    """
    theirs, own = chosen_weights(checkpoint, weights), model.state_dict()
    known = tuple(checkpoint.get('classes') or ())
    by_name = bool(known and classes) and len(set(known)) == len(known) and len(set(classes)) == len(classes)
    shared = [name for name in classes if name in known] if by_name else []
    class_rows: frozenset[str] = getattr(model, 'class_rows', frozenset()) if by_name else frozenset()
    there = torch.tensor([known.index(name) for name in shared], dtype=torch.int64)
    here = torch.tensor([list(classes).index(name) for name in shared], dtype=torch.int64)

    whole: dict[str, Tensor] = {}
    rows: dict[str, Tensor] = {}
    fresh: dict[str, str] = {}
    for name, value in own.items():
        given = theirs.get(name)
        if given is None:
            fresh[name] = 'not in the checkpoint'
        elif name in class_rows and tuple(known) != tuple(classes):
            if not shared:
                fresh[name] = 'no class is shared'
            elif given.shape[1:] != value.shape[1:] or (len(given), len(value)) != (len(known), len(classes)):
                fresh[name] = _shapes(given, value)
            else:
                rows[name] = value.detach().cpu().clone()
                rows[name][here] = given[there].to(rows[name].dtype)
        elif given.shape != value.shape:
            fresh[name] = _shapes(given, value)
        else:
            whole[name] = given
    unused = tuple(name for name in theirs if name not in own)
    # Vectors and counters fit by chance: those of four box sides, of as many classes, the steps that BatchNorm counts.
    if not any(value.ndim >= 2 for value in (*whole.values(), *rows.values())):
        raise CheckpointError(_nothing_fits(fresh, unused))
    if not class_rows:
        return Transfer(model, whole, rows, fresh, unused)
    return Transfer(
        model,
        whole,
        rows,
        fresh,
        unused,
        tuple(shared),
        tuple(name for name in classes if name not in known),
        tuple(name for name in known if name not in classes),
    )


def _shapes(there: Tensor, here: Tensor) -> str:
    return f'{tuple(there.shape)} there, {tuple(here.shape)} here'


def _nothing_fits(fresh: Mapping[str, str], unused: Sequence[str]) -> str:
    examples = [f'{name} ({reason})' for name, reason in fresh.items() if name.endswith('weight')]
    examples += [f'{name} (only in the checkpoint)' for name in unused]
    return (
        f'no weight of the checkpoint fits the model: {"; ".join(examples[:3])}. Use a checkpoint of the same model '
        'and scale, or change model.scale to that of the checkpoint'
    )


def _part(name: str) -> str:
    return '.'.join(name.split('.')[:2])


def _grouped(names: Iterable[str]) -> dict[str, int]:
    """Count tensors by the module that holds them, or by their part where these are many."""
    names = list(names)
    modules = Counter(name.rpartition('.')[0] or name for name in names)
    return modules if len(modules) <= 24 else Counter(map(_part, names))


def _by_reason(fresh: Mapping[str, str]) -> dict[str, list[str]]:
    """Names by reason; tensors of other shapes have as many reasons as shapes, told together where these are many."""
    reasons: dict[str, list[str]] = {}
    many = len(set(fresh.values())) > 12
    for name, reason in fresh.items():
        reasons.setdefault('another shape' if many and ' there, ' in reason else reason, []).append(name)
    return reasons


def _listed(names: Sequence[str], most: int = 12) -> str:
    return ', '.join(names[:most]) + (f' and {len(names) - most} more' if len(names) > most else '')
