import runpy
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / 'tools' / 'pool_table.py'


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ('--scale q', '--scale takes one of n, s, m, l, x'),
        ('--image-size 63', '--image-size takes a multiple of 32'),
        ('--batch-size 0', '--batch-size a number of at least 1'),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, 'argv', [str(TOOL), *words.split()])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(TOOL))['main']()
    assert end.value.code == 2
    assert message in capsys.readouterr().err
