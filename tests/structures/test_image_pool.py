import torch

from lucid.structures.image_pool import MEGA, ImagePool


def pool(megas, images=6):
    return ImagePool(images, budget_mb=megas, read=lambda index: None)


def image(value, side=512):
    return torch.full((3, side, side), value, dtype=torch.uint8)  # 0.75 MB at 512


def test_it_keeps_up_to_its_budget_and_drops_what_was_not_used_for_longest():
    kept = pool(2)
    for index in (0, 1):
        kept.put(index, image(index))
    assert kept.get(0) is not None
    kept.put(2, image(2))
    assert [kept.get(index) is not None for index in range(3)] == [True, False, True]
    assert kept.resident.tolist() == [1, 0, 1, 0, 0, 0]
    assert kept.counts['dropped'] == 1
    assert kept.num_bytes == 2 * 3 * 512 * 512 <= kept.budget


def test_its_memory_does_not_grow_over_epochs():
    kept, most = pool(2), 0
    order = torch.Generator().manual_seed(0)
    for _ in range(50):
        for index in torch.randperm(6, generator=order).tolist():
            if kept.get(index) is None:
                kept.put(index, image(index, side=256 + 64 * index))
            most = max(most, kept.num_bytes)
            assert kept.resident.sum() == len(kept)
    assert most <= 2 * MEGA
    assert kept.num_bytes == sum(kept.get(index).numel() for index in range(6) if kept.resident[index])


def test_what_is_lent_stays_valid_when_it_is_dropped():
    kept = pool(1)
    kept.put(0, image(7))
    lent = kept.get(0)
    kept.put(1, image(9))
    assert kept.get(0) is None
    assert (lent == 7).all()


def test_an_image_larger_than_the_budget_is_not_kept_and_drops_nothing():
    kept = pool(1)
    kept.put(0, image(0))
    kept.put(1, image(1, side=600))
    assert kept.resident.tolist()[:2] == [1, 0]
    nothing = pool(0)
    nothing.put(0, image(0, side=8))
    assert len(nothing) == 0


def test_workers_see_what_it_has():
    kept = pool(2)
    assert kept.resident.is_shared()
    kept.put(3, image(3))
    assert kept.resident[3] == 1
    kept.clear()
    assert not kept.resident.any()
    assert (len(kept), kept.num_bytes) == (0, 0)
