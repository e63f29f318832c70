"""Image files to pixels on the device."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from lucid.structures.image_pool import ImagePool
from lucid.structures.pictures import PictureBatch, Slot


def fetch_images(batch: PictureBatch, pool: ImagePool, device: torch.device) -> list[Tensor]:
    """The images of a batch's slots, from the pool, or decoded and kept there.

    Args:
        batch: Its ``content_D`` on the host.
        pool: On the same device; its counts tell how each came: ``found``, decoded on the ``device``, sent as
            ``pixels``, ``late`` (taken for kept, and gone by now), ``refused`` (by the device's decoder).
        device: Where they go.

    Returns:
        One per slot, uint8 (3, H, W), not to be written to.

    Raises:
        ImageError: A ValueError: a file that cannot be read, by name.
    """
    sent: dict[int, Tensor] = {}
    decoded = _decoded(batch, pool, device)
    images: list[Tensor] = []
    for place, slot in enumerate(batch.slots):
        image = pool.get(slot.place) if slot.kind == 'kept' and slot.place not in sent else sent.get(slot.place)
        if place in decoded:
            image = decoded[place]
        elif slot.kind == 'pixels':
            pool.counts['pixels'] += 1
            pixels = batch.content_D[slot.start : slot.start + slot.length].view(*slot.size, 3)
            image = _planes(pixels.to(device, non_blocking=True))
        if image is None:
            pool.counts['late'] += slot.kind == 'kept'
            image = _read(slot, pool, device)
        if slot.place >= 0:
            sent[slot.place] = image
            pool.put(slot.place, image)
        images.append(image)
    return images


def decode_batch(files: Sequence[Tensor], device: torch.device) -> list[Tensor] | None:
    """JPEG files to images on a CUDA device, by the card's own decoder where it has one.

    Args:
        files: Their bytes, uint8 (D,), on the host.
        device: A CUDA device.

    Returns:
        uint8 (3, H, W) each; None where the decoder refuses one of them, or all.
    """
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # torchvision points to a package of its own, which comes later
        try:
            return list(decode_jpeg(list(files), mode=ImageReadMode.RGB, device=device))
        except RuntimeError:
            return None


def _decoded(batch: PictureBatch, pool: ImagePool, device: torch.device) -> dict[int, Tensor]:
    """The slots whose files the device decodes; without one, and of those that it refuses, none."""
    jpegs = {place: slot for place, slot in enumerate(batch.slots) if slot.kind == 'jpeg'}
    if not jpegs or device.type != 'cuda':
        return {}
    files = {place: batch.content_D[slot.start : slot.start + slot.length] for place, slot in jpegs.items()}
    images = decode_batch(list(files.values()), device)
    if images is None:
        pairs = [(place, decode_batch([file], device)) for place, file in files.items()]
        found = {place: one[0] for place, one in pairs if one is not None}
    else:
        found = dict(zip(files, images, strict=True))
    fitting = {place: image for place, image in found.items() if image.shape[1:] == jpegs[place].size}
    pool.counts['device'] += len(fitting)
    pool.counts['refused'] += len(jpegs) - len(fitting)
    return fitting


def _read(slot: Slot, pool: ImagePool, device: torch.device) -> Tensor:
    """An image read on the host, in the process that draws: it waits for it."""
    pool.counts['read'] += 1
    return _planes(torch.tensor(pool.read(slot.place)).to(device))


def _planes(pixels_HW3: Tensor) -> Tensor:
    return pixels_HW3.permute(2, 0, 1).contiguous()
