"""Decoding every image of a split once: what is wrong with the file, and what finds the same picture again.

Shape suffixes: A, B images of two splits, D values of a thumbnail.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from lucid.datasets.images import READERS, Image, ImageError, read_image
from lucid.structures.affine import Float32

SIDE = 48
"""Pixels of a thumbnail."""
BLUR = 2.0
"""Pixels of the thumbnail; structure broader than that, such as light that falls off, says little."""
FLAT = 1.0
"""Grey levels of standard deviation below which a thumbnail shows nothing that could be recognised."""
ALIKE = 0.88
"""Correlation of thumbnails from which on two pictures are nearly the same."""
ROWS = 1024


class Fingerprint(NamedTuple):
    """One image file.

    error:     why it is no usable image, else None
    content:   digest of the file's bytes; empty where it cannot be read
    pixels:    digest of size and decoded pixels; empty where there are none
    thumbnail: float16 (D,), zero mean and unit length; None of a flat picture, or where there are no pixels
    """

    error: ImageError | None
    content: bytes
    pixels: bytes
    thumbnail: NDArray[np.float16] | None


class Duplicate(NamedTuple):
    """An image that is there twice.

    kind:        same_file (the same bytes), same_picture (the same pixels), near_duplicate
    file:        the later one
    other:       the earlier one
    correlation: of their thumbnails; 1 for the first two kinds
    """

    kind: str
    file: str
    other: str
    correlation: float


def fingerprints(files: Sequence[str], sizes: Sequence[tuple[int, int]]) -> Iterator[Fingerprint]:
    """The fingerprint of each file, in their order, made in threads; sizes are height and width that each must have."""
    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(fingerprint, files, sizes)


def fingerprint(file: str, size: tuple[int, int]) -> Fingerprint:
    """Decode an image; what is wrong with it is returned, not raised."""
    try:
        content = hashlib.blake2b(Path(file).read_bytes(), digest_size=16).digest()
    except OSError:
        content = b''
    try:
        image = read_image(file, size=size)
    except ImageError as error:
        return Fingerprint(error, content, b'', None)
    pixels = hashlib.blake2b(image.tobytes(), digest_size=16)
    pixels.update(repr(image.shape).encode())
    return Fingerprint(None, content, pixels.digest(), thumbnail(image))


def thumbnail(image: Image) -> NDArray[np.float16] | None:
    """What recognises a picture that was stored, resized or brightened anew, or moved by a pixel.

    Grey, ``SIDE`` pixels square, without its broad structure.

    Args:
        image: uint8 (H, W, 3), RGB.

    Returns:
        float16 (D,), zero mean and unit length; None where the picture is flat.
    """
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)
    detail = (small - cv2.GaussianBlur(small, (0, 0), BLUR)).ravel()
    detail -= detail.mean()
    if detail.std() < FLAT:
        return None
    return (detail / np.linalg.norm(detail)).astype(np.float16)


def repeated(files: Sequence[str], prints: Sequence[Fingerprint]) -> list[Duplicate]:
    """Images of one split that are there twice: the same bytes or the same pixels; near duplicates are not looked for.

    Args:
        files: Paths.
        prints: Of each file.

    Returns:
        One for each image that an earlier one equals.
    """
    found, seen = [], _Seen()
    for file, one in zip(files, prints, strict=True):
        if same := seen.find(one):
            found.append(Duplicate(same[0], file, same[1], 1.0))
        else:
            seen.add(file, one)
    return found


def shared(
    files: Sequence[str], prints: Sequence[Fingerprint], other_files: Sequence[str], other_prints: Sequence[Fingerprint]
) -> list[Duplicate]:
    """Images of a split that another split has too, or nearly.

    Args:
        files: Paths of the first split.
        prints: Of each of its files.
        other_files: Paths of the second split.
        other_prints: Of each of its files.

    Returns:
        At most one for each image of the second split: ``file`` is of the second split, ``other`` of the first.
    """
    seen = _Seen()
    for file, one in zip(files, prints, strict=True):
        seen.add(file, one)
    found, rest = {}, []
    for index, one in enumerate(other_prints):
        if same := seen.find(one):
            found[index] = Duplicate(same[0], other_files[index], same[1], 1.0)
        elif one.thumbnail is not None:
            rest.append(index)
    known = [index for index, one in enumerate(prints) if one.thumbnail is not None]
    for start in range(0, len(rest) if known else 0, ROWS):
        part = rest[start : start + ROWS]
        best_B, index_B = _most_alike([prints[i] for i in known], [other_prints[i] for i in part])
        for index, best, nearest in zip(part, best_B.tolist(), index_B.tolist(), strict=True):
            if best >= ALIKE:
                near = files[known[nearest]]
                found[index] = Duplicate('near_duplicate', other_files[index], near, round(best, 3))
    return [found[index] for index in sorted(found)]


def duplicates(
    splits: Mapping[str, tuple[Sequence[str], Sequence[Fingerprint]]],
) -> dict[tuple[str, str], list[Duplicate]]:
    """All duplicates, by pair of splits; a pair of the same name twice holds those inside the split."""
    inside = {(name, name): repeated(*split) for name, split in splits.items()}
    return inside | {(a, b): shared(*splits[a], *splits[b]) for a, b in combinations(splits, 2)}


def _most_alike(prints: Sequence[Fingerprint], others: Sequence[Fingerprint]) -> tuple[Float32, NDArray[np.int64]]:
    """For each of ``others`` the largest correlation with any of ``prints``, and with which."""
    others_BD = _stacked(others)
    best_B, index_B = np.full(len(others), -2, np.float32), np.zeros(len(others), np.int64)
    for start in range(0, len(prints), ROWS):
        alike_BA = np.matmul(others_BD, _stacked(prints[start : start + ROWS]).T)
        nearest_B = alike_BA.argmax(axis=1)
        value_B = alike_BA[np.arange(len(others)), nearest_B]
        better_B = value_B > best_B
        best_B[better_B], index_B[better_B] = value_B[better_B], nearest_B[better_B] + start
    return best_B, index_B


def _stacked(prints: Sequence[Fingerprint]) -> Float32:
    return np.stack([one.thumbnail for one in prints if one.thumbnail is not None]).astype(np.float32)


class _Seen:
    """Files by what they hold; the first one with a content counts."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, bytes], str] = {}

    def add(self, file: str, one: Fingerprint) -> None:
        for kind, digest in (('same_file', one.content), ('same_picture', one.pixels)):
            if one.pixels:  # broken files are a problem of their own
                self._files.setdefault((kind, digest), file)

    def find(self, one: Fingerprint) -> tuple[str, str] | None:
        """Kind and file."""
        keys = (('same_file', one.content), ('same_picture', one.pixels))
        return next(((key[0], self._files[key]) for key in keys if one.pixels and key in self._files), None)
