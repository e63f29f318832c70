"""A benchmark as tables."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lucid.apis.benchmark import Benchmark, Timing


def print_benchmark(found: Benchmark, *, console: Console | None = None) -> None:
    """Print each variant beside eager, in whole steps and the region alone."""
    console = console or Console()
    if found.device == 'cpu':
        console.print('No CUDA card in use: the tape replays here, and its times say nothing about a card.')
    height, width = found.image_size
    what = f'{found.config}, batch {found.batch_size}, {width}x{height} px, {found.precision}, {found.device}'
    console.print(_table(f'training step: {what}', found.steps, found.batch_size))
    console.print(_table(f'{found.module} alone, forward and backward: {what}', found.parts, found.batch_size))
    console.print(
        'acc: micro-batches of a step; ms: of one micro-batch, median of the rounds and half of most minus least; '
        'x: times as fast as eager; busy: ms that the card works; /busy: ms in terms of it; start: the first step.'
    )


def _table(title: str, timings: Sequence[Timing], batch_size: int) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column('variant', no_wrap=True)
    columns = ('acc', 'ms', 'img/s', 'x', 'busy', '/busy', 'kernels', 'MiB', 'start')
    for column in columns:
        table.add_column(column, justify='right', no_wrap=True)
    eager = {t.accumulate: t.median for t in timings if t.variant == 'eager'}
    for timing in timings:
        table.add_row(timing.variant, *_cells(timing, eager[timing.accumulate], batch_size))
    return table


def _cells(timing: Timing, eager: float, batch_size: int) -> list[str]:
    gpu = timing.gpu
    return [
        str(timing.accumulate),
        f'{timing.median:.1f} ±{(max(timing.rounds) - min(timing.rounds)) / 2:.1f}',
        f'{1e3 * batch_size / timing.median:.0f}',
        f'{eager / timing.median:.2f}',
        f'{gpu.busy:.1f}' if gpu else '-',
        f'{timing.median / gpu.busy:.3f}' if gpu else '-',
        str(gpu.kernels) if gpu else '-',
        str(timing.memory_mib) if gpu else '-',
        f'{timing.start:.0f} s',
    ]
