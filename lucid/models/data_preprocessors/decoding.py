"""Image files to pixels on the device."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from lucid.structures.image_pool import ImagePool
from lucid.structures.pictures import PictureBatch, Slot


def fetch_images(
    batch: PictureBatch, pool: ImagePool, device: torch.device, *, decoding: torch.cuda.Stream | None = None
) -> list[Tensor]:
    """The images of a batch's slots, from the pool, or decoded and kept there.

    Args:
        batch: Its ``content_D`` on the host.
        pool: On the same device; its counts tell how each came: ``found``, decoded on the ``device``, sent as
            ``pixels``, ``late`` (taken for kept, and gone by now), ``refused`` (by the device's decoder, which is not
            asked again), ``read`` (on the host, while the device waits).
        device: Where they go.
        decoding: Stream that does nothing else than to own what is decoded; needed for a CUDA device.

    Returns:
        One per slot, uint8 (3, H, W), ready on the current stream, not to be written to.

    Raises:
        ImageError: A ValueError: a file that cannot be read, by name.
    """
    # All that the pool lends is taken before anything new pushes it out.
    lent = {slot.place: pool.get(slot.place) for slot in batch.slots if slot.kind == 'kept'}
    here = {place: image for place, image in lent.items() if image is not None}
    here |= _decoded(_files(batch, pool, here, device), pool, device, decoding)
    images: list[Tensor] = []
    for slot in batch.slots:
        if slot.kind == 'pixels':
            pool.counts['pixels'] += 1
            pixels = batch.content_D[slot.start : slot.start + slot.length].view(*slot.size, 3)
            image = _planes(pixels.to(device, non_blocking=True))
        elif slot.place in here:
            image = here[slot.place]
        else:
            image = _read(slot, pool, device)
        if slot.place >= 0:
            here[slot.place] = image
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

    Raises:
        OutOfMemoryError: The device has no room for them.
    """
    with warnings.catch_warnings(), _unfilled():
        warnings.simplefilter('ignore')  # torchvision points to a package of its own, which comes later
        try:
            return list(decode_jpeg(list(files), mode=ImageReadMode.RGB, device=device))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return None


@contextmanager
def _unfilled() -> Iterator[None]:
    """New memory stays as it is, also where algorithms are deterministic and torch fills it.

    The current stream would fill it, for which the decoder does not wait: over the image that it had written already.
    """
    settings: Any = torch.utils.deterministic
    kept = settings.fill_uninitialized_memory
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = kept


def _files(
    batch: PictureBatch, pool: ImagePool, here: Mapping[int, Tensor], device: torch.device
) -> dict[int, tuple[Tensor, tuple[int, int]]]:
    """The JPEG files that the device decodes, with height and width: those sent, and those that the pool lost since.

    One that it has refused would have the whole batch decoded twice, together and then one by one: it is left out.
    """
    sent = {slot.place for slot in batch.slots if slot.kind != 'kept'}
    late = {slot.place: slot.size for slot in batch.slots if slot.kind == 'kept'}
    late = {place: size for place, size in late.items() if place not in sent and place not in here}
    pool.counts['late'] += len(late)
    if device.type != 'cuda':
        return {}
    files = {
        slot.place: (batch.content_D[slot.start : slot.start + slot.length], slot.size)
        for slot in batch.slots
        if slot.kind == 'jpeg' and slot.place not in pool.refused
    }
    for place, size in late.items():
        content = None if place in pool.refused else pool.content(place)
        if content is not None:
            files[place] = torch.frombuffer(bytearray(content), dtype=torch.uint8), size
    return files


def _decoded(
    files: Mapping[int, tuple[Tensor, tuple[int, int]]],
    pool: ImagePool,
    device: torch.device,
    decoding: torch.cuda.Stream | None,
) -> dict[int, Tensor]:
    """The images that the device makes of files, without those that it refuses."""
    if not files:
        return {}
    images = _on_stream([content for content, _ in files.values()], device, decoding)
    fitting = {
        place: image
        for (place, (_, size)), image in zip(files.items(), images, strict=True)
        if image is not None and image.shape[1:] == size
    }
    pool.counts['device'] += len(fitting)
    pool.counts['refused'] += len(files) - len(fitting)
    pool.refused.update(files.keys() - fitting.keys())
    return fitting


def _on_stream(
    files: Sequence[Tensor], device: torch.device, decoding: torch.cuda.Stream | None
) -> Sequence[Tensor | None]:
    """Decode while another stream is current, which may use the images from here on.

    The decoder writes on a stream of its own and waits for nobody, so its memory must be idle, not only freed in the
    order of the current stream. The allocator gives memory of ``decoding`` away again once all that was recorded on it
    has happened, and that stream itself does nothing.
    """
    if decoding is None:
        return _decode_each(files, device)
    current = torch.cuda.current_stream(device)
    with torch.cuda.stream(decoding):
        images = _decode_each(files, device)
    current.wait_stream(decoding)
    for image in images:
        if image is not None:
            image.record_stream(current)
    return images


def _decode_each(files: Sequence[Tensor], device: torch.device) -> Sequence[Tensor | None]:
    """In one call, or where that is refused one by one, None for those that are at fault."""
    images = decode_batch(files, device)
    if images is not None:
        return images
    return [one[0] if (one := decode_batch([file], device)) is not None else None for file in files]


def _read(slot: Slot, pool: ImagePool, device: torch.device) -> Tensor:
    """An image read on the host, in the process that draws: it waits for it."""
    pool.counts['read'] += 1
    return _planes(torch.tensor(pool.read(slot.place)).to(device))


def _planes(pixels_HW3: Tensor) -> Tensor:
    return pixels_HW3.permute(2, 0, 1).contiguous()
