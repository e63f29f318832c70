"""Charts of a data set: boxes per class, and how boxes lie in the images of one split.

Shape suffixes: N boxes, I images.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lucid.visualization.figures import bar_chart, new_figure, plain

BINS = 48
SMALL, LARGE = 32, 96
"""Sides of the squares that part small, medium and large boxes, pixels."""


def class_figure(classes: Sequence[str], boxes: Mapping[str, Sequence[int]]) -> Figure:
    """Boxes per class, a bar for each split.

    Args:
        classes: Names by label.
        boxes: Counts by label, by name of the split.

    Returns:
        As tall as the classes need.
    """
    return bar_chart(classes, boxes, title='boxes per class', label='boxes', digits=0)


def box_figure(
    sides_N2: np.ndarray,
    centres_N2: np.ndarray,
    per_image_I: np.ndarray,
    *,
    title: str,
    image_size: tuple[int, int],
    capacity: Sequence[int] = (),
) -> Figure:
    """Sizes, places, proportions and numbers of the boxes of one split.

    Args:
        sides_N2: Widths and heights after the letterbox, pixels of the network input, above 0.
        centres_N2: Centres, x and y, as fractions of their image.
        per_image_I: Boxes of each image.
        title: Above the four charts.
        image_size: Height and width of the network input, pixels.
        capacity: Numbers of boxes that targets are padded to; those in sight are marked.

    Returns:
        Four charts.
    """
    figure = new_figure(12, 9)
    figure.suptitle(plain(title), fontsize=11)
    axes = figure.subplots(2, 2)
    _sizes(axes[0, 0], sides_N2, image_size)
    _places(axes[0, 1], centres_N2)
    _aspects(axes[1, 0], sides_N2)
    _numbers(axes[1, 1], per_image_I, capacity)
    for empty in axes.flat[:3] if not len(sides_N2) else ():
        empty.text(0.5, 0.5, 'no boxes', transform=empty.transAxes, ha='center')
    return figure


def _sizes(axes: Axes, sides_N2: np.ndarray, image_size: tuple[int, int]) -> None:
    end = 1.1 * max(*image_size, sides_N2.max(initial=1))
    start = max(min(1.0, sides_N2.min(initial=1.0)), 1e-2)
    edges = np.geomspace(start, end, BINS + 1)
    if len(sides_N2):
        counts = axes.hist2d(sides_N2[:, 0], sides_N2[:, 1], bins=[edges, edges], norm=LogNorm(), cmap='viridis')[3]
        axes.figure.colorbar(counts, ax=axes, label='boxes')
    axes.set(xscale='log', yscale='log', xlim=(start, end), ylim=(start, end))
    line = np.geomspace(start, end, 100)
    seen = [side for side in (SMALL, LARGE) if side <= end]
    for side in seen:
        axes.plot(line, side**2 / line, color='tab:red', linewidth=0.8, linestyle='--')
    height, width = image_size
    dashed = (
        f' (dashed: area{"s" if len(seen) > 1 else ""} of {" and ".join(f"{side}²" for side in seen)})' if seen else ''
    )
    axes.set_title(f'size in the {width}x{height} input{dashed}', fontsize=9)
    axes.set_xlabel('width, pixels')
    axes.set_ylabel('height, pixels')
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:g}'))


def _places(axes: Axes, centres_N2: np.ndarray) -> None:
    edges = np.linspace(0, 1, BINS + 1)
    if len(centres_N2):
        counts = axes.hist2d(centres_N2[:, 0], centres_N2[:, 1], bins=[edges, edges], cmap='viridis')[3]
        axes.figure.colorbar(counts, ax=axes, label='boxes')
    axes.set(xlim=(0, 1), ylim=(1, 0))
    axes.set_title('centres, as fractions of the image', fontsize=9)


def _aspects(axes: Axes, sides_N2: np.ndarray) -> None:
    ratios_N = sides_N2[:, 0] / sides_N2[:, 1]
    end = max(10.0, ratios_N.max(initial=1), 1 / ratios_N.min(initial=1))
    axes.hist(ratios_N, bins=np.geomspace(1 / end, end, BINS + 1).tolist(), color='tab:blue')
    axes.axvline(1, color='tab:red', linewidth=0.8, linestyle='--')
    axes.set_xscale('log')
    axes.set_title('width divided by height', fontsize=9)
    axes.set_ylabel('boxes')
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:g}'))


def _numbers(axes: Axes, per_image_I: np.ndarray, capacity: Sequence[int]) -> None:
    most = int(per_image_I.max(initial=0))
    axes.hist(per_image_I, bins=np.linspace(-0.5, most + 0.5, min(most + 2, 101)).tolist(), color='tab:blue')
    seen = [step for step in capacity if step <= 1.5 * most]
    for step in seen:
        axes.axvline(step, color='tab:red', linewidth=0.8, linestyle='--')
    axes.set_title(f'boxes per image{" (dashed: what targets are padded to)" if seen else ""}', fontsize=9)
    axes.set_xlim(-0.5 if not per_image_I.all() else 0, max([most + 0.5, *(1.05 * step for step in seen)]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel('images')
