"""Figures of an evaluation: precision over recall, average precision per class, and what objects were taken for.

Array axes: K classes, R recall points.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from lucid.structures.evaluation import EvaluationReport
from lucid.visualization.figures import bar_chart, new_figure, plain

NAMED = 20
"""Classes up to which a curve has its own colour and name."""
WRITTEN = 30
"""Rows up to which a confusion matrix has numbers in its cells."""


def ap_figure(reports: Sequence[EvaluationReport]) -> Figure:
    """Bars per class: AP and AP50 of one path, or the AP of several beside each other."""
    (first, *others) = reports
    if others:
        series = {f'AP {report.path}': report.ap_K.tolist() for report in reports}
    else:
        series = {'AP': first.ap_K.tolist(), 'AP50': first.ap50_K.tolist()}
    return bar_chart(first.classes, series, title='average precision per class', label='AP')


def precision_recall_figure(reports: Sequence[EvaluationReport]) -> Figure:
    """A panel per path: precision over recall at overlap 0.5 of each class, and the mean over classes in black."""
    figure = new_figure(6.5 * len(reports), 5)
    for axes, report in zip(figure.subplots(1, len(reports), squeeze=False)[0], reports, strict=True):
        known = [label for label, values in enumerate(report.ap50_K) if not np.isnan(values)]
        for label in known:
            (line,) = axes.plot(report.recall_R, report.precision_KR[label], linewidth=1)
            if len(known) <= NAMED:
                line.set_label(plain(f'{report.classes[label]} {report.ap50_K[label]:.3f}'))
            else:
                line.set(color='grey', alpha=0.4)
        if known:
            mean_R = report.precision_KR[known].mean(axis=0)
            mean = f'all {report.ap50_K[known].mean():.3f}'
            axes.plot(report.recall_R, mean_R, color='black', linewidth=2.2, label=mean)
            axes.legend(fontsize=8, title='AP50')
        title = f'{report.path}: best F1 {report.f1:.3f} at score {report.confidence:.3f}'
        axes.set_title(plain(title), fontsize=10)
        axes.set(xlabel='recall', ylabel=f'precision, {report.overlap} 0.5', xlim=(0, 1), ylim=(0, 1.02))
        axes.grid(alpha=0.3)
    return figure


def confusion_figure(report: EvaluationReport, *, normalised: bool) -> Figure:
    """The confusion matrix: rows what an object is, columns what it was taken for; the last of both is background.

    A cell's colour is its share of the row, in both figures; its number is that share, or the count.
    """
    counts = report.confusion
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [plain(name) for name in (*report.classes, 'background')]
    side = min(3.5 + (0.42 if len(names) <= WRITTEN else 0.2) * len(names), 26)
    figure = new_figure(side + 1, side)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, shrink=0.8, fraction=0.04, label='share of the row')
    places, size = np.arange(len(names)), 8 if len(names) <= WRITTEN else 7
    axes.set_xticks(places, names, rotation=90, fontsize=size)
    axes.set_yticks(places, names, fontsize=size)
    axes.set(xlabel='detected as', ylabel='truth')
    score, iou = report.confusion_rule
    numbers = 'shares of a row' if normalised else 'counts'
    title = f'{report.path}: score ≥ {score:g}, {report.overlap} ≥ {iou:g}, {numbers}'
    axes.set_title(plain(title), fontsize=10)
    if len(names) <= WRITTEN:
        for row, column in np.argwhere(counts > 0):
            text = f'{shares[row, column]:.2f}' if normalised else str(counts[row, column])
            color = 'white' if shares[row, column] > 0.5 else 'black'
            axes.text(column, row, text, ha='center', va='center', fontsize=7, color=color)
    return figure
