"""Figures by matplotlib's object interface: no window, no display, and no state that another figure could see."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

DPI = 100
ROW = 0.24  # inches of a line of text beside a bar
MOST_ROWS = 400  # beyond them a picture is no longer read, and Agg ends at 65,536 pixels


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, ``DPI`` pixels each, with a canvas of its own."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout='constrained')
    FigureCanvasAgg(figure)
    return figure


def to_image(figure: Figure) -> np.ndarray:
    """The figure as uint8 (H, W, 3), RGB, owned by the caller."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg), 'new_figure makes the canvas'
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3].copy()


def plain(text: str) -> str:
    """``text`` as matplotlib shows it letter by letter: no formulas between dollar signs, nothing that cannot print."""
    return ''.join(sign if sign.isprintable() else '?' for sign in text).replace('$', r'\$')


def draw_bars(axes: Axes, names: Sequence[str], series: Mapping[str, Sequence[float]], *, digits: int = 3) -> None:
    """Horizontal bars, a group per name with a bar per series, the first name on top; NaN draws none.

    Args:
        axes: Where to draw.
        names: Of the groups.
        series: Values by the name of the series, as many as there are names.
        digits: Behind the point, in the number beside a bar.
    """
    places = np.arange(len(names))
    thickness = 0.8 / max(len(series), 1)
    for i, (label, values) in enumerate(series.items()):
        lengths = np.nan_to_num(np.asarray(values, dtype=np.float64))
        bars = axes.barh(places + (i - (len(series) - 1) / 2) * thickness, lengths, thickness, label=plain(label))
        texts = ['-' if np.isnan(value) else f'{value:.{digits}f}' for value in np.asarray(values, dtype=np.float64)]
        axes.bar_label(bars, texts, padding=2, fontsize=7)
    axes.set_yticks(places, [plain(name) for name in names], fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.12)
    if len(series) > 1:
        axes.legend(fontsize=8, loc='upper left', bbox_to_anchor=(1, 1))  # no bar ends there


def bar_chart(
    names: Sequence[str], series: Mapping[str, Sequence[float]], *, title: str, label: str, digits: int = 3
) -> Figure:
    """A figure of bars, as tall as its names need; past ``MOST_ROWS`` names the title says how many are left out.

    Args:
        names: Of the groups, from top to bottom.
        series: Values by the name of the series.
        title: Above the bars.
        label: What the length of a bar means.
        digits: Behind the point, in the number beside a bar.

    Returns:
        A figure that ``to_image`` makes a picture of.
    """
    if len(names) > MOST_ROWS:
        title = f'{title} (first {MOST_ROWS} of {len(names)})'
        names = names[:MOST_ROWS]
        series = {name: values[:MOST_ROWS] for name, values in series.items()}
    figure = new_figure(8, 1.2 + ROW * max(len(names) * max(len(series), 1), 3))
    axes = figure.subplots()
    draw_bars(axes, names, series, digits=digits)
    axes.set_title(plain(title), fontsize=10)
    axes.set_xlabel(label)
    if digits == 0:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
