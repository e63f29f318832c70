"""What somebody needs to repeat a run, beside its results."""

import json
from pathlib import Path

from mmengine.hooks import Hook
from mmengine.runner import Runner

from lucid.engine.checkpoint import plain
from lucid.engine.environment import environment
from lucid.registry import HOOKS


@HOOKS.register_module()
class EnvironmentHook(Hook):
    """Writes ``environment.json`` and ``config.json`` into the work directory; the runner itself writes ``config.py``.

    ``environment.json`` holds versions, machine, git revision, command line and seed; ``config.json`` the resolved
    config as plain data. A run that resumes writes them again.
    """

    priority = 'VERY_HIGH'  # written even if another hook's start fails

    def before_run(self, runner: Runner) -> None:
        """Write both files, on the first process only."""
        if runner.rank != 0:
            return
        facts = {**environment(), 'seed': runner.seed, 'world_size': runner.world_size, 'time': runner.timestamp}
        work_dir = Path(runner.work_dir)
        (work_dir / 'environment.json').write_text(json.dumps(facts, indent=2) + '\n')
        config = plain(runner.cfg.to_dict(), 'config')
        (work_dir / 'config.json').write_text(json.dumps(_string_keys(config), indent=2) + '\n')


def _string_keys(value: object) -> object:
    """Return ``value`` with the keys of every dict as strings: JSON has no others."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _string_keys(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_string_keys(item) for item in value]
    return value
