"""Curves of a training run: loss, learning rate and the metrics of its validations."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lucid.visualization.figures import new_figure, plain

Rows = Sequence[Mapping[str, float]]
"""Each has ``epoch``, with its fraction, and values by name; not all rows need the same names."""


def curves_figure(training: Rows, validations: Rows) -> Figure:
    """Three panels over the epochs: every ``loss*`` of training, its ``lr``, and all metrics of the validations.

    Args:
        training: What was logged, in order.
        validations: Metrics, in order; the first of their names gets a mark where it is best.

    Returns:
        A figure in which a line is labelled by its name.
    """
    figure = new_figure(15, 4.2)
    losses, rates, metrics = figure.subplots(1, 3)
    names = dict.fromkeys(name for row in training for name in row)
    for name in sorted((name for name in names if name.startswith('loss')), key=lambda name: (name != 'loss', name)):
        _line(losses, training, name, linewidth=1.8 if name == 'loss' else 1.0)
    _line(rates, training, 'lr', linewidth=1.5)
    keys = [name for name in dict.fromkeys(name for row in validations for name in row) if name != 'epoch']
    for key in keys:
        _line(metrics, validations, key, linewidth=1.5, marker='o', markersize=3)
    drawn = [float(value) for line in metrics.lines for value in np.asarray(line.get_ydata()) if np.isfinite(value)]
    if drawn and min(drawn) >= 0:
        metrics.set_ylim(bottom=0)  # the margin below would be of values that there are not
    if keys:
        _mark_best(metrics, validations, keys[0])
    for axes, title in ((losses, 'loss'), (rates, 'learning rate'), (metrics, 'validation')):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel('epoch')
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.3)
        if len(axes.lines) > 1:
            axes.legend(fontsize=8)
        elif not axes.lines:
            axes.text(0.5, 0.5, 'nothing logged yet', ha='center', transform=axes.transAxes, color='grey')
    return figure


def _line(axes: Axes, rows: Rows, name: str, *, linewidth: float, marker: str = '', markersize: float = 3) -> None:
    points = np.array([(row['epoch'], row[name]) for row in rows if name in row], np.float64).reshape(-1, 2)
    if len(points):
        # A single point makes no line.
        marker = marker or ('o' if len(points) == 1 else '')
        axes.plot(*points.T, label=plain(name), linewidth=linewidth, marker=marker, markersize=markersize)


def _mark_best(axes: Axes, rows: Rows, name: str) -> None:
    points = [(row[name], row['epoch']) for row in rows if np.isfinite(row.get(name, np.nan))]
    if points:
        value, epoch = max(points, key=lambda point: point[0])
        axes.axvline(epoch, color='grey', linestyle=':', label=plain(f'best {name}: {value:.3f} at {epoch:g}'))
