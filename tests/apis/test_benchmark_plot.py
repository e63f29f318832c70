"""The picture of a benchmark shows its figures at their places."""

from pathlib import Path

import cv2
import pytest

from lucid.apis.benchmark_floor import Floor
from lucid.apis.benchmark_loading import Loading
from lucid.apis.benchmark_plot import benchmark_figure, save_plot
from lucid.apis.benchmark_result import Benchmark, Timing
from lucid.apis.gpu_time import GpuTime

STEPS = [
    Timing('eager', 1, [100.0, 140.0, 130.0], GpuTime(22.0, 1), 1, 1.0),
    Timing('step', 1, [24.0, 23.0, 24.5], GpuTime(21.0, 1), 1, 1.0),
    Timing('eager', 2, [120.0, 120.0, 120.0], GpuTime(20.0, 1), 1, 1.0),
]
ALONE = [Timing('eager', 1, [90.0], None, 1, 1.0)]
FOUND = Benchmark(
    '$c.py', 'network', 'bf16', 16, (64, 64), 'Card', STEPS, ALONE, Floor(8, 4, 2000.0), Loading(1, 1, [9.0], [400.0])
)


def test_bars_are_medians_with_their_spread_and_windows_of_a_variant_lie_together() -> None:
    steps, alone = benchmark_figure(FOUND).axes
    assert [label.get_text() for label in steps.get_yticklabels()] == ['eager', 'eager', 'step']
    bars = {round(bar.get_y() + bar.get_height() / 2): bar.get_width() for bar in steps.patches}
    assert bars == {0: 130.0, 1: 120.0, 2: 24.0}
    segments = [tuple(map(tuple, s)) for c in steps.collections if hasattr(c, 'get_segments') for s in c.get_segments()]
    assert ((100.0, 0.0), (140.0, 0.0)) in segments
    assert ((23.0, 2.0), (24.5, 2.0)) in segments
    assert [bar.get_width() for bar in alone.patches] == [90.0]
    assert steps.get_ylim()[0] > steps.get_ylim()[1], 'the first variant is on top'


def test_the_cards_time_the_floor_and_the_loader_are_marked() -> None:
    steps, alone = benchmark_figure(FOUND).axes
    (busy,) = [marks for marks in steps.collections if marks.get_label() == 'card busy']
    assert sorted(map(tuple, busy.get_offsets().tolist())) == [(20.0, 1.0), (21.0, 2.0), (22.0, 0.0)]
    lines = {line.get_label(): line.get_xdata()[0] for line in steps.lines if len(set(line.get_xdata())) == 1}
    # 8 bytes at 2 kB/s; 16 images at 400 a second
    assert lines['bytes floor 4.00 ms'] == 4.0
    assert lines['data loader 40.0 ms'] == 40.0
    texts = {text.get_text() for text in alone.get_legend().get_texts()}
    assert texts == {'bytes floor 2.00 ms', 'median of the rounds'}
    assert {text.get_text() for text in steps.get_legend().get_texts()} >= {'windows of 1', 'windows of 2'}


def test_the_file_is_a_picture_whatever_its_name(tmp_path: Path) -> None:
    save_plot(FOUND, tmp_path / 'plot')
    assert (tmp_path / 'plot').read_bytes().startswith(b'\x89PNG')
    assert cv2.imread(str(tmp_path / 'plot')).shape[1] == 1000


def test_a_benchmark_may_have_steps_alone_and_nothing_else() -> None:
    (axes,) = benchmark_figure(FOUND._replace(parts=[], floor=None, loading=None)).axes
    labels = {text.get_text() for text in axes.get_legend().get_texts()}
    assert labels == {'windows of 1', 'windows of 2', 'card busy'}
    with pytest.raises(ValueError, match='no bars'):
        benchmark_figure(FOUND._replace(steps=[], parts=[]))
