"""Pictures of a batch as tensors, with what must be sent along for a device to draw them.

Shape suffixes: R images of a pass, L layers of an image.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lucid.datasets.cargo import Cargo
from lucid.datasets.colors import hsv_tables
from lucid.datasets.drawing import Box, shown_box
from lucid.datasets.file_reader import FileReader
from lucid.datasets.layers import HSVParameters, Layer, Pass, Size
from lucid.datasets.picture import Picture
from lucid.datasets.sample import Sample
from lucid.structures.affine import keeps_axes, translation
from lucid.structures.masks import fill_rings
from lucid.structures.pictures import PassBatch, PictureBatch, Recoloring

EVERYWHERE = (-np.inf, -np.inf, np.inf, np.inf)


class _Seen(NamedTuple):
    """A layer and the pixels of the canvas that may show it; its image fades into the grey around it, or not."""

    layer: Layer
    box: Box
    fades: bool


class Packer:
    """Packs pictures; lives in a loader's workers.

    Args:
        resident: uint8 by index of the data set, which images the device has; those are not sent.
        files: Reads JPEG files for the device to decode; None where it decodes none, and all images are decoded here.
    """

    def __init__(self, resident: Tensor, *, files: FileReader | None) -> None:
        self.resident = resident
        self.files = files

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
        height, width = size = pictures[0].size
        seen = [[_seen(one, size) for one in picture.passes] for picture in pictures]
        layers = [one.layer for parts in seen for part in parts for one in part]
        cargo = Cargo(layers, resident=self.resident, files=self.files)
        # Slots are numbered as the layers come: picture by picture, pass by pass.
        starts = iter(np.cumsum([0, *(len(part) for parts in seen for part in parts)]).tolist())
        first = [[next(starts) for _ in parts] for parts in seen]
        first_slots = [*(numbers[0] for numbers in first), len(layers)]
        passes = []
        for number in range(max(len(picture.passes) for picture in pictures)):
            rows = [row for row, picture in enumerate(pictures) if number < len(picture.passes)]
            given = [pictures[row].passes[number] for row in rows]
            passes.append(
                _pass(rows, given, [seen[row][number] for row in rows], [first[row][number] for row in rows], size)
            )
        return PictureBatch(
            size=(height, width),
            passes=tuple(passes),
            slots=tuple(cargo.slots),
            first_slots=tuple(first_slots),
            slot_sizes_S2=torch.tensor(
                [[side + 2 * slot.fades for side in slot.size] for slot in cargo.slots], dtype=torch.int64
            ).reshape(-1, 2),
            content_D=cargo.joined(),
            keys=tuple(keys),
            counts=cargo.counts,
        )


def _seen(one: Pass, size: Size) -> list[_Seen]:
    """The layers of which something may be on the canvas."""
    found = []
    for layer in one.layers:
        if layer.crop is None:
            found.append(_Seen(layer, (0, 0, size[1], size[0]), True))
        elif (box := shown_box(layer, size))[0] < box[2] and box[1] < box[3]:
            found.append(_Seen(layer, box, False))
    return found


def _pass(
    rows: Sequence[int],
    given: Sequence[Pass],
    seen: Sequence[Sequence[_Seen]],
    first: Sequence[int],
    size: Size,
) -> PassBatch:
    most = max(1, *map(len, seen))
    maps = np.zeros((len(rows), most, 2, 3), np.float32)
    boxes = np.zeros((len(rows), most, 4), np.int32)
    slots = np.zeros((len(rows), most), np.int64)
    crops = np.full((len(rows), most, 4), EVERYWHERE, np.float32)
    places = [(row, number) for row, layers in enumerate(seen) for number in range(len(layers))]
    if places:
        shown = [one for layers in seen for one in layers]
        index = tuple(np.array(places).T)
        inverse = np.linalg.inv(np.stack([one.layer.matrix for one in shown]))
        centres = translation(-0.5, -0.5) @ inverse @ translation(0.5, 0.5)
        centres[:, :2, 2] += np.array([one.fades for one in shown])[:, None]  # the pixel of grey around it
        maps[index] = centres[:, :2]
        boxes[index] = [one.box for one in shown]
        slots[index] = [first[row] + number + 1 for row, number in places]
        for place, one in zip(places, shown, strict=True):
            if one.layer.crop is not None and not keeps_axes(one.layer.matrix):
                crops[place] = np.array(one.layer.crop) - 0.5
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
    for turn in itertools.zip_longest(*changes):
        found: Mapping[int, HSVParameters] = {row: one for row, one in zip(rows, turn, strict=True) if one is not None}
        tables = torch.from_numpy(hsv_tables(list(found.values())))
        turns.append(Recoloring(tuple(found), tables))
    return tuple(turns)
