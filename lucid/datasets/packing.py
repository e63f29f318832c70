"""Pictures of a batch as tensors, with what must be sent along for a device to draw them.

Shape suffixes: R images of a pass, L layers of an image.
"""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from lucid.datasets.colors import hsv_table
from lucid.datasets.drawing import shown_box
from lucid.datasets.images import ENDS, ORIENTATION, ImageStore
from lucid.datasets.layers import HSVParameters, Layer, Pass, Size, Source
from lucid.datasets.picture import Picture
from lucid.datasets.sample import Sample
from lucid.structures.affine import keeps_axes, translation
from lucid.structures.masks import fill_rings
from lucid.structures.pictures import PassBatch, PictureBatch, Recoloring, Slot

NOWHERE = (0, 0, 0, 0)
EVERYWHERE = (-np.inf, -np.inf, np.inf, np.inf)


class _Placed(NamedTuple):
    """A layer with its slot, the number of which is known within the batch."""

    layer: Layer
    slot: int
    fades: bool


class Packer:
    """Packs pictures; lives in a loader's workers.

    Args:
        resident: uint8 by index of the data set, which images the device has; those are not sent.
        jpeg: Whether the device decodes JPEG files; else all images are decoded here.
    """

    def __init__(self, resident: Tensor, *, jpeg: bool) -> None:
        self.resident = resident
        self.jpeg = jpeg
        self._readable: dict[int, str] = {}

    def __call__(self, samples: Sequence[Sample]) -> PictureBatch:
        """Pack the pictures of samples, in place of drawing them."""
        return self.pack([sample.picture for sample in samples], [sample.key for sample in samples])

    def pack(self, pictures: Sequence[Picture], keys: Sequence[Any]) -> PictureBatch:
        """Pack pictures of one size.

        Args:
            pictures: At least one.
            keys: What the data set was asked for.

        Returns:
            The batch, on the host.

        Raises:
            ImageError: A file that the device cannot decode cannot be read here either.
        """
        content = _Content(self)
        height, width = size = pictures[0].size
        placed: list[list[list[_Placed]]] = []
        first_slots = [0]
        for picture in pictures:
            placed.append([[content.place(layer, size) for layer in _seen(one, size)] for one in picture.passes])
            first_slots.append(len(content.slots))
        most = max(len(picture.passes) for picture in pictures)
        passes = []
        for number in range(most):
            rows = [row for row, picture in enumerate(pictures) if number < len(picture.passes)]
            given = [pictures[row].passes[number] for row in rows]
            passes.append(_pass(rows, given, [placed[row][number] for row in rows], size))
        return PictureBatch(
            size=(height, width),
            passes=tuple(passes),
            slots=tuple(content.slots),
            first_slots=tuple(first_slots),
            slot_sizes_S2=torch.tensor(
                [[side + 2 * slot.fades for side in slot.size] for slot in content.slots], dtype=torch.int64
            ).reshape(-1, 2),
            content_D=content.joined(),
            keys=tuple(keys),
            counts=content.counts,
        )

    def readable(self, place: int, content: bytes, size: Size) -> str:
        """What the device cannot decode of a file: its ``format``, ``colors``, ``turned`` or ``broken``; '' is none."""
        if place not in self._readable:
            self._readable[place] = _obstacle(content, size)
        return self._readable[place]


class _Content:
    """The slots of a batch and the bytes that are sent with them."""

    def __init__(self, packer: Packer) -> None:
        self.packer = packer
        self.slots: list[Slot] = []
        self.counts: Counter[str] = Counter()
        self._parts: list[np.ndarray] = []
        self._length = 0
        self._sent: set[int] = set()

    def place(self, layer: Layer, size: Size) -> _Placed:
        """Give a layer a slot of its own."""
        source, fades = layer.source, layer.crop is None
        place = source.place if source.pixels is None else -1
        if place >= 0 and (place in self._sent or self.packer.resident[place]):
            slot = Slot(place, source.size, 'kept', fades=fades)
        else:
            kind, part = self._read(source, place)
            slot = Slot(place, source.size, kind, self._length, len(part), fades)
            self._parts.append(part)
            self._length += len(part)
            if place >= 0:
                self._sent.add(place)
        self.slots.append(slot)
        return _Placed(layer, len(self.slots) - 1, fades)

    def joined(self) -> Tensor:
        """All bytes, one after the other."""
        return torch.from_numpy(np.concatenate([np.zeros(0, np.uint8), *self._parts]))

    def _read(self, source: Source, place: int) -> tuple[str, np.ndarray]:
        store = source.reader
        if place < 0:
            self.counts['drawn'] += 1
        elif self.packer.jpeg and isinstance(store, ImageStore) and (path := Path(str(store.files[place]))).is_file():
            content = path.read_bytes()
            obstacle = self.packer.readable(place, content, source.size)
            self.counts[obstacle or 'jpeg'] += 1
            if not obstacle:
                return 'jpeg', np.frombuffer(content, np.uint8)
        return 'pixels', np.ascontiguousarray(source.read()).reshape(-1)


def _obstacle(content: bytes, size: Size) -> str:
    try:
        with PIL.Image.open(io.BytesIO(content)) as header:
            if header.format != 'JPEG':
                return 'format'
            if header.mode not in ('RGB', 'L'):
                return 'colors'
            if header.size[::-1] != size or header.getexif().get(ORIENTATION, 1) != 1:
                return 'turned'
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError):
        return 'broken'
    return '' if content.endswith(ENDS['JPEG']) else 'broken'


def _seen(one: Pass, size: Size) -> list[Layer]:
    """The layers of which something may be on the canvas."""
    boxes = [NOWHERE if layer.crop is None else shown_box(layer, size) for layer in one.layers]
    return [
        layer
        for layer, (x1, y1, x2, y2) in zip(one.layers, boxes, strict=True)
        if layer.crop is None or (x1 < x2 and y1 < y2)
    ]


def _pass(rows: Sequence[int], given: Sequence[Pass], placed: Sequence[Sequence[_Placed]], size: Size) -> PassBatch:
    height, width = size
    most = max(1, *map(len, placed))
    maps = np.zeros((len(rows), most, 2, 3), np.float32)
    boxes = np.zeros((len(rows), most, 4), np.int32)
    slots = np.zeros((len(rows), most), np.int64)
    crops = np.full((len(rows), most, 4), EVERYWHERE, np.float32)
    for row, layers in enumerate(placed):
        for number, (layer, slot, fades) in enumerate(layers):
            centres = translation(-0.5, -0.5) @ np.linalg.inv(layer.matrix) @ translation(0.5, 0.5)
            maps[row, number] = (translation(1, 1) @ centres if fades else centres)[:2]
            boxes[row, number] = (0, 0, width, height) if fades else shown_box(layer, size)
            slots[row, number] = slot + 1
            if layer.crop is not None and not keeps_axes(layer.matrix):
                crops[row, number] = np.array(layer.crop) - 0.5
    pasted = [row for row, one in enumerate(given) if one.rings is not None]
    masks = [np.packbits(fill_rings(given[row].rings or [], size), axis=1) for row in pasted]
    return PassBatch(
        rows=tuple(rows),
        maps_RL23=torch.from_numpy(maps),
        boxes_RL4=torch.from_numpy(boxes),
        slots_RL=torch.from_numpy(slots),
        crops_RL4=torch.from_numpy(crops) if np.isfinite(crops).any() else None,
        share_R=torch.tensor([one.share for one in given], dtype=torch.float32),
        pasted=tuple(pasted),
        masks=torch.from_numpy(np.stack(masks)) if masks else None,
        own=_recolorings(rows, [one.own for one in given]),
        colors=_recolorings(rows, [one.colors for one in given]),
    )


def _recolorings(rows: Sequence[int], changes: Sequence[Sequence[HSVParameters]]) -> tuple[Recoloring, ...]:
    """The first change of every image that has one, then the second, and so on."""
    turns: list[Recoloring] = []
    for turn in zip_longest(*changes):
        found: Mapping[int, HSVParameters] = {row: one for row, one in zip(rows, turn, strict=True) if one is not None}
        tables = torch.from_numpy(np.stack([hsv_table(one) for one in found.values()]))
        turns.append(Recoloring(tuple(found), tables))
    return tuple(turns)
