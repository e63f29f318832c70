"""Samples to a batch, on the host.

Shape suffixes: B images, H, W pixels or cells of a mask, N boxes of the whole batch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.registry import FUNCTIONS as ROOT_FUNCTIONS
from torch import Tensor
from torch.utils.data import get_worker_info

from lucid.datasets.sample import Sample
from lucid.registry import FUNCTIONS
from lucid.structures import MASK_STRIDE, PackedTargets
from lucid.structures.masks import fill_objects


# mmengine's Runner looks for a collate function in its root registry, where a child's functions are not found.
@ROOT_FUNCTIONS.register_module()
@FUNCTIONS.register_module()
def detection_collate(
    samples: Sequence[Sample], *, masks: bool = False, draw: Callable[[Sequence[Sample]], Any] | None = None
) -> dict[str, Any]:
    """Stack the images and pack the targets of one batch.

    Args:
        samples: B of them, with images of one size. Rotated boxes and keypoints are packed where they were loaded.
        masks: Fill the polygons, which must have been loaded, to masks of one cell per ``MASK_STRIDE`` pixels: rings
            are scaled first, and a cell is covered where its centre is.
        draw: Makes ``inputs`` of the samples; None draws them here. Not for configs.

    Returns:
        ``inputs``: uint8 (B, H, W, 3), RGB; ``targets``: ``PackedTargets``; ``metas``: a dict per image of
        ``image_id``, ``file``, ``original_hw`` and ``matrix``, float64 (3, 3), pixels of the file to those of
        ``inputs``.

    Raises:
        ValueError: The images differ in size, or masks are wanted and cannot be made.
    """
    sizes = {sample.size for sample in samples}
    if len(sizes) > 1:
        raise ValueError(
            f'images of one batch have the sizes {sorted(sizes)}; end the pipeline with Letterbox or RandomAffine'
        )
    counts = [len(sample.boxes) for sample in samples]
    return {
        'inputs': (draw or _draw)(samples),
        'targets': PackedTargets(
            boxes_N4=torch.from_numpy(np.concatenate([sample.boxes for sample in samples])),
            labels_N=torch.from_numpy(np.concatenate([sample.labels for sample in samples])),
            image_N=torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(counts)),
            slot_N=torch.cat([torch.arange(count) for count in counts]),
            counts=counts,
            masks_NHW=_masks(samples) if masks else None,
            rboxes_N5=_joined([sample.rboxes for sample in samples]),
            keypoints_NJ3=_joined([sample.keypoints for sample in samples]),
        ),
        'metas': [
            {
                'image_id': sample.image_id,
                'file': sample.file,
                'original_hw': sample.original_hw,
                'matrix': sample.matrix,
            }
            for sample in samples
        ],
    }


def _joined(parts: Sequence[np.ndarray | None]) -> Tensor | None:
    """The rows of all samples; None where they were not loaded."""
    known = [part for part in parts if part is not None]
    return torch.from_numpy(np.concatenate(known)) if len(known) == len(parts) > 0 else None


def _masks(samples: Sequence[Sample]) -> Tensor:
    """The filled outlines of all samples, bool (N, H, W)."""
    height, width = samples[0].size
    if height % MASK_STRIDE or width % MASK_STRIDE:
        raise ValueError(
            f'images of {width}x{height} pixels have no masks of {MASK_STRIDE} pixels a cell; '
            f'choose an image_size that {MASK_STRIDE} divides'
        )
    objects = []
    for sample in samples:
        if sample.polygons is None:
            raise ValueError(
                'detection_collate makes masks of outlines, which were not loaded; '
                "set targets=('boxes', 'masks') of the data set, or masks=False"
            )
        objects += [[ring / np.float32(MASK_STRIDE) for ring in rings] for rings in sample.polygons]
    return torch.from_numpy(fill_objects(objects, (height // MASK_STRIDE, width // MASK_STRIDE)))


def _draw(samples: Sequence[Sample]) -> Tensor:
    """The images (B, H, W, 3), each drawn straight into its place; in a loader's worker that is shared memory."""
    shape = (len(samples), *samples[0].size, 3)
    if get_worker_info() is None:
        images = torch.empty(shape, dtype=torch.uint8)
    else:
        storage = torch.UntypedStorage._new_shared(math.prod(shape))
        images = torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)
    for place, sample in zip(images.numpy(), samples, strict=True):
        sample.picture.draw_into(place)
    return images
