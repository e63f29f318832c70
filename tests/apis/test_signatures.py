from typing import Any, Literal

import pytest
from mmengine.registry import Registry
from torch import nn

from lucid.apis.signatures import describe, matches, nearest, registered, signature_of


class Base:
    def __init__(self, *, depth: int = 1) -> None: ...


class PassesOn(Base):
    def __init__(self, *, width: int = 1, **kwargs: Any) -> None: ...


class Open:
    def __init__(self, *, width: int = 1, **kwargs: Any) -> None: ...


class OpenModule(nn.Module):
    def __init__(self, *, width: int = 1, **kwargs: Any) -> None: ...


class Inherits(Base):
    pass


class Bare:
    pass


@pytest.mark.parametrize(
    ('target', 'names', 'complete'),
    [
        (Base, ('depth',), True),
        (Inherits, ('depth',), True),
        (PassesOn, ('width', 'depth'), True),
        (Open, ('width',), False),
        (OpenModule, ('width',), False),
        (Bare, (), True),
    ],
)
def test_names_come_from_the_class_and_the_bases_that_kwargs_reach(
    target: type, names: tuple[str, ...], complete: bool
) -> None:
    signature = signature_of(target)
    assert (signature.names, signature.complete) == (names, complete)


def test_a_function_has_a_signature_too() -> None:
    def collate(samples: list, *, pad: bool = False) -> None: ...

    assert signature_of(collate).names == ('samples', 'pad')


@pytest.mark.parametrize(
    ('value', 'hint', 'fits'),
    [
        (16, int, True),
        ('16', int, False),
        (True, int, False),
        (16, float, True),
        ('0.1', float, False),
        (None, int | None, True),
        (1.5, int | None, False),
        ('x', Literal['x', 'y'], True),
        ('z', Literal['x', 'y'], False),
        ([1, 2], tuple[int, ...], True),
        ('12', list[int], False),
        (object(), dict[str, Any], True),
        (1, bool, False),
    ],
)
def test_plain_types_are_judged_and_everything_else_passes(value: Any, hint: Any, fits: bool) -> None:
    assert matches(value, hint) is fits


def test_types_are_named_as_a_reader_would() -> None:
    assert describe(int | None) == 'int or None'
    assert describe(Literal['x', 'y']) == "'x' or 'y'"


def test_the_nearest_name_is_suggested_and_otherwise_all() -> None:
    assert nearest('batchsize', ['batch_size', 'num_workers']) == "did you mean 'batch_size'?"
    assert nearest('Adamw', ['AdamW', 'Adam', 'SGD']) == "did you mean 'AdamW'?"
    assert nearest('zzz', ['b', 'a']) == 'use one of: a, b'
    assert nearest('zzz', []) == 'there is nothing to choose from: correct or remove it'


def test_names_of_a_registry_include_its_parents() -> None:
    parent = Registry('parent', scope='first')
    child = Registry('child', parent=parent, scope='second')
    parent.register_module(module=Base)
    child.register_module(module=Open)
    assert registered(child) == ['Open', 'Base']
