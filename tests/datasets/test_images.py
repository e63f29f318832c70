import re
import struct
import zlib
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import PIL.ExifTags
import PIL.Image
import pytest
from torch._utils import ExceptionWrapper

from lucid.datasets.images import ImageError, ImageStore, check_image, image_size, image_sizes, read_image


@pytest.fixture
def picture(tmp_path):
    """A photograph-like JPEG, blue above and red below, 20x30 pixels."""
    image = np.zeros((20, 30, 3), np.uint8)
    image[:10], image[10:] = (255, 0, 0), (0, 0, 255)  # OpenCV writes BGR
    path = tmp_path / 'picture.jpg'
    cv2.imwrite(str(path), image)
    return path


def with_orientation(path: Path, orientation: int) -> Path:
    """A copy whose EXIF header says how to turn it."""
    tiff = b'II*\0\x08\0\0\0\x01\0' + b'\x12\x01\x03\0\x01\0\0\0' + bytes([orientation, 0, 0, 0]) + b'\0\0\0\0'
    body = b'Exif\0\0' + tiff
    segment = b'\xff\xe1' + (len(body) + 2).to_bytes(2, 'big') + body
    content = path.read_bytes()
    turned = path.with_name(f'turned{orientation}.jpg')
    turned.write_bytes(content[:2] + segment + content[2:])
    return turned


def test_images_are_rgb_uint8(picture):
    image = read_image(picture)
    assert image.shape == (20, 30, 3)
    assert image.dtype == np.uint8
    assert image[2, 2, 2] > 200 > 50 > image[2, 2, 0]
    assert image[18, 2, 0] > 200 > 50 > image[18, 2, 2]


def test_grey_and_transparent_files_become_three_channels(tmp_path):
    for name, shape in (('grey.png', (5, 6)), ('alpha.png', (5, 6, 4))):
        cv2.imwrite(str(tmp_path / name), np.full(shape, 9, np.uint8))
        assert read_image(tmp_path / name).shape == (5, 6, 3)


@pytest.mark.parametrize('cut', [1, 2, 10, 300])
@pytest.mark.parametrize('suffix', ['jpg', 'progressive.jpg', 'png'])
def test_a_truncated_file_is_refused_by_name(tmp_path, cut, suffix):
    path = tmp_path / f'cut.{suffix}'
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    cv2.imwrite(str(path), noise, [cv2.IMWRITE_JPEG_PROGRESSIVE, int('prog' in suffix)] if 'jpg' in suffix else [])
    read_image(path)
    # A PNG ends with 12 bytes that hold no pixels.
    path.write_bytes(path.read_bytes()[: -cut - (12 if suffix == 'png' else 0)])
    for look in (read_image, partial(check_image, size=(40, 40))):
        with pytest.raises(ImageError, match=re.escape(str(path)) + '.*truncated.*restore') as caught:
            look(path)
        assert caught.value.kind == 'broken_image'


def test_a_check_decodes_only_what_header_and_end_leave_open(tmp_path, picture, monkeypatch):
    image = cv2.imread(str(picture))
    whole = {'a.png': b'', 'padded.jpg': b'\0\0', 'a.bmp': b''}
    for name, more in whole.items():
        cv2.imwrite(str(tmp_path / name), image)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + more)
    decoded = []
    monkeypatch.setattr(
        'lucid.datasets.images.read_image', lambda path, size: decoded.append((path.name, read_image(path, size=size)))
    )
    for path in (picture, with_orientation(picture, 6), *(tmp_path / name for name in whole)):
        check_image(path, size=(20, 30))
    check_image(with_orientation(picture, 6), size=(30, 20))
    assert [name for name, _ in decoded] == ['padded.jpg', 'a.bmp', 'turned6.jpg']
    with pytest.raises(ImageError, match='30x20 pixels, the annotations say 20x30'):
        check_image(picture, size=(30, 20))


def test_an_error_from_a_loader_worker_has_no_traceback_in_it():
    try:
        raise ImageError('/data/odd: name.jpg: cannot be read; restore it', kind='missing_image')
    except ImageError:
        wrapper = ExceptionWrapper(where='in DataLoader worker process 0')
    with pytest.raises(ImageError) as caught:
        wrapper.reraise()
    assert str(caught.value) == '/data/odd: name.jpg: cannot be read; restore it'


def test_other_bad_files_are_refused_by_name_and_kind(tmp_path, picture):
    (tmp_path / 'empty.jpg').touch()
    (tmp_path / 'text.jpg').write_text('no image')
    for name, kind in (('empty.jpg', 'empty_file'), ('none.jpg', 'missing_image'), ('text.jpg', 'broken_image')):
        with pytest.raises(ValueError, match=name) as caught:
            read_image(tmp_path / name)
        assert caught.value.kind == kind
    with pytest.raises(ValueError, match='the file has 30x20 pixels, the annotations say 31x20') as caught:
        read_image(picture, size=(20, 31))
    assert caught.value.kind == 'wrong_size'


def test_an_exif_turn_is_applied_unless_the_annotations_were_made_without_it(picture):
    turned = with_orientation(picture, 6)
    assert read_image(turned).shape == (30, 20, 3)
    assert read_image(turned, size=(30, 20)).shape == (30, 20, 3)
    np.testing.assert_array_equal(read_image(turned, size=(20, 30)), read_image(picture))


def test_the_cache_holds_what_fits_and_reads_the_rest(tmp_path):
    files, mega = [], 2**20
    for index in range(3):
        files.append(str(tmp_path / f'{index}.png'))
        cv2.imwrite(files[-1], np.full((512, 512, 3), index, np.uint8))  # 0.75 MiB decoded
    store = ImageStore(files, np.full((3, 2), 512, np.int32), cache_mb=2)
    for file in files[:2]:
        Path(file).unlink()
    assert [int(store.read(index)[0, 0, 0]) for index in range(3)] == [0, 1, 2]
    assert sum(store.read(index).nbytes for index in range(2)) <= 2 * mega
    with pytest.raises(ValueError, match='read-only'):
        store.read(0)[0, 0, 0] = 1
    uncached = ImageStore(files, np.full((3, 2), 512, np.int32))
    with pytest.raises(ImageError, match=r'0\.png'):
        uncached.read(0)


def test_the_size_of_an_image_is_that_of_what_is_read(tmp_path):
    for suffix in ('jpg', 'png'):
        cv2.imwrite(str(tmp_path / f'a.{suffix}'), np.zeros((20, 30, 3), np.uint8))
        assert image_size(tmp_path / f'a.{suffix}') == (20, 30)
    for orientation, size in ((1, (20, 30)), (3, (20, 30)), (6, (30, 20))):
        exif = PIL.Image.Exif()
        exif[PIL.ExifTags.Base.Orientation] = orientation
        PIL.Image.open(tmp_path / 'a.png').save(tmp_path / 'b.jpg', exif=exif)
        assert image_size(tmp_path / 'b.jpg') == size == read_image(tmp_path / 'b.jpg').shape[:2]
    (tmp_path / 'c.jpg').write_bytes(b'no image')
    with pytest.raises(ImageError, match='no image'):
        image_size(tmp_path / 'c.jpg')
    files = [tmp_path / name for name in ('c.jpg', 'a.jpg', 'none.jpg')]
    assert image_sizes(files) == [None, (20, 30), None]


def png_of(path, width, height):
    """A PNG whose header tells a size and whose pixels are missing."""

    def chunk(kind, content):
        return struct.pack('>I', len(content)) + kind + content + struct.pack('>I', zlib.crc32(kind + content))

    header = struct.pack('>IIBBBBB', width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(100))
    path.write_bytes(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', pixels) + chunk(b'IEND', b''))
    return path


def test_the_size_of_a_very_large_image_is_read_from_its_header(tmp_path):
    # More pixels than Pillow opens, which takes them for an attack; decoding them would fail.
    path = png_of(tmp_path / 'large.png', 20000, 19000)
    assert image_size(path) == (19000, 20000)
    check_image(path, size=(19000, 20000))


def test_an_image_that_opencv_refuses_is_named_with_the_remedy(tmp_path):
    path = png_of(tmp_path / 'huge.png', 40000, 30000)
    with pytest.raises(ImageError, match=r'huge\.png: OpenCV refuses it .*set OPENCV_IO_MAX_IMAGE_PIXELS'):
        read_image(path)
