"""A benchmark as tables."""

import statistics
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lucid.apis.benchmark_loading import Loading
from lucid.apis.benchmark_result import Benchmark, Estimate, Split, Timing, plain_variant, splits
from lucid.apis.kernel_kinds import by_kind, short_name

PER_KIND = 3  # kernels of a kind that are shown by name


def print_benchmark(found: Benchmark, *, console: Console | None = None) -> None:
    """Print each variant beside eager, in whole steps and the region alone, the floor, and the loader's rate."""
    console = console or Console()
    if found.device == 'cpu' and (found.steps or found.parts):
        console.print('No CUDA card in use: the tape replays here, and its times say nothing about a card.')
    height, width = found.image_size
    what = f'{found.config}, batch {found.batch_size}, {width}x{height} px, {found.precision}, {found.device}'
    floor = found.floor
    if found.steps:
        console.print(_times(f'training step: {what}', found.steps, found.batch_size, floor and floor.step))
    if apart := splits(found.steps):
        console.print(_parts(apart))
    if found.parts:
        title = f'{found.module} alone, forward and backward: {what}'
        console.print(_times(title, found.parts, found.batch_size, floor and floor.part))
    if found.steps or found.parts:
        console.print(_costs([('step', found.steps), (found.module, found.parts)]))
    if floor is not None:
        console.print(
            f'floor: {floor.step:.3f} ms, {floor.step_bytes / 1e9:.3f} GB of a micro-batch (five passes over inputs '
            f'and outputs of convolutions) at {floor.bandwidth / 1e9:.0f} GB/s, read and written by a copy on the '
            f'device in this run; of {found.module} {floor.part:.3f} ms'
        )
    if found.loading is not None:
        console.print(_loading(found.loading))
    if found.steps or found.parts:
        console.print(
            'acc: micro-batches of a step; ms: of one micro-batch, median of the rounds and half of most minus least; '
            'x: times as fast as eager; busy: ms that the card works; /busy: ms in terms of it; /floor: busy in terms '
            'of the floor; host: ms of the processor until all is launched; start: the first step.'
        )


def print_profile(found: Benchmark, *, console: Console | None = None) -> None:
    """Print the kernels of each variant by kind; or that there are none, because no card was profiled."""
    console = console or Console()
    if found.device == 'cpu':
        console.print('No profile: the CPU runs no kernels. --profile shows something on a CUDA card.')
        return
    for what, timings in (('training step', found.steps), (f'{found.module} alone', found.parts)):
        for timing in timings:
            title = f'{what}, {timing.variant}, acc {timing.accumulate}: kernels of a micro-batch'
            console.print(_kernels(title, timing, console.width))
    console.print('share: of the milliseconds of all kernels, added up; where kernels overlap, busy is less.')


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column('variant', no_wrap=True)
    for column in columns:
        table.add_column(column, justify='right', no_wrap=True)
    return table


def _times(title: str, timings: Sequence[Timing], batch_size: int, floor: float | None) -> Table:
    table = _table(title, ('acc', 'ms', 'img/s', 'x', 'busy', '/busy', '/floor', 'host'))
    eager = {t.accumulate: t.median for t in timings if t.variant == 'eager'}
    for timing in timings:
        busy = timing.gpu.busy if timing.gpu else None
        table.add_row(
            timing.variant,
            str(timing.accumulate),
            f'{timing.median:.1f} ±{timing.spread:.1f}',
            f'{1e3 * batch_size / timing.median:.0f}',
            f'{eager[timing.accumulate] / timing.median:.2f}',
            _number(busy, 1),
            _number(busy and timing.median / busy, 3),
            _number(busy and floor and busy / floor, 1),
            _number(timing.host, 2),
        )
    return table


def _parts(apart: Sequence[Split]) -> Table:
    """What a micro-batch takes and what ends a window, with the ratios that compiling is judged by."""
    table = _table(
        'a micro-batch (forward, loss, backward) and the end of a window (clip, optimizer, average), apart',
        ('micro-batch', 'x', 'x plain', 'busy', 'x busy', 'end', 'busy end'),
    )
    by_name = {split.variant: split for split in apart}
    eager = by_name.get('eager')
    for split in apart:
        plain = by_name.get(plain_variant(split.variant)) if plain_variant(split.variant) != split.variant else None
        table.add_row(
            split.variant,
            _estimate(split.micro_batch),
            _number(eager and eager.micro_batch.ms / split.micro_batch.ms, 2),
            _number(plain and plain.micro_batch.ms / split.micro_batch.ms, 2),
            _number(split.busy and split.busy[0], 1),
            _number(plain and plain.busy and split.busy and plain.busy[0] / split.busy[0], 2),
            _estimate(split.window_end),
            _number(split.busy and split.busy[1], 1),
        )
    table.caption = (
        'ms, from windows of several lengths; x plain, x busy: times as fast as the same regions not compiled, by the '
        'clock and by what the card is busy with'
    )
    return table


def _costs(groups: Sequence[tuple[str, Sequence[Timing]]]) -> Table:
    table = _table('what it takes', ('of', 'acc', 'kernels', 'MiB', 'start'))
    for what, timing in ((what, timing) for what, timings in groups for timing in timings):
        table.add_row(
            timing.variant,
            what,
            str(timing.accumulate),
            str(timing.gpu.kernels) if timing.gpu else '-',
            str(timing.memory_mib) if timing.gpu else '-',
            f'{timing.start:.0f} s',
        )
    return table


def _kernels(title: str, timing: Timing, width: int) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ('ms', 'share', 'count'):
        table.add_column(column, justify='right', no_wrap=True)
    # Names are long: without a bound they would take the room of the figures.
    table.add_column('kind, and its longest kernels', no_wrap=True, overflow='ellipsis', max_width=max(width - 25, 20))
    for kind in by_kind(timing.kernels):
        table.add_row(f'{kind.ms:.3f}', f'{kind.share:.1%}', f'{kind.num_launches:.0f}', kind.kind, style='bold')
        share = kind.share / kind.ms if kind.ms else 0.0
        for kernel in kind.kernels[:PER_KIND]:
            name = escape(short_name(kernel.name))
            table.add_row(f'{kernel.ms:.3f}', f'{kernel.ms * share:.1%}', f'{kernel.num_launches:.0f}', f'  {name}')
    return table


def _loading(loading: Loading) -> str:
    rates = ', '.join(
        f'{statistics.median(found):.0f} ±{(max(found) - min(found)) / 2:.0f} img/s {what}'
        for found, what in ((loading.loaded, 'loaded'), (loading.prepared, 'prepared on the device'))
    )
    return f'data loader alone, {loading.num_workers} workers, rounds of {loading.num_batches} batches: {rates}'


def _number(value: float | None, digits: int) -> str:
    return '-' if value is None else f'{value:.{digits}f}'


def _estimate(estimate: Estimate) -> str:
    return f'{estimate.ms:.1f} ±{estimate.spread:.1f}'
