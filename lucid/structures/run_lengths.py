"""Run-length masks of COCO: lengths of runs down the columns, outside first, as numbers or as compressed text."""

from typing import Any

import numpy as np
from faster_coco_eval import mask as coco_mask

from lucid.structures.masks import Mask


def decode_run_lengths(segmentation: Any, size: tuple[int, int]) -> Mask:
    """The mask (H, W) that a run-length mask stands for.

    Args:
        segmentation: What a file has: ``size``, height and width, and ``counts``, a list of numbers or text.
        size: Height and width that it must have.

    Returns:
        A fresh mask.

    Raises:
        ValueError: It is none, is damaged, or has another size.
    """
    counts, stated = (segmentation.get(key) for key in ('counts', 'size'))
    if not isinstance(counts, str | list) or not isinstance(stated, list):
        raise ValueError('a run-length mask needs counts, a list of numbers or text, and size, a list')
    if stated != list(size):
        raise ValueError(f'a run-length mask has the size {stated!r:.40}, height and width of the image are {[*size]}')
    if isinstance(counts, list) and not all(isinstance(count, int) and count >= 0 for count in counts):
        raise ValueError('the counts of a run-length mask are not all whole numbers from 0')
    try:
        packed = {'size': [*size], 'counts': counts}
        if isinstance(counts, list):
            packed = coco_mask.frPyObjects(packed, *size)
        mask: Mask = np.ascontiguousarray(coco_mask.decode(packed), dtype=np.bool_)
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f'a run-length mask cannot be decoded ({str(error).partition(chr(10))[0]:.100})') from error
    return mask
