"""The accumulation table: per task and region, whether it replays when a window has several micro-batches."""

import difflib
from collections.abc import Mapping
from typing import NamedTuple

ROUTES = ('replay', 'eager')


class Row(NamedTuple):
    """One row; ``evidence`` is the test that allows a replay, or why the row is eager."""

    route: str
    evidence: str


_PER_MICRO_STEP = 'tests/capture/test_gradients.py::test_every_micro_step_has_the_gradients_of_eager'
_STEPS = 'tests/capture/test_step_region.py::test_thirty_steps_with_everything_moving_equal_eager'
_TASKS = 'tests/capture/test_tasks.py::test_every_micro_step_of_each_task_has_the_gradients_of_eager'
_TASK_STEPS = 'tests/apis/test_parity_tasks.py::test_the_whole_step_of_each_task_equals_eager'

# (task, region). A row says replay only together with the CUDA test that it names. The task None is any model that
# states no task; the region '*' is any target without a row of its own.
TABLE: Mapping[tuple[str | None, str], Row] = {
    ('detect', '*'): Row('replay', _PER_MICRO_STEP),
    ('segment', '*'): Row('replay', _TASKS),
    ('segment', 'step'): Row('replay', _TASK_STEPS),
    ('oriented', '*'): Row('replay', _TASKS),
    ('oriented', 'step'): Row('replay', _TASK_STEPS),
    ('keypoint', '*'): Row('replay', _TASKS),
    ('keypoint', 'step'): Row('replay', _TASK_STEPS),
    (None, '*'): Row('replay', _PER_MICRO_STEP),
    ('detect', 'step'): Row('replay', 'tests/apis/test_parity.py::test_every_kind_of_region_equals_eager'),
    (None, 'step'): Row('replay', _STEPS),
    (None, 'loss'): Row('replay', 'the loss region owns no parameters'),
    ('keypoint', 'loss'): Row('replay', _TASK_STEPS),
}


class AccumulationTable:
    """``TABLE`` with the overrides of a config, such as ``{('segment', 'network'): 'eager'}``."""

    def __init__(self, overrides: Mapping[tuple[str | None, str], str] | None = None) -> None:
        self._rows = dict(TABLE)
        tasks = {task for task, _ in TABLE}
        for key, route in (overrides or {}).items():
            if not (isinstance(key, tuple) and len(key) == 2):
                raise ValueError(f'accumulation: {key!r} is no (task, region); write ("detect", "network")')
            if key[0] not in tasks:
                near = difflib.get_close_matches(str(key[0]), [str(task) for task in tasks], n=1) or ['detect']
                raise ValueError(f'accumulation: there is no task {key[0]!r}; the nearest is {near[0]!r}')
            if route not in ROUTES:
                raise ValueError(f'accumulation[{key}]: {route!r} is no route; use one of {ROUTES}')
            self._rows[key] = Row(route, 'the config')

    def row(self, task: str | None, region: str) -> Row:
        """The row for a region: its own, else its task's, else the one for models without task."""
        for key in ((task, region), (None, region) if region == 'loss' else (task, '*'), (task, '*'), (None, '*')):
            if key in self._rows:
                return self._rows[key]
        raise AssertionError('the table has a default row')
