"""Whether a config trains the same with a captured region as without: every value of every micro-step, bit for bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from rich.console import Console
from rich.table import Table

from lucid.apis.region_names import make_regions
from lucid.apis.training_pair import PRECISIONS, TrainingPair, exact
from lucid.capture import Parts, TapeMemory
from lucid.engine.environment import environment

__all__ = ['PRECISIONS', 'Parity', 'Row', 'check_parity', 'print_parity']


# Eager against eager explains a difference, it proves nothing that the comparison after it does not.
CONTROL_STEPS = 10


class Row(NamedTuple):
    """One comparison.

    control:  first difference of eager against eager; then nothing captured was run
    captured: first difference of the captured run against eager
    problems: what else keeps the comparison from meaning anything, such as a region that never replayed
    loss:     of the last micro-step of the eager run
    """

    precision: str
    accumulate: int
    micro_steps: int
    control: str | None
    captured: str | None
    replays: int
    eager_calls: int
    problems: list[str]
    loss: float

    @property
    def equal(self) -> bool:
        """Whether the captured run replayed and equals eager."""
        return self.control is None and self.captured is None and not self.problems


class Parity(NamedTuple):
    """The comparisons of one config; ``backend`` is ``'cuda'`` or ``'tape'``, the CPU stand-in."""

    config: str
    region: str
    steps: int
    backend: str
    rows: list[Row]

    @property
    def equal(self) -> bool:
        """Whether every comparison is."""
        return bool(self.rows) and all(row.equal for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, with what it ran on."""
        rows = [{**row._asdict(), 'equal': row.equal} for row in self.rows]
        return {**self._asdict(), 'rows': rows, 'equal': self.equal, 'environment': environment()}


def check_parity(
    cfg: Config,
    *,
    region: str = 'network',
    accumulate: Sequence[int] = (1, 2),
    precision: Sequence[str] = ('fp32', 'bf16', 'fp16'),
    steps: int = 10,
    device: str | torch.device | None = None,
    parts: Parts | None = None,
) -> Parity:
    """Train the model of a config twice from one seed on the same batches, eager and captured, and compare.

    First eager against eager, for a few steps, then eager against captured, in lockstep, deterministic and without
    TF32. Compared are losses, each gradient before it is used (None is not zeros), parameters, buffers, optimizer
    state, loss scaler, averages and generators. Learning rate, momentum and branch weight move from step to step as in
    a warm-up and decay; hooks other than EMAHook take no part. Gradients of the step region never leave its graphs:
    what they did to parameters and averages is compared, and inside a window their sum.

    Args:
        cfg: What ``load_config`` returned, not changed.
        region: What to capture, whatever the accumulation table says: the path of a module, ``loss``, ``step``, or
            several joined by ``+``, such as ``network+loss``. One that ends with ``:compiled`` is compiled, on the
            eager side too.
        accumulate: Micro-batches of a window.
        precision: Of ``PRECISIONS``.
        steps: Optimizer steps of each run.
        device: Default a CUDA card where there is one. On the CPU the tape stands in for CUDA graphs.
        parts: What the region is made of, to show that a part is needed.

    Returns:
        One row per precision and number of micro-batches.

    Raises:
        ConfigError: The config cannot be meant, has no such module, or its data is missing.
    """
    device = torch.device(device or ('cuda' if torch.cuda.is_available() else 'cpu'))
    backend = 'cuda' if device.type == 'cuda' else 'tape'
    if parts is None and backend == 'tape':
        parts = Parts(memory=lambda _: TapeMemory())
    pair = TrainingPair(cfg, region=region, steps=steps, device=device, parts=parts)
    pair.check_region()
    rows = []
    with exact():
        for name in precision:
            rows += [_compare(pair, name, number) for number in accumulate]
    return Parity(Path(cfg.filename or 'config').name, region, steps, backend, rows)


def _compare(pair: TrainingPair, precision: str, accumulate: int) -> Row:
    control, loss = pair.lockstep(precision, accumulate, [], steps=min(pair.steps, CONTROL_STEPS))
    regions = make_regions(pair.region)
    captured = None
    if control is None:
        captured, loss = pair.lockstep(precision, accumulate, regions, steps=pair.steps)
    routes = [region.routes for region in regions]
    return Row(
        precision,
        accumulate,
        pair.steps * accumulate,
        control,
        captured,
        min(each.replays for each in routes),
        sum(each.calls - each.replays for each in routes),
        [problem for each in routes for problem in each.problems()] if control is None else [],
        loss,
    )


def print_parity(parity: Parity, *, console: Console | None = None) -> None:
    """Print a table, and under it the first difference of each row that has one."""
    console = console or Console()
    if parity.backend == 'tape':
        console.print('No CUDA card in use: the tape, the CPU stand-in for CUDA graphs, replays. It proves no card.')
    table = Table(title=f'{parity.config}, region {parity.region}, {parity.steps} optimizer steps, {parity.backend}')
    table.caption = 'control: eager against eager; captured: captured against eager; eager: calls that did not replay'
    for title in ('precision', 'accumulate', 'control', 'captured', 'replays', 'eager', 'loss'):
        table.add_column(title, justify='left' if title == 'precision' else 'right', no_wrap=True)
    for row in parity.rows:
        control = 'equal' if row.control is None else 'DIFFERS'
        captured = 'not run' if row.control else 'equal' if row.equal else 'DIFFERS' if row.captured else 'NO PROOF'
        numbers = (str(row.replays), str(row.eager_calls), f'{row.loss:.4f}')
        table.add_row(row.precision, str(row.accumulate), control, captured, *numbers)
    console.print(table)
    for row in parity.rows:
        where = f'{row.precision}, accumulate {row.accumulate}'
        if row.control:
            console.print(f'{where}: eager differs from eager: {row.control}', markup=False)
        for message in ([f'captured differs from eager: {row.captured}'] if row.captured else []) + row.problems:
            console.print(f'{where}: {message}', markup=False)
