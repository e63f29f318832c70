"""Drawing a batch of pictures on a device: each pixel looks up the one layer that it shows.

A pixel belongs to one layer per pass, so that each is computed once however many images overlap: four taps of three
channels out of one flat buffer, at 8 bits. Images are drawn in groups, which bounds what lies in between. On a card
``kernels`` does the same, bit for bit, without anything in between; the operators here say what, and run elsewhere.

Shape suffixes: G images of a group, L layers, S slots, N = G * H * W pixels, C images that change their colours.
"""

import importlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lucid.models.data_preprocessors.colors import recolor
from lucid.models.data_preprocessors.decoding import fetch_images
from lucid.structures.image_pool import ImagePool
from lucid.structures.pictures import PassBatch, PictureBatch, Recoloring

GREY = 114
"""What no image covers, in each channel of 0..255."""
GROUP_PIXELS = 2**22
GROUP_BYTES = 2**29
"""Of a group, at most: pixels of its canvases, and bytes of what it is drawn from, unless it is one image."""


def draw_pictures(
    batch: PictureBatch, pool: ImagePool, device: torch.device, *, decoding: torch.cuda.Stream | None = None
) -> Tensor:
    """Draw a batch as it comes from the loader: move it, fetch what it shows, draw.

    Args:
        batch: On the host, pinned where that should not wait.
        pool: Of images on the device.
        device: Where it is drawn, on the current stream.
        decoding: See ``fetch_images``.

    Returns:
        uint8 (B, H, W, 3), RGB, fresh.

    Raises:
        ImageError: A ValueError: a file that cannot be read, by name.
    """
    moved = batch.to(device, non_blocking=True)
    return render(moved, fetch_images(batch, pool, device, decoding=decoding))


def render(batch: PictureBatch, images: Sequence[Tensor]) -> Tensor:
    """Draw a batch.

    Args:
        batch: Its tensors on the device, but for ``content_D``.
        images: One per slot, uint8 (3, H, W) on the device.

    Returns:
        uint8 (B, H, W, 3), RGB. Beside what the host draws, a pixel differs by rounding: in single precision here.
    """
    device = batch.slot_sizes_S2.device
    drawn, kernels = torch.empty(batch.shape, dtype=torch.uint8, device=device), fused_kernels(device)
    for start, end in pairwise(_groups(batch, pixels=None if kernels else GROUP_PIXELS)):
        first, last = batch.first_slots[start], batch.first_slots[end]
        source = _Source(*_buffer(batch, images, first, last), first)
        for number, one in enumerate(batch.passes):
            part = slice(bisect_left(one.rows, start), bisect_left(one.rows, end))
            rows = one.rows[part]
            if not rows:
                continue
            canvas = _draw_layers(one, part, source, batch.size, kernels)
            for change in one.own:
                _recolor(canvas, rows, change, kernels)
            _put(drawn, rows, _join(_take(drawn, rows), canvas, one, part) if number else canvas)
            for change in one.colors:
                _recolor(drawn[start:end], range(start, end), change, kernels)
    return drawn


def fused_kernels(device: torch.device) -> Any:
    """The module ``kernels`` for a card where Triton is installed; else None."""
    if device.type != 'cuda' or find_spec('triton') is None:
        return None
    return importlib.import_module('lucid.models.data_preprocessors.kernels')


class _Source(NamedTuple):
    """The images of a group, one after the other.

    flat:       uint8, behind a grey pixel
    slots_S3:   int32, where each begins, its height and its width; the first is the grey pixel
    first_slot: the number of the group's first slot in the batch
    """

    flat: Tensor
    slots_S3: Tensor
    first_slot: int


def _groups(batch: PictureBatch, *, pixels: int | None) -> list[int]:
    """Where each group of images begins, and the end of the last; ``pixels`` are the most of its canvases."""
    height, width = batch.size
    starts, num_bytes = [0], 0
    for image, (first, last) in enumerate(pairwise(batch.first_slots)):
        own = sum(3 * slot.size[0] * slot.size[1] for slot in batch.slots[first:last])
        drawn = (image + 1 - starts[-1]) * height * width
        if image > starts[-1] and ((pixels is not None and drawn > pixels) or num_bytes + own > GROUP_BYTES):
            starts.append(image)
            num_bytes = 0
        num_bytes += own
    return [*starts, len(batch)]


def _buffer(batch: PictureBatch, images: Sequence[Tensor], first: int, last: int) -> tuple[Tensor, Tensor]:
    """All images of a group one after the other, behind a grey pixel, and int32 (1 + S, 3): begin, height, width."""
    device = batch.slot_sizes_S2.device
    parts = [torch.full((3,), GREY, dtype=torch.uint8, device=device)]
    for slot, image in zip(batch.slots[first:last], images[first:last], strict=True):
        parts.append((pad(image, (1, 1, 1, 1), value=GREY) if slot.fades else image).reshape(-1))
    sizes_S2 = pad(batch.slot_sizes_S2[first:last], (0, 0, 1, 0), value=1)
    lengths_S = 3 * sizes_S2[:, 0] * sizes_S2[:, 1]
    begins_S = lengths_S.cumsum(0) - lengths_S
    flat = torch.cat(parts)
    assert len(flat) < 2**31, 'offsets are 32 bits'
    return flat, torch.stack([begins_S, sizes_S2[:, 0], sizes_S2[:, 1]], dim=1).to(torch.int32)


def _draw_layers(one: PassBatch, part: slice, source: _Source, size: tuple[int, int], kernels: Any) -> Tensor:
    """The layers of some images, each on a canvas of its own, uint8 (G, H, W, 3)."""
    height, width = size
    maps_GL6, boxes_GL4 = one.maps_RL23[part].flatten(2), one.boxes_RL4[part]
    crops_GL4 = None if one.crops_RL4 is None else one.crops_RL4[part]
    num_images, num_layers = boxes_GL4.shape[:2]
    device = boxes_GL4.device
    # What shows no layer shows the grey pixel: the first of the buffer's images.
    slots_GL = torch.where(one.slots_RL[part] > 0, one.slots_RL[part] - source.first_slot, 0)
    if kernels is not None:
        canvas = torch.empty((num_images, height, width, 3), dtype=torch.uint8, device=device)
        kernels.draw_layers(canvas, source.flat, source.slots_S3, slots_GL, maps_GL6, boxes_GL4, crops_GL4, fill=GREY)
        return canvas
    x_W, y_H = torch.arange(width, device=device), torch.arange(height, device=device)
    xs_W, ys_H1 = x_W.float(), y_H.float()[:, None]
    # Which layer a pixel shows, 0 is none; the later layer lies over the earlier.
    shown = torch.zeros((num_images, height, width), dtype=torch.int32, device=device)
    for layer in range(num_layers):
        x1, y1, x2, y2 = boxes_GL4[:, layer, :, None].unbind(1)
        inside = ((y_H >= y1) & (y_H < y2))[:, :, None] & ((x_W >= x1) & (x_W < x2))[:, None, :]
        if crops_GL4 is not None:
            inside &= _inside(maps_GL6[:, layer], crops_GL4[:, layer], xs_W, ys_H1)
        shown.masked_fill_(inside, layer + 1)
    geometry_X3 = source.slots_S3[pad(slots_GL, (1, 0))].flatten(0, 1)
    maps_X6 = pad(maps_GL6, (0, 0, 1, 0)).flatten(0, 1)
    shown += torch.arange(num_images, device=device, dtype=torch.int32)[:, None, None] * (num_layers + 1)
    shown_N = shown.flatten()
    across, down = (
        (a * xs_W + b * ys_H1 + c)
        for a, b, c in maps_X6.index_select(0, shown_N).view(*shown.shape, 2, 3).permute(3, 4, 0, 1, 2)
    )
    begins, heights, widths = geometry_X3.index_select(0, shown_N).view(*shown.shape, 3).unbind(3)
    return _sample(source.flat, across, down, begins, heights, widths)


def _sample(flat: Tensor, across: Tensor, down: Tensor, begins: Tensor, heights: Tensor, widths: Tensor) -> Tensor:
    """Bilinear between pixel centres; beyond its border an image shows its border pixels.

    Args:
        flat: uint8, images (3, h, w) one after the other.
        across: float32 (G, H, W), column of the image.
        down: Its row.
        begins: int32, where the image begins.
        heights: Of the image.
        widths: Of the image.

    Returns:
        uint8 (G, H, W, 3).
    """
    left, top = across.floor(), down.floor()
    right_share, lower_share = across - left, down - top
    last_column, last_row = widths - 1, heights - 1
    column, row = left.to(torch.int32), top.to(torch.int32)
    columns = [torch.minimum(one.clamp(min=0), last_column) for one in (column, column + 1)]
    rows = [begins + torch.minimum(one.clamp(min=0), last_row) * widths for one in (row, row + 1)]
    plane = heights * widths
    drawn = torch.empty((*across.shape, 3), dtype=torch.uint8, device=across.device)
    for channel in range(3):
        taps = [
            [
                flat.index_select(0, (start + place + channel * plane).flatten()).view(across.shape).float()
                for place in columns
            ]
            for start in rows
        ]
        upper, lower = (first + (second - first) * right_share for first, second in taps)
        drawn[..., channel] = (upper + (lower - upper) * lower_share).round_()
    return drawn


def _inside(map_G6: Tensor, crop_G4: Tensor, xs_W: Tensor, ys_H1: Tensor) -> Tensor:
    """Which pixels show a part of an image whose map may turn or slant, bool (G, H, W)."""
    a, b, c, d, e, f = (one[:, None, None] for one in map_G6.unbind(1))
    x1, y1, x2, y2 = (one[:, None, None] for one in crop_G4.unbind(1))
    across, down = a * xs_W + b * ys_H1 + c, d * xs_W + e * ys_H1 + f
    return (across >= x1) & (across < x2) & (down >= y1) & (down < y2)


def _join(before: Tensor, canvas: Tensor, one: PassBatch, part: slice) -> Tensor:
    """What was there with what was drawn now, blended or pasted."""
    share = one.share_R[part].view(-1, 1, 1, 1)
    joined = (before * share + canvas * (1 - share)).round_().to(torch.uint8)
    for number, place in enumerate(one.pasted):
        if part.start <= place < part.stop:
            assert one.masks is not None, 'what is pasted has a mask'
            image = place - part.start
            mask = _unpacked(one.masks[number], canvas.shape[2])
            joined[image] = torch.where(mask[..., None], canvas[image], before[image])
    return joined


def _unpacked(bits: Tensor, width: int) -> Tensor:
    """A mask, bool (H, W), of bytes whose highest bit is the first pixel."""
    shifts = torch.arange(7, -1, -1, device=bits.device, dtype=torch.uint8)
    return ((bits[..., None] >> shifts) & 1).flatten(1)[:, :width].bool()


def _recolor(images: Tensor, rows: Sequence[int], change: Recoloring, kernels: Any) -> None:
    """Change the colours of those of some images, in place, that a change names."""
    part = slice(bisect_left(change.rows, rows[0]), bisect_left(change.rows, rows[-1] + 1))
    places = [bisect_left(rows, row) for row in change.rows[part]]
    tables_C2563 = change.tables_C2563[part]
    for first, start, end in _runs(places):
        run, tables = images[first : first + end - start], tables_C2563[start:end]
        if kernels is not None:
            kernels.recolor(run, tables)
        else:
            run.copy_(recolor(run, tables))


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Of ascending places, those that are neighbours: the first of each run, and which of ``places`` it is, from to."""
    start = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != places[end - 1] + 1:
            yield places[start], start, end
            start = end


def _take(images: Tensor, places: Sequence[int]) -> Tensor:
    """Some images, ascending: a view of them where they are neighbours. An index would be made on the host."""
    runs = [images[first : first + end - start] for first, start, end in _runs(places)]
    return runs[0] if len(runs) == 1 else torch.cat(runs)


def _put(images: Tensor, places: Sequence[int], values: Tensor) -> None:
    for first, start, end in _runs(places):
        images[first : first + end - start].copy_(values[start:end])
