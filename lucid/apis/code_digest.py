"""What a piece of Python computes, as a digest that comments, docstrings and layout leave alone."""

import ast
import hashlib
import sys
from pathlib import Path
from typing import Any

import lucid

PACKAGE = Path(lucid.__file__).parent
_LEFT_OUT = ('kind', 'type_comment', 'type_ignores', 'ctx')  # say nothing that runs


def digest(source: str) -> str:
    """Return the digest of a module's syntax tree without docstrings; the same on every version of Python."""
    return hashlib.sha256(_text(ast.parse(source)).encode()).hexdigest()[:16]


def imported_code() -> dict[str, str]:
    """Return the digest of each file of lucid that this process has imported, by its path in the package."""
    names = sorted(name for name in sys.modules if name.split('.')[0] == lucid.__name__)
    files = {Path(file) for name in names if (file := getattr(sys.modules[name], '__file__', None))}
    return code_of(sorted(str(file.resolve().relative_to(PACKAGE.resolve())) for file in files))


def code_of(paths: list[str]) -> dict[str, str]:
    """Return the present digest of files of lucid, by path in the package; '' for one that is gone."""
    return {path: digest((PACKAGE / path).read_text()) if (PACKAGE / path).is_file() else '' for path in paths}


def _text(node: Any) -> str:
    if isinstance(node, list):
        return f'[{",".join(map(_text, node))}]'
    if not isinstance(node, ast.AST):
        return repr(node)
    # Later Pythons add fields, which are empty where the code does not use them.
    fields = {name: value for name, value in ast.iter_fields(node) if name not in _LEFT_OUT}
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        fields['body'] = _without_docstring(node.body)
    if isinstance(node, ast.JoinedStr):
        fields['values'] = [value for value in node.values if not _is_empty(value)]
    filled = [f'{name}={_text(value)}' for name, value in fields.items() if value is not None and value != []]
    return f'{type(node).__name__}({",".join(filled)})'


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    constant = first.value if isinstance(first, ast.Expr) else None
    return body[1:] if isinstance(constant, ast.Constant) and isinstance(constant.value, str) else body


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ''
