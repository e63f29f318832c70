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
        columns: Figures per class, by heading; integers are counts, ``boxes`` among them, the others in 0..1.
        summary: Figures over all classes.
        num_images: How many images were evaluated.

    Returns:
        Lines of at most 120 characters.
    """
    table = Table('class', box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in columns:
        table.add_column(heading, justify='right')
    for label, name in enumerate(classes):
        table.add_row(name, *(_figure(values[label]) for values in columns.values()))
    table.add_section()
    means = [summary.get(f'm{heading}', summary.get(heading, math.nan)) for heading in list(columns)[2:]]
    table.add_row('all', str(num_images), str(int(columns['boxes'].sum())), *map(_figure, means))

    stream = io.StringIO()
    console = Console(file=stream, width=120, no_color=True, highlight=False, markup=False)
    console.print(table)
    others = ('mAP_s', 'mAP_m', 'mAP_l', 'recall50')
    console.print('   '.join(f'{key} {_figure(summary[key])}' for key in others))
    return '\n'.join(['', *(line.rstrip() for line in stream.getvalue().strip().splitlines())])


def _figure(value: float) -> str:
    if math.isnan(value):
        return '-'
    return str(value) if isinstance(value, int | np.integer) else f'{value:.3f}'
