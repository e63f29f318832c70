"""The overfit gate: whether a detector can learn 100 generated images by heart, task by task, over several seeds."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lucid.apis.build import load_config, override
from lucid.apis.train import train
from lucid.engine.environment import environment

CONFIGS = Path(__file__).resolve().parents[2] / 'configs' / 'yolo'


class Gate(NamedTuple):
    """What a task must reach: the last validation's ``figure``, as the median over seeds, at least ``least``."""

    config: str
    figure: str
    least: float


GATES: Mapping[str, Gate] = {
    'detect': Gate('overfit_shapes.py', 'coco/recall50', 0.95),
    'segment': Gate('overfit_segment_shapes.py', 'coco/mask/IoU', 0.70),
    'oriented': Gate('overfit_oriented_shapes.py', 'rotated/mAP50', 0.85),
    'keypoint': Gate('overfit_keypoint_shapes.py', 'coco/keypoint/mAP', 0.40),
}
_CHILD = 'import json, sys; from lucid.apis.overfit import child; child(**json.loads(sys.argv[1]))'


class Outcome(NamedTuple):
    """One task; ``values`` is the figure per seed, None where a run failed."""

    task: str
    gate: Gate
    values: dict[int, float | None]

    @property
    def reached(self) -> float | None:
        """The median; None where a run failed."""
        known = [value for value in self.values.values() if value is not None]
        return float(median(known)) if len(known) == len(self.values) else None

    @property
    def passed(self) -> bool:
        """Whether the gate is reached."""
        return self.reached is not None and self.reached >= self.gate.least


def overfit(
    tasks: Sequence[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    jobs: int = 1,
    work_dir: str | Path = 'work_dirs/overfit',
    options: Mapping[str, Any] | None = None,
    run: Callable[[Mapping[str, Any]], float | None] | None = None,
    console: Console | None = None,
) -> list[Outcome]:
    """Train each task from each seed, in processes of their own, and judge the medians.

    Args:
        tasks: Keys of ``GATES``.
        seeds: Of the runs.
        jobs: Runs at a time.
        work_dir: A folder per run goes in here; an earlier run's is replaced.
        options: Config keys to change in every run, as ``--cfg-options``.
        run: What does one run, given the arguments of ``child`` without ``out``; default a process.
        console: Where progress and table go; None is the standard output.

    Returns:
        One per task.
    """
    console, run = console or Console(), run or _run
    plans = [(task, seed) for task in tasks for seed in seeds]
    found: dict[tuple[str, int], float | None] = {}
    with ThreadPoolExecutor(jobs) as pool, Progress(console=console, transient=True) as progress:
        bar = progress.add_task('overfitting', total=len(plans))
        futures = {}
        for task, seed in plans:
            folder = Path(work_dir, f'{task}_{seed}')
            config = str(CONFIGS / GATES[task].config)
            arguments = {'config': config, 'figure': GATES[task].figure, 'seed': seed, 'work_dir': str(folder)}
            futures[pool.submit(run, {**arguments, 'options': dict(options or {})})] = task, seed
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            progress.advance(bar)
    outcomes = [Outcome(task, GATES[task], {seed: found[task, seed] for seed in seeds}) for task in tasks]
    _print(outcomes, console)
    return outcomes


def child(config: str, figure: str, seed: int, work_dir: str, options: Mapping[str, Any], out: str) -> None:
    """Train once in this process, and write the last validation's figure to the JSON file ``out``."""
    cfg = override(load_config(config, options), work_dir=work_dir, seed=seed)
    runner = train(cfg, overwrite=True)
    Path(out).write_text(json.dumps(float(runner.message_hub.get_scalar(f'val/{figure}').current())))


def _run(arguments: Mapping[str, Any]) -> float | None:
    """The figure of one run in a process of its own, whose output goes to ``overfit.log`` of its folder."""
    folder = Path(arguments['work_dir'])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, open(folder / 'overfit.log', 'w') as log:
        out = Path(scratch, 'figure.json')
        command = [sys.executable, '-c', _CHILD, json.dumps({**arguments, 'out': str(out)})]
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        return float(json.loads(out.read_text())) if out.is_file() else None


def _print(outcomes: Sequence[Outcome], console: Console) -> None:
    table = Table('task', 'figure', 'per seed', 'median', 'gate', '')
    for outcome in outcomes:
        values = ', '.join('failed' if value is None else f'{value:.3f}' for value in outcome.values.values())
        reached = '-' if outcome.reached is None else f'{outcome.reached:.3f}'
        verdict = 'passed' if outcome.passed else 'FAILED'
        table.add_row(outcome.task, outcome.gate.figure, values, reached, f'{outcome.gate.least:.2f}', verdict)
    console.print(table)


def to_record(outcomes: Sequence[Outcome], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Outcomes as plain JSON types, with what they ran on."""
    rows = [
        {
            'task': outcome.task,
            **outcome.gate._asdict(),
            'values': {str(seed): value for seed, value in outcome.values.items()},
            'median': outcome.reached,
            'passed': outcome.passed,
        }
        for outcome in outcomes
    ]
    facts = environment()
    return {'date': time.strftime('%Y-%m-%d'), 'environment': facts, 'options': dict(options or {}), 'gates': rows}
