"""Reading image files."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import cv2
import mmcv
import numpy as np
import PIL.ExifTags
import PIL.Image
from numpy.typing import NDArray
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

Image = NDArray[np.uint8]
READERS = 8
"""Threads that decode ahead of training; OpenCV releases the interpreter while it decodes."""
ENDS = {'JPEG': b'\xff\xd9', 'PNG': b'\0\0\0\0IEND\xaeB\x60\x82'}
"""What a whole file ends with."""
PNG = b'\x89PNG'
ORIENTATION = PIL.ExifTags.Base.Orientation


class ImageError(ValueError):
    """A file that is no usable image.

    kind: one word for counting: missing_image, empty_file, broken_image, wrong_size
    """

    # The message alone must do: that is how torch makes a loader worker's exception again in the main process. What it
    # then gives is the worker's whole traceback, which ends with the message.
    def __init__(self, message: str, *, kind: str = 'broken_image') -> None:
        super().__init__(message.rpartition('ImageError: ')[2].rstrip())
        self.kind = kind


def read_image(path: str | Path, *, size: tuple[int, int] | None = None) -> Image:
    """Read an image file as uint8 (H, W, 3), RGB, turned as its EXIF orientation says.

    A file whose annotations were made without looking at that orientation is recognised by its size, and not turned.

    Args:
        path: JPEG, PNG, or whatever else OpenCV reads.
        size: Height and width that the image must have.

    Returns:
        A fresh array.

    Raises:
        ImageError: A ValueError: the file is missing, empty, truncated, no image, or of another size.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        message = f'{path}: cannot be read ({error.strerror}); restore the file or correct what leads to it'
        raise ImageError(message, kind='missing_image') from error
    if not content:
        raise ImageError(f'{path}: the file is empty (0 bytes); restore it', kind='empty_file')
    # OpenCV 5 decodes no part of a truncated file; older versions fill the rest with grey.
    try:
        image = mmcv.imfrombytes(content, flag=cv2.IMREAD_COLOR_RGB, backend='cv2')
        if image is not None and size is not None and image.shape[:2] == size[::-1] != size:
            unturned = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
            image = mmcv.imfrombytes(content, flag=unturned, backend='cv2')
    except cv2.error as error:
        raise ImageError(
            f'{path}: OpenCV refuses it ({" ".join(str(error).split())}); restore the file, or of an image of more '
            'than 2**30 pixels set OPENCV_IO_MAX_IMAGE_PIXELS to their number'
        ) from error
    if image is None:
        raise ImageError(f'{path}: {len(content)} bytes that are truncated or no image; restore the file')
    if size is not None and image.shape[:2] != size:
        raise ImageError(
            f'{path}: the file has {image.shape[1]}x{image.shape[0]} pixels, the annotations say {size[1]}x{size[0]}; '
            'use the images that were annotated',
            kind='wrong_size',
        )
    return image


def check_image(path: str | Path, *, size: tuple[int, int]) -> None:
    """Find out whether ``read_image`` would read a file, from its header and its end.

    A JPEG or PNG with the right size in its header and the right end is taken to be fine: damage between them shows
    only when it is read. Everything else is decoded.

    Args:
        path: An image file.
        size: Height and width that it must have.

    Raises:
        ImageError: As ``read_image``.
    """
    try:
        with Path(path).open('rb') as file:
            with _header(file) as header:
                fits, end = header.size[::-1] == size, ENDS.get(header.format or '')
            if fits and end is not None:
                file.seek(-len(end), os.SEEK_END)
                if file.read() == end:
                    return
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError):
        pass  # missing, no image, or one that only OpenCV knows: the reader says which
    read_image(path, size=size)


def image_size(path: str | Path) -> tuple[int, int]:
    """Height and width of what ``read_image`` would give, from the file's header where that is enough.

    Args:
        path: An image file.

    Returns:
        Pixels.

    Raises:
        ImageError: As ``read_image``.
    """
    try:
        with Path(path).open('rb') as file, _header(file) as header:
            # Of a PNG, asking would decode the whole file.
            if header.format == 'PNG' or header.getexif().get(ORIENTATION, 1) == 1:
                return header.height, header.width
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError):
        pass  # missing, no image, or one that only OpenCV knows: the reader says which
    height, width = read_image(path).shape[:2]
    return height, width


def _header(file: BinaryIO) -> ImageFile:
    """What the header of an image file says, of one with very many pixels too: they are not decoded."""
    try:
        return PIL.Image.open(file)
    except PIL.Image.DecompressionBombError:
        file.seek(0)
        kind = PngImageFile if file.read(4) == PNG else JpegImageFile
        file.seek(0)
        return kind(file)


def image_sizes(paths: Sequence[str | Path]) -> list[tuple[int, int] | None]:
    """Height and width of each image, None where it cannot be read."""

    def size_of(path: str | Path) -> tuple[int, int] | None:
        try:
            return image_size(path)
        except ImageError:
            return None

    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(size_of, paths))


class ImageStore:
    """The image files of a data set, some of them kept decoded.

    The decoded ones are made at once and in the process that builds the data set, so that loader workers forked from
    it share their memory.

    Args:
        files: One path per image.
        sizes: int (len(files), 2), height and width that each must have.
        cache_mb: Megabytes of decoded pixels to keep; the first images are kept until it is full.
    """

    def __init__(self, files: Sequence[str] | NDArray[np.str_], sizes: NDArray[np.int32], *, cache_mb: int = 0) -> None:
        self.files = files
        self.sizes = sizes
        num_cached = int((np.cumsum(sizes.prod(axis=1, dtype=np.int64) * 3) <= cache_mb * 2**20).sum())
        self._decoded: list[Image] = []
        if num_cached:
            with ThreadPoolExecutor(READERS) as pool:
                self._decoded = list(pool.map(self.read, range(num_cached)))
            for image in self._decoded:
                image.setflags(write=False)

    def read(self, index: int) -> Image:
        """The pixels of one image, perhaps shared with the cache: not to be written to."""
        if index < len(self._decoded):
            return self._decoded[index]
        height, width = self.sizes[index].tolist()
        return read_image(str(self.files[index]), size=(height, width))

    def errors(self, *, decode: bool) -> dict[int, ImageError]:
        """What is wrong with the files, by index.

        Args:
            decode: Whether to decode every image; else header and end of the file must do, as ``check_image`` says.

        Returns:
            An error for each bad image.
        """

        def error_of(index: int) -> ImageError | None:
            try:
                if decode:
                    self.read(index)
                else:
                    height, width = self.sizes[index].tolist()
                    check_image(str(self.files[index]), size=(height, width))
            except ImageError as error:
                return error
            return None

        with ThreadPoolExecutor(READERS) as pool:
            found = pool.map(error_of, range(len(self.files)))
            return {index: error for index, error in enumerate(found) if error}
