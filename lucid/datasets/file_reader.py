"""Image files as they are, for a device to decode."""

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import PIL.Image

from lucid.datasets.images import ENDS, ORIENTATION, ImageStore
from lucid.datasets.layers import Size, Source

THREADS = 4
"""That read at the same time, so that storage which answers late is asked for several files at once."""


class FileReader:
    """Reads compressed images with a few threads, and tells which of them a device can decode.

    May be carried into another process at any time: threads start with the first files that are read there.
    """

    def __init__(self) -> None:
        self._obstacles: dict[int, str] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._process = -1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_pool': None, '_process': -1}

    def read(self, sources: Sequence[Source]) -> list[bytes | None]:
        """The bytes of their files, None for a source that has none."""
        paths = [_path(source) for source in sources]
        if len(paths) < THREADS:
            return _read(paths)
        if self._pool is None or self._process != os.getpid():  # threads do not survive a fork
            self._pool, self._process = ThreadPoolExecutor(THREADS, 'files'), os.getpid()
        parts = list(self._pool.map(_read, [paths[start::THREADS] for start in range(THREADS)]))
        return [parts[place % THREADS][place // THREADS] for place in range(len(paths))]

    def obstacle(self, place: int, content: bytes, size: Size) -> str:
        """What the device cannot decode of a file: its ``format``, ``colors``, ``turned`` or ``broken``; '' is none."""
        if place not in self._obstacles:
            self._obstacles[place] = _obstacle(content, size)
        # Its header is looked at once; whether it is whole each time, because a file may be cut short meanwhile.
        return self._obstacles[place] or ('' if content.endswith(ENDS['JPEG']) else 'broken')


def _path(source: Source) -> Path | None:
    store = source.reader
    return Path(str(store.files[source.place])) if isinstance(store, ImageStore) else None


def _read(paths: Sequence[Path | None]) -> list[bytes | None]:
    """Their bytes; a file that cannot be read has none, and the image's own reader says why."""
    contents: list[bytes | None] = []
    for path in paths:
        try:
            contents.append(None if path is None else path.read_bytes())
        except OSError:
            contents.append(None)
    return contents


def _obstacle(content: bytes, size: Size) -> str:
    """What its header says."""
    try:
        with PIL.Image.open(io.BytesIO(content)) as header:
            if header.format != 'JPEG':
                return 'format'
            if header.mode not in ('RGB', 'L') or _unmixed(header):
                return 'colors'
            if header.size[::-1] != size or header.getexif().get(ORIENTATION, 1) != 1:
                return 'turned'
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError):
        return 'broken'
    return ''


def _unmixed(header: PIL.Image.Image) -> bool:
    """Whether a JPEG stores red, green and blue as they are: a decoder that overlooks it gives wrong colours."""
    names = bytes(name for name, *_ in getattr(header, 'layer', ()))
    return header.mode == 'RGB' and (header.info.get('adobe_transform') == 0 or names == b'RGB')
