"""What tests of command lines share."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / 'tools'
RunTool = Callable[..., int]


@pytest.fixture
def run_tool(monkeypatch: pytest.MonkeyPatch) -> RunTool:
    """Runs a tool by its name in this process and returns its exit status, also where argparse ends it.

    Starting a process takes longer than the rest of a test. Documents start some.
    """

    def run(name: str, *arguments: object) -> int:
        tool = str(TOOLS / f'{name}.py')
        monkeypatch.setattr(sys, 'argv', [tool, *map(str, arguments)])
        try:
            return int(runpy.run_path(tool)['main']())
        except SystemExit as end:
            return int(end.code or 0)

    return run
