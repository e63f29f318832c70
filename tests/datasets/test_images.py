import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from lucid.datasets.images import ImageError, ImageStore, read_image


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
    with pytest.raises(ImageError, match=re.escape(str(path)) + '.*truncated.*restore') as caught:
        read_image(path)
    assert caught.value.kind == 'broken_image'


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
