"""A benchmark as a picture: a bar per variant and window, with its spread, the card's time and the floor."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lucid.apis.benchmark_result import Benchmark, Timing
from lucid.visualization.figures import new_figure, plain

ROW = 0.3  # inches of a bar
COLORS = ('#4c78a8', '#f58518', '#54a24b', '#b279a2')  # by length of the window


def save_plot(found: Benchmark, path: Path) -> None:
    """Draw a benchmark and write it as PNG."""
    benchmark_figure(found).savefig(path, format='png')


def benchmark_figure(found: Benchmark) -> Figure:
    """One panel for whole steps and one for the module alone, milliseconds of a micro-batch to the right.

    A bar is the median, its whisker goes from the fastest round to the slowest, a black mark is what the card was busy
    with, and lines across the panel are the bytes floor and what the loader takes for a micro-batch.

    Args:
        found: With steps, the module alone, or both; a panel without any is left out.

    Returns:
        A figure, for ``savefig``.

    Raises:
        ValueError: Nothing was timed.
    """
    floor = found.floor
    loading = 1e3 * found.batch_size / statistics.median(found.loading.prepared) if found.loading else None
    panels = [
        ('training step', found.steps, floor and floor.step, loading),
        (f'{found.module} alone, forward and backward', found.parts, floor and floor.part, None),
    ]
    panels = [panel for panel in panels if panel[1]]
    if not panels:
        raise ValueError('a benchmark of the loader alone has no bars; time the step or the module too')
    heights = [ROW * len(timings) + 0.9 for _, timings, _, _ in panels]
    figure = new_figure(10, sum(heights) + 0.4)
    height, width = found.image_size
    what = f'{found.config}, batch {found.batch_size}, {width}x{height} px, {found.precision}, {found.device}'
    figure.suptitle(plain(what), fontsize=10)
    rows = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, timings, least, loader) in zip(rows, panels, strict=True):
        _bars(axes, timings)
        _lines(axes, least, loader)
        axes.set_title(plain(title), fontsize=10)
        axes.set_xlim(left=0)
        axes.legend(fontsize=8, loc='upper left', bbox_to_anchor=(1, 1))
    rows[-1].set_xlabel('ms of a micro-batch')
    return figure


def _bars(axes: Axes, timings: Sequence[Timing]) -> None:
    """The windows of a variant side by side, the first variant on top."""
    variants = list(dict.fromkeys(timing.variant for timing in timings))
    timings = sorted(timings, key=lambda timing: variants.index(timing.variant))
    lengths = sorted({timing.accumulate for timing in timings})
    for length, color in zip(lengths, np.resize(COLORS, len(lengths)).tolist(), strict=True):
        places = [place for place, timing in enumerate(timings) if timing.accumulate == length]
        mine = [timings[place] for place in places]
        medians = np.array([timing.median for timing in mine])
        spread = np.abs([(min(timing.rounds), max(timing.rounds)) for timing in mine] - medians[:, None]).T
        label = f'windows of {length}' if len(lengths) > 1 else 'median of the rounds'
        bars = axes.barh(places, medians, 0.75, xerr=spread, color=color, ecolor='#888888', capsize=2, label=label)
        axes.bar_label(bars, [f'{median:.1f}' for median in medians], padding=3, fontsize=7)
    busy = [(place, timing.gpu.busy) for place, timing in enumerate(timings) if timing.gpu]
    if busy:
        places_of, times = zip(*busy, strict=True)
        axes.scatter(times, places_of, marker='|', s=180, linewidths=2, color='black', zorder=3, label='card busy')
    axes.set_yticks(range(len(timings)), [plain(timing.variant) for timing in timings], fontsize=8)
    axes.set_ylim(len(timings) - 0.5, -0.5)
    axes.margins(x=0.1)


def _lines(axes: Axes, floor: float | None, loading: float | None) -> None:
    if floor:
        axes.axvline(floor, color='#e45756', linestyle='--', linewidth=1.2, label=f'bytes floor {floor:.2f} ms')
    if loading:
        axes.axvline(loading, color='#72b7b2', linestyle=':', linewidth=1.5, label=f'data loader {loading:.1f} ms')
