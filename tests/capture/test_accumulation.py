"""The accumulation table: every row replays, and names its evidence."""

from pathlib import Path

import pytest

from lucid.capture import TABLE, AccumulationTable


@pytest.mark.parametrize(
    ('task', 'region', 'route'),
    [
        ('detect', 'network', 'replay'),
        ('detect', 'network.head', 'replay'),
        ('segment', 'network', 'replay'),
        ('segment', 'network.head', 'replay'),
        ('oriented', 'network', 'replay'),
        ('keypoint', 'network', 'replay'),
        ('segment', 'loss', 'replay'),  # owns no parameters
        ('keypoint', 'loss', 'replay'),  # its flow has parameters, and a test of its own
        (None, 'backbone', 'replay'),
    ],
)
def test_every_task_replays(task, region, route):
    assert AccumulationTable().row(task, region).route == route


def test_every_replay_row_names_a_test_that_exists():
    root = Path(__file__).parents[2]
    for row in TABLE.values():
        if row.route == 'replay' and '::' in row.evidence:
            path, test = row.evidence.split('::')
            assert f'def {test}(' in (root / path).read_text()


def test_a_config_overrides_one_region_of_one_task():
    table = AccumulationTable({('segment', 'network.head'): 'eager', ('detect', 'network'): 'eager'})
    assert table.row('segment', 'network.head').route == 'eager'
    assert table.row('segment', 'network').route == 'replay'
    assert table.row('detect', 'network').route == 'eager'
    assert table.row('detect', 'network.head').route == 'replay'


@pytest.mark.parametrize(
    ('overrides', 'message'),
    [
        ({('segmet', 'network'): 'eager'}, "no task 'segmet'; the nearest is 'segment'"),
        ({('detect', 'network'): 'relpay'}, "'relpay' is no route; use one of"),
        ({'network': 'eager'}, 'is no .task, region.; write'),
    ],
)
def test_a_wrong_override_is_refused_with_the_key(overrides, message):
    with pytest.raises(ValueError, match=message):
        AccumulationTable(overrides)
