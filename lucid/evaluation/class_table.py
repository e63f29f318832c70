"""The table of a box evaluation: a line per class, then all classes together."""

import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table


def class_table(
    classes: Sequence[str], columns: Mapping[str, np.ndarray], summary: Mapping[str, float], *, num_images: int
) -> str:
    """Text of the table, begun by a line break, for a log file too: no colours. A dash stands for no ground truth.

    Args:
        classes: Names, by label.
        columns: Figures per class, by heading; integers are counts, ``boxes`` among them, the others in 0..1. A heading
            that belongs to a path begins with it and a slash.
        summary: Figures over all classes, by key; those of a path begin with it and a slash too.
        num_images: How many images were evaluated.

    Returns:
        Lines of at most 120 characters.
    """
    table = Table('class', box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in columns:
        table.add_column(heading.replace('/', ' '), justify='right')
    for label, name in enumerate(classes):
        table.add_row(name, *(_figure(values[label]) for values in columns.values()))
    table.add_section()
    means = [_mean_of(heading, summary) for heading in list(columns)[2:]]
    table.add_row('all', str(num_images), str(int(columns['boxes'].sum())), *map(_figure, means))

    stream = io.StringIO()
    console = Console(file=stream, width=120, no_color=True, highlight=False, markup=False)
    console.print(table)
    prefixes = dict.fromkeys(key[: -len('recall50')] for key in summary if key.endswith('recall50'))
    for prefix in prefixes:
        keys = [key for key in ('mAP_s', 'mAP_m', 'mAP_l', 'recall50', 'IoU') if f'{prefix}{key}' in summary]
        figures = (f'{key} {_figure(summary[f"{prefix}{key}"])}' for key in keys)
        console.print('   '.join([*([prefix.rstrip('/')] if prefix else []), *figures]))
    return '\n'.join(['', *(line.rstrip() for line in stream.getvalue().strip().splitlines())])


def _mean_of(heading: str, summary: Mapping[str, float]) -> float:
    """``nms/mAP`` for ``nms/AP``; ``AR`` for ``AR``."""
    path, slash, name = heading.rpartition('/')
    return summary.get(f'{path}{slash}m{name}', summary.get(heading, math.nan))


def _figure(value: float) -> str:
    if math.isnan(value):
        return '-'
    return str(value) if isinstance(value, int | np.integer) else f'{value:.3f}'
