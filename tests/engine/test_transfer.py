from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid.engine.checkpoint import CheckpointError
from lucid.engine.transfer import plan_transfer


class Small(nn.Module):
    """A body of ``width`` and a row of ``rows`` per class."""

    class_rows = frozenset({'rows.weight', 'rows.bias'})

    def __init__(self, classes: int, *, width: int = 4, fill: float = 0.0, extra: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(2, width)
        self.norm = nn.BatchNorm1d(width)
        self.rows = nn.Linear(width, classes)
        if extra:
            self.extra = nn.Linear(1, 1)
        for parameter in self.parameters():
            nn.init.constant_(parameter, fill)


def checkpoint(model: Small, *classes: str, **more: Any) -> dict[str, Any]:
    return {'state_dict': model.state_dict(), 'classes': list(classes), 'meta': {}, **more}


def numbered(model: Small) -> Small:
    """Row i of the classes holds i + 1."""
    with torch.no_grad():
        for i in range(len(model.rows.bias)):
            model.rows.weight[i] = model.rows.bias[i] = i + 1.0
    return model


def rows(model: Small) -> list[float]:
    assert torch.equal(model.rows.weight.mean(1), model.rows.bias)
    return model.rows.bias.tolist()


def test_the_same_model_takes_everything() -> None:
    source, model = numbered(Small(3, fill=5.0)), Small(3)
    transfer = plan_transfer(model, checkpoint(source, 'a', 'b', 'c'), classes=('a', 'b', 'c'))
    assert not transfer.fresh
    assert not transfer.rows
    assert not any(model.body.weight.flatten().tolist()), 'nothing is written yet'
    address = model.body.weight.data_ptr()
    transfer.apply()
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())
    assert model.body.weight.data_ptr() == address
    assert transfer.loaded_share() == 1.0


@pytest.mark.parametrize(
    ('theirs', 'ours', 'expected'),
    [
        (('a', 'b', 'c'), ('c', 'new', 'a', 'other'), [3.0, -7.0, 1.0, -7.0]),
        (('a', 'b'), ('b', 'a'), [2.0, 1.0]),  # as many classes, but not the same order
        (('a', 'b', 'c'), ('b',), [2.0]),
        (('a',), ('x', 'y'), [-7.0, -7.0]),
    ],
)
def test_rows_follow_the_names_of_the_classes(
    theirs: tuple[str, ...], ours: tuple[str, ...], expected: list[float]
) -> None:
    model = Small(len(ours), fill=-7.0)
    source = checkpoint(numbered(Small(len(theirs), fill=5.0)), *theirs)
    transfer = plan_transfer(model, source, classes=ours)
    transfer.apply()
    assert rows(model) == expected
    assert (model.body.weight == 5.0).all()
    assert set(transfer.shared) == set(theirs) & set(ours)
    assert set(transfer.new) == set(ours) - set(theirs)
    assert set(transfer.dropped) == set(theirs) - set(ours)


def test_control_without_class_rows_the_order_would_be_mixed_up() -> None:
    model = Small(2, fill=-7.0)
    model.class_rows = frozenset()
    plan_transfer(model, checkpoint(numbered(Small(2)), 'a', 'b'), classes=('b', 'a')).apply()
    assert rows(model) == [1.0, 2.0]


@pytest.mark.parametrize(('known', 'ours'), [((), ('a', 'b')), (('a', 'b'), ()), (('a', 'a'), ('a', 'b'))])
def test_where_names_are_unknown_or_double_rows_fit_by_shape_alone(
    known: tuple[str, ...], ours: tuple[str, ...]
) -> None:
    model, three = Small(2, fill=-7.0), Small(3, fill=-7.0)
    source = checkpoint(numbered(Small(2)), *known)
    plan_transfer(model, source, classes=ours).apply()
    assert rows(model) == [1.0, 2.0]
    assert 'rows.weight' in plan_transfer(three, source, classes=ours).fresh


def test_averaged_weights_are_taken_unless_others_are_asked_for() -> None:
    source = Small(2, fill=5.0)
    shadow = {name: torch.full_like(value, 9.0) for name, value in source.state_dict().items() if value.ndim}
    content = checkpoint(source, 'a', 'b', ema={'shadow': shadow, 'num_updates': 1})
    for weights, value in (('auto', 9.0), ('ema', 9.0), ('raw', 5.0)):
        model = Small(2)
        plan_transfer(model, content, classes=('a', 'b'), weights=weights).apply()
        assert (model.body.weight == value).all()
        assert model.norm.num_batches_tracked == 0


def test_what_was_not_loaded_is_named_with_its_reason() -> None:
    source = checkpoint(numbered(Small(2, extra=True)), 'a', 'b')
    model = nn.ModuleDict({'body': nn.Linear(2, 4), 'norm': nn.BatchNorm1d(4), 'rows': nn.Linear(5, 2)})
    model['added'] = nn.Linear(3, 3)
    transfer = plan_transfer(model, source, classes=('a', 'b'))
    assert transfer.fresh == {
        'rows.weight': '(2, 4) there, (2, 5) here',
        'added.weight': 'not in the checkpoint',
        'added.bias': 'not in the checkpoint',
    }
    assert transfer.unused == ('extra.weight', 'extra.bias')
    report = transfer.report()
    assert report['loaded'][0] == 'body.bias'
    assert len(report['loaded']) == 8
    assert report['unused'] == ['extra.bias', 'extra.weight']
    table = transfer.table()
    for text in ('body', 'loaded', 'fresh: not in the checkpoint', 'fresh: (2, 4) there, (2, 5) here', 'not used'):
        assert text in table
    # 8 + 4 + 4 + 4 + 2 of 8 + 4 + 4 + 4 + 10 + 2 + 9 + 3 numbers
    assert transfer.loaded_share() == pytest.approx(22 / 44)


def test_the_table_names_the_classes() -> None:
    table = plan_transfer(Small(2), checkpoint(numbered(Small(2)), 'cat', 'dog'), classes=('dog', 'horse')).table()
    assert 'loaded for shared classes: dog' in table
    assert 'classes that start fresh: horse' in table
    assert 'that the data does not have: cat' in table


def test_a_checkpoint_of_which_no_weight_fits_is_refused() -> None:
    """Counters and, where the classes agree, their biases fit all the same."""
    with pytest.raises(
        CheckpointError, match=r'no weight .*body\.weight \(\(8, 2\) there, \(4, 2\) here\).*same model'
    ):
        plan_transfer(Small(2), checkpoint(Small(2, width=8), 'a', 'b'), classes=('a', 'b'))


def test_another_precision_is_converted() -> None:
    source, model = numbered(Small(2, fill=0.5)).double(), Small(3)
    plan_transfer(model, checkpoint(source, 'a', 'b'), classes=('b', 'a', 'c')).apply()
    assert model.body.weight.dtype == torch.float32
    assert rows(model) == [2.0, 1.0, 0.0]


def values_of(state: dict[str, Tensor]) -> list[float]:
    return [value.double().sum().item() for value in state.values()]


def test_neither_model_nor_checkpoint_is_changed_by_planning() -> None:
    source, model = checkpoint(numbered(Small(2)), 'a', 'b'), Small(2, fill=3.0)
    before = values_of(model.state_dict()), values_of(source['state_dict'])
    plan_transfer(model, source, classes=('b', 'c'))
    assert (values_of(model.state_dict()), values_of(source['state_dict'])) == before
