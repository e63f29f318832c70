import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.runner import Runner

from lucid.engine.hooks import EnvironmentHook


def test_a_run_leaves_versions_machine_revision_seed_and_config(
    line_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    runner = line_runner([EnvironmentHook()], epochs=1)
    runner.cfg = Config({'a': (1, 2), 'table': {('x', 'y'): 'eager'}})
    runner.train()
    facts = json.loads((tmp_path / 'environment.json').read_text())
    assert facts['torch'].split('+')[0] == torch.__version__.split('+')[0]
    assert facts['python'] == '.'.join(map(str, sys.version_info[:3]))
    assert facts['seed'] == 0
    assert facts['git_revision'] is None or len(facts['git_revision']) == 40
    assert facts['command'] == sys.argv
    assert json.loads((tmp_path / 'config.json').read_text()) == {'a': [1, 2], 'table': {"('x', 'y')": 'eager'}}
