"""The explanation of the log's bug holds on the stand-in, which models the pool, and on a card."""

from io import StringIO

import pytest
import torch
from rich.console import Console

from lucid.apis.pool_table import PoolTable, measure_pool, print_pool_table


@pytest.mark.parametrize('place', ['cpu', pytest.param('cuda', marks=pytest.mark.cuda)])
def test_with_a_shared_pool_only_the_copy_before_the_forward_is_right(place: str) -> None:
    torch.set_num_threads(1)
    table = measure_pool(image_size=64, batch_size=2, device=place)
    changed, none, hook, synchronized, before_forward = table.rows.values()
    assert changed[0] > 0 == changed[1]
    assert none[0] > 0 < none[1]
    assert hook[0] > 0 == hook[1]
    assert synchronized[0] > 0 == synchronized[1]
    assert before_forward[0] == 0


def test_the_table_names_the_card_and_the_stand_in() -> None:
    out = StringIO()
    print_pool_table(PoolTable('cpu', 'tape', 9, {'no copy': (7, 3)}), console=Console(file=out, width=100))
    assert 'No CUDA card in use' in out.getvalue()
    assert 'of 9 parameters, cpu' in out.getvalue()
