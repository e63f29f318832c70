import torch

from lucid.models.assigners.ranking import take_largest


def test_values_fall_and_equal_ones_come_by_rising_index(device: torch.device) -> None:
    values, indices = take_largest(torch.tensor([[1.0, 3.0, 2.0, 3.0, 3.0, 0.0]], device=device), num=5)
    assert values.tolist() == [[3, 3, 3, 2, 1]]
    assert indices.tolist() == [[1, 3, 4, 2, 0]]


def test_it_equals_a_stable_sort_on_tied_rows_of_any_shape(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    for length in (1, 10, 84, 525, 8400):
        rows = torch.randint(0, 4, (3, 5, length), generator=generator).float().to(device)
        expected = torch.sort(rows, dim=-1, descending=True, stable=True)
        num = min(10, length)
        values, indices = take_largest(rows.clone(), num=num)
        assert torch.equal(values, expected.values[..., :num])
        assert torch.equal(indices, expected.indices[..., :num])


def test_topk_does_not_order_ties_so() -> None:
    rows = torch.randint(0, 4, (300, 84), generator=torch.Generator().manual_seed(0)).float()
    assert not torch.equal(rows.topk(10).indices, take_largest(rows.clone(), num=10)[1])


def test_a_short_row_ends_in_minus_infinity() -> None:
    values, _ = take_largest(torch.tensor([2.0, 1.0]), num=4)
    assert values.tolist() == [2, 1, float('-inf'), float('-inf')]
