"""The digest of code changes when what it computes may change, and only then."""

import hashlib
from pathlib import Path

import pytest

from lucid.apis import code_digest
from lucid.apis.code_digest import code_of, digest, imported_code

CODE = '''"""Module."""
def add(a, *, b=1):
    """Adds."""
    return a + b  # sum
class Empty:
    """Nothing."""
text = f'{add(1)!r:>{3}} and'
'''


@pytest.mark.parametrize(
    'same',
    [
        CODE.replace('  # sum', ''),
        CODE.replace('"""Adds."""\n    ', ''),
        CODE.replace('"""Nothing."""', 'r"""Other words."""'),
        CODE.replace('a + b', '(a\n     + b)'),
        CODE.replace("'", '"'),
    ],
)
def test_comments_docstrings_and_layout_change_nothing(same: str) -> None:
    assert same != CODE
    assert digest(same) == digest(CODE)


@pytest.mark.parametrize(
    'other',
    [
        CODE.replace('a + b', 'a - b'),
        CODE.replace('b=1', 'b=1.0'),
        CODE.replace('b=1', 'b=True'),
        CODE.replace('*, ', ''),
        CODE.replace('{3}', '{4}'),
        CODE.replace(' and', ' or'),
        CODE.replace('return', 'x = '),
    ],
)
def test_anything_that_runs_changes_it(other: str) -> None:
    assert other != CODE
    assert digest(other) != digest(CODE)


def test_the_digest_is_of_a_text_that_is_the_same_on_every_python() -> None:
    text = "Module(body=[Assign(targets=[Name(id='x')],value=Constant(value=1))])"
    assert digest('x = 1\n') == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_the_code_of_a_process_is_what_it_imported() -> None:
    code = imported_code()
    assert code['apis/code_digest.py'] == digest(Path(code_digest.__file__).read_text())
    assert '__init__.py' in code
    assert code == code_of(list(code))
    assert code_of(['gone.py']) == {'gone.py': ''}
