"""Recipes of a batch of images as tensors, for whoever draws them on a device.

Shape suffixes: B images of the batch, R images of a pass, L layers of an image, S slots (images to draw from),
C images that change their colours, H, W pixels, D bytes, 8 pixels to a byte.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lucid.structures.image_pool import ImagePool


class Recoloring(NamedTuple):
    """A change of colours of some images.

    rows:         which images of the batch, ascending
    tables_C2563: uint8, what becomes of each level of hue, saturation and value, each spread over 0..255
    """

    rows: Sequence[int]
    tables_C2563: Tensor


class PassBatch(NamedTuple):
    """What is drawn at once: layers on a grey canvas, the later over the earlier, and how they join what was there.

    rows:          which images of the batch have this pass, ascending; of the first pass all
    maps_RL23:     float32, index of a pixel on the canvas (x, y, 1) to that in the slot's image, both from pixel
                   centres: 0 is the centre of the first pixel. Beyond its border an image shows its border pixels
    boxes_RL4:     int32, x1, y1, x2, y2, pixels of the canvas that may show the layer; empty where there is no layer
    slots_RL:      int64, the slot's number from 1 to S; 0 where there is no layer
    crops_RL4:     float32, part of the slot's image that is seen, in its pixel indices; None where the boxes say all
    share_R:       float32, weight of what was there before; these layers have the rest. 0 in the first pass
    pasted:        which of ``rows``, by place, replace what was there inside of a mask instead
    masks:         uint8 (pasted, H, ceil(W / 8)), the first pixel in the highest bit; None where nothing is pasted
    own, colors:   changes of these layers alone, before they join, and of all that is drawn by then; in turn
    """

    rows: Sequence[int]
    maps_RL23: Tensor
    boxes_RL4: Tensor
    slots_RL: Tensor
    crops_RL4: Tensor | None
    share_R: Tensor
    pasted: Sequence[int]
    masks: Tensor | None
    own: Sequence[Recoloring]
    colors: Sequence[Recoloring]


class Slot(NamedTuple):
    """One image to draw from.

    place:  its index in the data set; -1 for pixels that belong to no file
    size:   height and width
    kind:   ``'jpeg'`` and ``'pixels'`` (H, W, 3) are sent along; ``'kept'`` is in the pool, or sent with another slot
    start:  where its bytes begin in ``content_D``, and ``length`` of them
    fades:  it has one pixel of grey around it, which its maps count
    """

    place: int
    size: tuple[int, int]
    kind: str
    start: int = 0
    length: int = 0
    fades: bool = False


@dataclass(frozen=True, eq=False)
class PictureBatch:
    """B images that are not drawn yet; to be taken for a uint8 tensor (B, H, W, 3), RGB, until then.

    size:           height and width
    passes:         at least one
    slots:          those of an image are neighbours, and follow those of the image before
    first_slots:    where each image's slots begin, and S
    slot_sizes_S2:  int64, height and width of each, its grey border included
    content_D:      uint8, what is sent along
    keys:           what the data set was asked for, one per image
    counts:         how many files were sent in which way, by reason
    pool:           where images are kept; set in the process that draws
    """

    size: tuple[int, int]
    passes: Sequence[PassBatch]
    slots: Sequence[Slot]
    first_slots: Sequence[int]
    slot_sizes_S2: Tensor
    content_D: Tensor
    keys: Sequence[Any]
    counts: Counter[str]
    pool: ImagePool | None = None

    ndim = 4
    dtype = torch.uint8

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def shape(self) -> torch.Size:
        """That of the tensor which it becomes."""
        return torch.Size((len(self.keys), *self.size, 3))

    def pin_memory(self) -> 'PictureBatch':
        """The same in pinned memory; torch's loader calls it. Files alone stay: decoders read them on the host."""
        copied = any(slot.kind == 'pixels' for slot in self.slots)
        return self._mapped(lambda tensor: tensor.pin_memory(), but=() if copied else ('content_D',))

    def to(self, device: torch.device, *, non_blocking: bool = False) -> 'PictureBatch':
        """The same with all that is drawn with on a device; ``content_D`` stays."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking), but=('content_D',))

    def _mapped(self, change: Callable[[Tensor], Tensor], *, but: Sequence[str] = ()) -> 'PictureBatch':
        changed = {
            field.name: _map(getattr(self, field.name), change)
            for field in fields(self)
            if field.name in ('passes', 'slot_sizes_S2', 'content_D') and field.name not in but
        }
        return replace(self, **changed)


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, PassBatch | Recoloring):
        return type(value)(*(_map(part, change) for part in value))
    if isinstance(value, tuple):
        return tuple(_map(part, change) for part in value)
    return value
