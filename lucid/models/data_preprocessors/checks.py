"""What is wrong with a batch, found on the host before it reaches the device.

Shape suffixes: N boxes of the batch, J keypoints, H, W cells of the mask grid.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lucid.structures import MASK_STRIDE, PackedTargets

TASK_KINDS: Mapping[str, str] = {'segment': 'masks', 'oriented': 'rboxes', 'keypoint': 'keypoints'}
"""What a task learns from, next to boxes and classes."""
FIELDS: Mapping[str, str] = {'masks': 'masks_NHW', 'rboxes': 'rboxes_N5', 'keypoints': 'keypoints_NJ3'}
REMEDIES: Mapping[str, str] = {
    'masks': (
        "set train_dataloader.collate_fn=dict(type='detection_collate', masks=True), and add 'masks' to "
        'train_dataloader.dataset.targets'
    ),
    'rboxes': "add 'rboxes' to train_dataloader.dataset.targets",
    'keypoints': "add 'keypoints' to train_dataloader.dataset.targets",
}


def name_images(metas: Sequence[Mapping[str, Any]] | None, num_images: int) -> list[str]:
    """The file of each image, or its place in the batch."""
    if metas is None:
        return [f'image {index} of the batch' for index in range(num_images)]
    return [str(meta['file']) for meta in metas]


def check_images(images: Tensor, *, size_divisor: int) -> None:
    """Raise ``ValueError`` for another type, layout or size."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(
            f'images come as {images.dtype} {tuple(images.shape)}; collate uint8 images of one size as (B, H, W, 3)'
        )
    height, width = images.shape[1:3]
    if height % size_divisor or width % size_divisor or not height or not width:
        raise ValueError(
            f'images of {height}x{width} pixels: both sides must be a multiple of {size_divisor}; change image_size'
        )


def check_boxes(packed: PackedTargets, *, num_classes: int, files: Sequence[str]) -> None:
    """Raise ``ValueError`` for a label that is none of the classes, or a box that is not finite; its image is named."""
    assert len(packed.counts) == len(files), 'one count per image'
    assert sum(packed.counts) == len(packed.boxes_N4), 'the counts add up to the rows'
    if packed.labels_N.dtype != torch.int64:
        raise ValueError(f'labels are {packed.labels_N.dtype}; make them whole numbers, int64')
    _check_finite(packed, packed.boxes_N4, 'a box', files)
    known_N = (packed.labels_N >= 0) & (packed.labels_N < num_classes)
    if not known_N.all():
        row = int(known_N.int().argmin())
        raise ValueError(
            f'{files[int(packed.image_N[row])]} has label {int(packed.labels_N[row])}, but labels go from 0 to '
            f'{num_classes - 1}; repair the annotation, or set num_classes to the number of classes of the data set'
        )


def keep_kinds(packed: PackedTargets, *, task: str | None, training: bool) -> PackedTargets:
    """The targets with the kind that a task learns from alone; all kinds where no task is known.

    Args:
        packed: not changed.
        task: of the head.
        training: the kind must be there.

    Returns:
        The same tensors.

    Raises:
        ValueError: The kind is missing.
    """
    if task is None:
        return packed
    kind = TASK_KINDS.get(task)
    if training and kind is not None and getattr(packed, FIELDS[kind]) is None:
        raise ValueError(f'the batch has no {kind}, which the task {task!r} learns from; {REMEDIES[kind]}')
    return PackedTargets(
        *packed[:5], **{field: getattr(packed, field) for name, field in FIELDS.items() if name == kind}
    )


def check_kinds(
    packed: PackedTargets, *, size: tuple[int, int], num_keypoints: int | None, files: Sequence[str]
) -> None:
    """Raise ``ValueError`` for masks of another grid, and numbers of the other kinds that cannot be meant.

    Args:
        packed: on the host.
        size: height and width of the images.
        num_keypoints: J that the model has; None takes any.
        files: names of the images, for the message.
    """
    rows = len(packed.boxes_N4)
    if packed.masks_NHW is not None:
        expected = (rows, size[0] // MASK_STRIDE, size[1] // MASK_STRIDE)
        if packed.masks_NHW.dtype != torch.bool or packed.masks_NHW.shape != expected:
            raise ValueError(
                f'masks come as {packed.masks_NHW.dtype} {tuple(packed.masks_NHW.shape)}, for {rows} objects in images '
                f'of {size[0]}x{size[1]} pixels; collate torch.bool {expected}, as detection_collate does'
            )
    if packed.rboxes_N5 is not None:
        assert packed.rboxes_N5.shape == (rows, 5), 'a rotated box per row'
        _check_finite(packed, packed.rboxes_N5, 'a rotated box', files)
    if packed.keypoints_NJ3 is not None:
        _check_keypoints(packed, packed.keypoints_NJ3, num_keypoints, files)


def _check_keypoints(
    packed: PackedTargets, keypoints_NJ3: Tensor, num_keypoints: int | None, files: Sequence[str]
) -> None:
    assert len(keypoints_NJ3) == len(packed.boxes_N4), 'keypoints per row'
    found = keypoints_NJ3.shape[1]
    if num_keypoints is not None and found != num_keypoints:
        raise ValueError(
            f'objects come with {found} keypoints, the model has num_keypoints={num_keypoints}; remove '
            'model.num_keypoints, so that it is taken from the data, or give other data'
        )
    _check_finite(packed, keypoints_NJ3.flatten(1), 'keypoints', files)
    shown_NJ = keypoints_NJ3[..., 2]
    known_N = ((shown_NJ == 0) | (shown_NJ == 1) | (shown_NJ == 2)).all(dim=1)
    if not known_N.all():
        row = int(known_N.int().argmin())
        raise ValueError(
            f'{files[int(packed.image_N[row])]} has keypoints of visibility {shown_NJ[row].tolist()}; repair the '
            'annotation: 0 not labelled, 1 hidden, 2 visible'
        )


def _check_finite(packed: PackedTargets, numbers_NX: Tensor, what: str, files: Sequence[str]) -> None:
    finite_N = numbers_NX.isfinite().all(dim=1)
    if not finite_N.all():
        row = int(finite_N.int().argmin())
        is_one = what.startswith('a ')
        raise ValueError(
            f'{files[int(packed.image_N[row])]} has {what} that {"is" if is_one else "are"} not finite: '
            f'{numbers_NX[row].tolist()}; repair or remove that annotation'
        )
