"""The overfit gate: what it judges, and that a run that failed cannot pass."""

import json
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lucid.apis import load_config
from lucid.apis.overfit import CONFIGS, GATES, overfit, to_record


def answering(values: Mapping[tuple[str, int], float | None]) -> Callable[[Mapping[str, Any]], float | None]:
    """Instead of a training: the figure of a config and a seed."""
    names = {gate.config: task for task, gate in GATES.items()}
    return lambda arguments: values[names[Path(arguments['config']).name], arguments['seed']]


def test_the_median_of_the_seeds_decides() -> None:
    values = {('detect', 0): 0.2, ('detect', 1): 0.96, ('detect', 2): 0.99}
    values |= {('segment', 0): 0.99, ('segment', 1): 0.69, ('segment', 2): 0.5}
    out = StringIO()
    console = Console(file=out, width=150)
    detect, segment = overfit(['detect', 'segment'], run=answering(values), jobs=2, console=console)
    assert (detect.reached, detect.passed) == (0.96, True)
    assert (segment.reached, segment.passed) == (0.69, False)
    assert '0.200, 0.960, 0.990' in out.getvalue()
    assert 'FAILED' in out.getvalue()


def test_a_failed_run_fails_its_task_however_good_the_others_are() -> None:
    values = {('detect', 0): 1.0, ('detect', 1): None, ('detect', 2): 1.0}
    (outcome,) = overfit(['detect'], run=answering(values), console=Console(file=StringIO()))
    assert (outcome.reached, outcome.passed) == (None, False)


def test_the_record_has_every_value() -> None:
    values = {('detect', 4): 0.97}
    outcomes = overfit(['detect'], seeds=[4], run=answering(values), console=Console(file=StringIO()))
    record = json.loads(json.dumps(to_record(outcomes, {'image_size': 64})))
    row = {'task': 'detect', 'config': 'overfit_shapes.py', 'figure': 'coco/recall50', 'least': 0.95}
    assert record['gates'] == [{**row, 'values': {'4': 0.97}, 'median': 0.97, 'passed': True}]
    assert record['options'] == {'image_size': 64}
    assert record['environment']['torch']


@pytest.mark.parametrize('task', GATES)
def test_nothing_in_a_gates_data_is_random_and_it_validates_at_the_end(task: str) -> None:
    cfg = load_config(CONFIGS / GATES[task].config)
    pipeline = [transform.type for transform in cfg.train_dataloader.dataset.pipeline]
    assert pipeline == ['Letterbox']
    assert cfg.train_dataloader.dataset.num_images == 100
    assert cfg.train_cfg.max_epochs % cfg.train_cfg.val_interval == 0
    assert cfg.param_scheduler == {'type': 'WarmupLinearLR', 'warmup_epochs': 0.0, 'lrf': 1.0}
