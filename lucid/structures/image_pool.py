"""Decoded images that stay on a device."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MEGA = 2**20


class ImagePool:
    """Keeps decoded images up to a budget, those that were used last; lends them, and tells loaders which it has.

    Used by one thread, on one stream at a time. A lent image may be dropped from the pool at any time, and stays valid
    as long as somebody holds it.

    Attributes: ``counts``, how often an image was found, decoded in which way, and dropped; ``resident``, uint8 by
    index of the data set, 1 where the pool has it, in memory that workers share. A worker may read it a little late:
    then an image is sent once more, or must be had by ``content`` or ``read``. ``refused``, indices of images that the
    device's decoder has refused, which it is not asked again; no more than there are. ``stream``, the CUDA stream that
    used it last, for whose work another one must wait first.

    Args:
        num_images: Of the data set.
        budget_mb: Megabytes of pixels; 0 keeps nothing.
        read: Reads the image of an index on the host, uint8 (H, W, 3), RGB.
        content: Gives the bytes of its file where the device can decode it, else None; without, it decodes none.
    """

    def __init__(
        self,
        num_images: int,
        *,
        budget_mb: int,
        read: Callable[[int], Any],
        content: Callable[[int], bytes | None] | None = None,
    ) -> None:
        self.budget = budget_mb * MEGA
        self.read = read
        self._content = content
        self.resident = torch.zeros(num_images, dtype=torch.uint8)
        self.resident.share_memory_()  # type: ignore[no-untyped-call]
        self.refused: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.num_bytes = 0
        self.stream: Any = None
        self._images: OrderedDict[int, Tensor] = OrderedDict()

    def __len__(self) -> int:
        """Images that it has."""
        return len(self._images)

    def content(self, place: int) -> bytes | None:
        """The file of an image that the device can decode, else None."""
        return None if self._content is None else self._content(place)

    def get(self, place: int) -> Tensor | None:
        """An image (3, H, W), uint8, not to be written to; None where it is not there."""
        image = self._images.get(place)
        if image is not None:
            self._images.move_to_end(place)
            self.counts['found'] += 1
        return image

    def put(self, place: int, image: Tensor) -> None:
        """Keep an image, and drop those that were not used for longest; one larger than the budget is not kept."""
        size = image.numel()
        if size > self.budget or place in self._images:
            return
        while self.num_bytes + size > self.budget:
            oldest, dropped = self._images.popitem(last=False)
            self.resident[oldest] = 0
            self.num_bytes -= dropped.numel()
            self.counts['dropped'] += 1
        self._images[place] = image
        self.resident[place] = 1
        self.num_bytes += size

    def clear(self) -> None:
        """Keep nothing any longer."""
        self._images.clear()
        self.resident.zero_()
        self.num_bytes = 0
