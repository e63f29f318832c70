"""What is sent to a device, and what is not."""

import cv2
import numpy as np
import PIL.Image
import pytest
import torch

from lucid.datasets.file_reader import FileReader
from lucid.datasets.images import ImageError, ImageStore
from lucid.datasets.layers import HSVParameters, Source
from lucid.datasets.packing import Packer
from lucid.datasets.picture import Picture
from lucid.structures.affine import translation

SIZE = (20, 30)


@pytest.fixture
def store(tmp_path):
    """Files of the kinds that there are, all of 30x20 pixels, and what is to be said of each."""
    image = cv2.resize(np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8), SIZE[::-1])
    rgb = PIL.Image.fromarray(image)
    exif = PIL.Image.Exif()
    exif[0x0112] = 3
    rgb.save(tmp_path / 'plain.jpg')
    rgb.convert('L').save(tmp_path / 'grey.jpg')
    rgb.save(tmp_path / 'progressive.jpg', progressive=True)
    rgb.save(tmp_path / 'unmixed.jpg', keep_rgb=True)
    unmarked = (tmp_path / 'unmixed.jpg').read_bytes().replace(b'\xff\xee\x00\x0eAdobe', b'\xff\xec\x00\x0eAdobe')
    (tmp_path / 'unmarked.jpg').write_bytes(unmarked)
    rgb.save(tmp_path / 'image.png')
    rgb.convert('CMYK').save(tmp_path / 'print.jpg')
    rgb.save(tmp_path / 'upside_down.jpg', exif=exif)
    (tmp_path / 'padded.jpg').write_bytes((tmp_path / 'plain.jpg').read_bytes() + b'\0\0')
    kinds = {
        'plain.jpg': 'jpeg',
        'grey.jpg': 'jpeg',
        'progressive.jpg': 'jpeg',
        'image.png': 'format',
        'print.jpg': 'colors',
        'unmixed.jpg': 'colors',
        'unmarked.jpg': 'colors',
        'upside_down.jpg': 'turned',
        'padded.jpg': 'broken',
    }
    files = [str(tmp_path / name) for name in kinds]
    return ImageStore(files, np.full((len(files), 2), SIZE, np.int32)), list(kinds.values())


def picture(store, place):
    return Picture.read_by(Source(SIZE, store, place))


def sent(batch, number):
    slot = batch.slots[number]
    return batch.content_D[slot.start : slot.start + slot.length].numpy()


def test_what_the_device_cannot_decode_is_decoded_here_and_counted(store):
    store, kinds = store
    packer = Packer(torch.zeros(len(kinds), dtype=torch.uint8), files=FileReader())
    batch = packer.pack([picture(store, place) for place in range(len(kinds))], range(len(kinds)))
    assert batch.counts == {'jpeg': 3, 'format': 1, 'colors': 3, 'turned': 1, 'broken': 1}
    for place, kind in enumerate(kinds):
        assert batch.slots[place].kind == ('jpeg' if kind == 'jpeg' else 'pixels')
        if kind == 'jpeg':
            with open(store.files[place], 'rb') as file:
                assert sent(batch, place).tobytes() == file.read()
        else:
            np.testing.assert_array_equal(sent(batch, place).reshape(*SIZE, 3), store.read(place))
    # Without a decoder there, all are decoded here.
    here = Packer(packer.resident, files=None).pack([picture(store, 0)], [0])
    assert here.slots[0].kind == 'pixels'
    np.testing.assert_array_equal(sent(here, 0).reshape(*SIZE, 3), store.read(0))


def test_a_truncated_file_stops_packing_with_its_name(store):
    store, kinds = store
    path = store.files[0]
    with open(path, 'rb') as file:
        content = file.read()
    with open(path, 'wb') as file:
        file.write(content[:-20])
    packer = Packer(torch.zeros(len(kinds), dtype=torch.uint8), files=FileReader())
    with pytest.raises(ImageError, match=r'plain\.jpg.*truncated'):
        packer.pack([picture(store, 0)], [0])


def test_an_image_is_sent_once_and_not_at_all_where_it_is_resident_or_unseen(store):
    store, kinds = store
    resident = torch.zeros(len(kinds), dtype=torch.uint8)
    resident[1] = 1
    outside = Picture.collage([picture(store, 2).warped(translation(100, 0), SIZE), picture(store, 3)])
    batch = Packer(resident, files=FileReader()).pack(
        [picture(store, 0), picture(store, 1), picture(store, 0), outside], range(4)
    )
    assert [(slot.place, slot.kind) for slot in batch.slots] == [(0, 'jpeg'), (1, 'kept'), (0, 'kept'), (3, 'pixels')]
    assert batch.first_slots == (0, 1, 2, 3, 4)
    assert len(batch.content_D) == batch.slots[0].length + batch.slots[3].length
    assert (batch.shape, len(batch), batch.ndim, batch.dtype) == ((4, *SIZE, 3), 4, 4, torch.uint8)


def test_pixels_that_a_picture_had_drawn_are_sent_and_counted(store):
    store, kinds = store
    drawn = picture(store, 0).recolored(HSVParameters(0.1, 0.5, 0.5)).warped(translation(0.5, 0), SIZE)
    batch = Packer(torch.ones(len(kinds), dtype=torch.uint8), files=FileReader()).pack([drawn], [0])
    assert [(slot.place, slot.kind) for slot in batch.slots] == [(-1, 'pixels')]
    assert batch.counts == {'drawn': 1}


def test_a_batch_is_pinned_and_moved_without_its_files(store, monkeypatch):
    store, kinds = store
    colors = HSVParameters(0.1, 0.5, 0.5)
    ring = np.array([[3, 4], [25, 2], [9, 17]], np.float32)
    whole = picture(store, 0).pasted(picture(store, 1).recolored(colors), [ring]).recolored(colors)
    batch = Packer(torch.zeros(len(kinds), dtype=torch.uint8), files=FileReader()).pack([whole], [0])
    moved = batch.to(torch.device('meta'))
    tensors = [
        part
        for one in moved.passes
        for value in (*one[:8], *(change.tables_C2563 for change in (*one.own, *one.colors)))
        for part in [value]
        if isinstance(part, torch.Tensor)
    ]
    assert len(tensors) == 2 * 4 + 1 + 2
    assert {tensor.device.type for tensor in (*tensors, moved.slot_sizes_S2)} == {'meta'}
    assert moved.content_D is batch.content_D
    monkeypatch.setattr(torch.Tensor, 'pin_memory', lambda tensor: tensor.clone())
    pinned = batch.pin_memory()
    assert pinned.content_D is batch.content_D  # files alone, which a decoder reads on the host
    assert pinned.passes[1].masks is not batch.passes[1].masks
    pixels = Packer(torch.zeros(len(kinds), dtype=torch.uint8), files=None).pack([whole], [0])
    copied = pixels.pin_memory().content_D
    assert copied is not pixels.content_D
    assert torch.equal(copied, pixels.content_D)
