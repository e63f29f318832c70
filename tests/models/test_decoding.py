"""How a batch's images come to the device, with a decoder that stands in for the card's."""

import pytest
import torch

from lucid.models.data_preprocessors import decoding
from lucid.structures.image_pool import ImagePool
from lucid.structures.pictures import PictureBatch, Slot

SIZE = (2, 3)


class Card:
    """A device that calls itself a card; tensors stay where they are."""

    type = 'cuda'


def batch(*slots, content=()):
    return PictureBatch(
        size=SIZE,
        passes=(),
        slots=slots,
        first_slots=(0, len(slots)),
        slot_sizes_S2=torch.tensor([SIZE] * len(slots)),
        content_D=torch.tensor(content, dtype=torch.uint8),
        keys=(0,),
        counts=None,
    )


def jpeg(place, start):
    """A file of one byte, which is the level that it decodes to."""
    return Slot(place, SIZE, 'jpeg', start, 1)


def fetch(monkeypatch, given, pool, decode, device=None):
    monkeypatch.setattr(decoding, 'decode_batch', decode)
    monkeypatch.setattr(torch.Tensor, 'to', lambda tensor, *args, **kwargs: tensor)
    return [int(image[0, 0, 0]) for image in decoding.fetch_images(given, pool, device or Card())]


def image_of(level, size=SIZE):
    return torch.full((3, *size), int(level), dtype=torch.uint8)


def make_pool(megas=1, content=None):
    read = lambda place: image_of(100 + place).permute(1, 2, 0).numpy()  # noqa: E731
    return ImagePool(9, budget_mb=megas, read=read, content=content)


def test_all_files_are_decoded_in_one_call_and_kept(monkeypatch):
    pool, calls = make_pool(), []
    decode = lambda files, device: calls.append(len(files)) or [image_of(file) for file in files]  # noqa: E731
    given = batch(jpeg(3, 0), jpeg(5, 1), Slot(3, SIZE, 'kept'), content=[7, 9])
    assert fetch(monkeypatch, given, pool, decode) == [7, 9, 7]
    assert calls == [2]
    assert fetch(monkeypatch, batch(Slot(5, SIZE, 'kept')), pool, decode) == [9]
    assert pool.counts['device'] == 2
    assert not pool.counts['read']


def test_what_the_decoder_refuses_is_read_on_the_host_and_the_rest_is_not(monkeypatch):
    pool = make_pool()

    def decode(files, device):
        return None if any(int(file) == 9 for file in files) else [image_of(file) for file in files]

    given = batch(jpeg(3, 0), jpeg(5, 1), jpeg(6, 2), content=[7, 9, 8])
    assert fetch(monkeypatch, given, pool, decode) == [7, 105, 8]
    assert (pool.counts['device'], pool.counts['refused'], pool.counts['read']) == (2, 1, 1)


@pytest.mark.parametrize('megas', [0, 1])
def test_what_the_decoder_has_refused_is_not_offered_again(monkeypatch, megas):
    """Sent once more, or lost by the pool: its batch is decoded in one call, and no count says that it was refused."""
    calls = []

    def decode(files, device):
        calls.append([int(file) for file in files])
        return None if 9 in calls[-1] else [image_of(file) for file in files]

    pool = make_pool(megas, content=lambda place: bytes([{3: 7, 5: 9, 6: 8}[place]]))
    given = batch(jpeg(3, 0), jpeg(5, 1), jpeg(6, 2), content=[7, 9, 8])
    assert fetch(monkeypatch, given, pool, decode) == [7, 105, 8]
    assert calls == [[7, 9, 8], [7], [9], [8]]
    calls.clear()
    assert fetch(monkeypatch, given, pool, decode) == [7, 105, 8]
    assert calls == [[7, 8]]
    assert (pool.counts['device'], pool.counts['refused'], pool.counts['read']) == (4, 1, 2)
    calls.clear()
    pool.clear()
    lost = batch(Slot(3, SIZE, 'kept'), Slot(5, SIZE, 'kept'))
    assert fetch(monkeypatch, lost, pool, decode) == [7, 105]
    assert calls == [[7]]
    assert (pool.counts['late'], pool.counts['device'], pool.counts['refused'], pool.counts['read']) == (2, 5, 1, 3)
    assert pool.refused == {5}


def test_an_image_of_another_size_is_refused_once_too(monkeypatch):
    pool, calls = make_pool(0), []
    decode = lambda files, device: calls.append(len(files)) or [image_of(file, size=(3, 2)) for file in files]  # noqa: E731
    for _ in range(2):
        assert fetch(monkeypatch, batch(jpeg(3, 0), content=[7]), pool, decode) == [103]
    assert calls == [1]
    assert (pool.counts['refused'], pool.counts['read']) == (1, 2)


def test_an_image_of_another_size_is_not_taken(monkeypatch):
    pool = make_pool()
    decode = lambda files, device: [image_of(file, size=(3, 2)) for file in files]  # noqa: E731
    assert fetch(monkeypatch, batch(jpeg(3, 0), content=[7]), pool, decode) == [103]
    assert pool.counts['refused'] == 1


def test_without_a_pool_an_image_is_shared_inside_a_batch_alone(monkeypatch):
    pool = make_pool(0)
    decode = lambda files, device: [image_of(file) for file in files]  # noqa: E731
    given = batch(jpeg(3, 0), Slot(3, SIZE, 'kept'), content=[7])
    assert fetch(monkeypatch, given, pool, decode) == [7, 7]
    # Its bytes are gone with the batch: what was taken for kept is read.
    assert fetch(monkeypatch, batch(Slot(3, SIZE, 'kept')), pool, decode) == [103]
    assert pool.counts['late'] == 1


def test_what_the_pool_lost_meanwhile_is_decoded_from_its_file_with_the_rest(monkeypatch):
    calls = []
    decode = lambda files, device: calls.append(len(files)) or [image_of(file) for file in files]  # noqa: E731
    given = batch(jpeg(3, 0), Slot(5, SIZE, 'kept'), Slot(5, SIZE, 'kept'), Slot(6, SIZE, 'kept'), content=[7])
    pool = make_pool(content=lambda place: bytes([50 + place]) if place == 5 else None)
    assert fetch(monkeypatch, given, pool, decode) == [7, 55, 55, 106]
    assert calls == [2]
    assert (pool.counts['late'], pool.counts['device'], pool.counts['read']) == (2, 2, 1)
    # Without a decoder there, the host reads all of it.
    pool = make_pool(content=lambda place: b'never asked for')
    assert fetch(monkeypatch, given, pool, decode, torch.device('cpu')) == [103, 105, 105, 106]
    assert (pool.counts['late'], pool.counts['device'], pool.counts['read']) == (2, 0, 3)


def test_what_the_pool_lends_to_a_batch_is_not_lost_to_the_new_images_of_that_batch(monkeypatch):
    pool = make_pool()
    pool.budget = 3 * SIZE[0] * SIZE[1]  # one image
    pool.put(5, image_of(9))
    decode = lambda files, device: [image_of(file) for file in files]  # noqa: E731
    assert fetch(monkeypatch, batch(jpeg(3, 0), Slot(5, SIZE, 'kept'), content=[7]), pool, decode) == [7, 9]
    assert pool.counts['late'] == 0
    assert pool.counts['dropped'] > 0


def test_new_memory_is_not_filled_while_the_decoder_which_waits_for_nobody_writes_to_it(monkeypatch):
    fills = []

    def decode(*_, **__):
        fills.append(torch.utils.deterministic.fill_uninitialized_memory)
        return []

    monkeypatch.setattr(decoding, 'decode_jpeg', decode)
    monkeypatch.setattr(torch.utils.deterministic, 'fill_uninitialized_memory', True)
    assert decoding.decode_batch([], torch.device('cpu')) == []
    assert fills == [False]
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_a_device_without_memory_is_no_fault_of_a_file(monkeypatch):
    def decode(*_, **__):
        raise errors.pop(0)

    errors = [RuntimeError('unknown chroma subsampling'), torch.OutOfMemoryError('of 2 MB')]
    monkeypatch.setattr(decoding, 'decode_jpeg', decode)
    assert decoding.decode_batch([], torch.device('cpu')) is None
    with pytest.raises(torch.OutOfMemoryError, match='of 2 MB'):
        decoding.decode_batch([], torch.device('cpu'))
