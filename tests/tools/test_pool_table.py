from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ('--scale q', '--scale takes one of n, s, m, l, x'),
        ('--image-size 63', '--image-size takes a multiple of 32'),
        ('--batch-size 0', '--batch-size a number of at least 1'),
    ],
)
def test_what_cannot_be_meant_is_refused(
    run_tool: Callable[..., int], words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_tool('pool_table', *words.split()) == 2
    assert message in capsys.readouterr().err
