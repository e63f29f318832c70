"""What is sent along with a batch of pictures for a device to draw them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lucid.datasets.file_reader import FileReader
from lucid.datasets.layers import Layer, Source
from lucid.structures.pictures import Slot


class Cargo:
    """The slots of a batch and the bytes that are sent with them; an image is sent once.

    Attributes: ``slots``, one per layer; ``counts``, how many images are sent in which way, by reason.

    Args:
        layers: Of all pictures, in their order.
        resident: uint8 by index of the data set, which images the device has; those are not sent.
        files: Reads those that are sent as they are; None where the device decodes none, and all are decoded here.

    Raises:
        ImageError: A file that the device cannot decode cannot be read here either.
    """

    def __init__(self, layers: Sequence[Layer], *, resident: Tensor, files: FileReader | None) -> None:
        self.slots: list[Slot] = []
        self.counts: Counter[str] = Counter()
        self._parts: list[np.ndarray] = []
        self._length = 0
        missing: dict[int, Source] = {}
        for layer in layers:
            place = _place(layer.source)
            # Asked for once: another process may change it meanwhile.
            if place >= 0 and place not in missing and not resident[place]:
                missing[place] = layer.source
        found = files.read(list(missing.values())) if files is not None else [None] * len(missing)
        contents = dict(zip(missing, found, strict=True))
        for layer in layers:
            source, place, fades = layer.source, _place(layer.source), layer.crop is None
            if place >= 0 and place not in contents:
                self.slots.append(Slot(place, source.size, 'kept', fades=fades))
                continue
            # Of one image that is shown twice, the second slot finds it sent.
            kind, part = self._packed(source, place, contents.pop(place, None), files)
            self.slots.append(Slot(place, source.size, kind, self._length, len(part), fades))
            self._parts.append(part)
            self._length += len(part)

    def joined(self) -> Tensor:
        """All bytes, one after the other."""
        return torch.from_numpy(np.concatenate([np.zeros(0, np.uint8), *self._parts]))

    def _packed(
        self, source: Source, place: int, content: bytes | None, files: FileReader | None
    ) -> tuple[str, np.ndarray]:
        if place < 0:
            self.counts['drawn'] += 1
        elif content is not None and files is not None:
            obstacle = files.obstacle(place, content, source.size)
            self.counts[obstacle or 'jpeg'] += 1
            if not obstacle:
                return 'jpeg', np.frombuffer(content, np.uint8)
        return 'pixels', np.ascontiguousarray(source.read()).reshape(-1)


def _place(source: Source) -> int:
    """Which image of the data set it is; -1 for pixels that belong to no file."""
    return source.place if source.pixels is None else -1
