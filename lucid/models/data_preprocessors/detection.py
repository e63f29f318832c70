"""From a batch as collate makes it to tensors on the device.

Shape suffixes: B images, H rows, W columns, N boxes of the batch, M capacity.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor

from lucid.models.data_preprocessors.drawing import draw_pictures
from lucid.registry import MODELS
from lucid.structures import PackedTargets, Targets
from lucid.structures.pictures import PictureBatch


@MODELS.register_module()
class DetDataPreprocessor(BaseDataPreprocessor):
    """Checks a batch on the host, moves it to the device, scales images to 0..1 and pads targets to a fixed capacity.

    Padding reads no tensor on the host: the counts that decide the capacity are Python ints.

    Args:
        num_classes: labels must be 0..num_classes-1.
        capacity: boxes per image that targets are padded to; the smallest that holds the fullest image is taken.
        on_overflow: what an image with more boxes than the largest capacity does: ``'eager'`` grows the capacity to a
            multiple of the largest (a shape that no recording knows), ``'raise'`` stops. Boxes are never cut off.
        size_divisor: what both sides of the images must be a multiple of.
        channels_last: memory format of the images.
        non_blocking: let the copy from pinned memory overlap.

    Raises:
        ValueError: ``capacity`` or ``on_overflow`` is not usable.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        capacity: Sequence[int] = (64, 128, 256),
        on_overflow: Literal['eager', 'raise'] = 'eager',
        size_divisor: int = 32,
        channels_last: bool = True,
        non_blocking: bool = True,
    ) -> None:
        super().__init__(non_blocking=non_blocking)
        if not capacity or min(capacity) < 1:
            raise ValueError(
                f'capacity={capacity!r} has no room for boxes; give positive numbers such as (64, 128, 256)'
            )
        if on_overflow not in ('eager', 'raise'):
            raise ValueError(f"on_overflow={on_overflow!r} does not exist; use 'eager' or 'raise'")
        self.num_classes = num_classes
        self.capacity = tuple(sorted(capacity))
        self.on_overflow = on_overflow
        self.size_divisor = size_divisor
        self.channels_last = channels_last
        self._stream: torch.cuda.Stream | None = None  # images in the pool are made and read on it alone

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_stream': None}

    def forward(self, data: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """A batch ready for ``YOLODetector.forward``; the same in training and evaluation.

        Args:
            data: ``inputs`` uint8 (B, H, W, 3) RGB, or a ``PictureBatch`` that is drawn here; ``targets``
                PackedTargets or None; ``metas``, one dict per image.
            training: unused; part of mmengine's interface.

        Returns:
            ``inputs`` float32 (B, 3, H, W) in 0..1; ``targets`` Targets or None; ``metas`` as given.

        Raises:
            ValueError: wrong image type or size, a box that is not finite, a label out of range, or too many boxes
                under ``on_overflow='raise'``. Found before anything reaches the device; boxes name their image.
        """
        images, packed, metas = data['inputs'], data.get('targets'), data.get('metas')
        self._check_images(images)
        targets = None
        if packed is not None:
            files = _name_images(metas, images.shape[0])
            _check_targets(packed, num_classes=self.num_classes, files=files)
            capacity = self._choose_capacity(packed.counts, files)
            targets = _pad(self.cast_data(packed), capacity=capacity)
        pixels = self._drawn(images) if isinstance(images, PictureBatch) else self.cast_data(images)
        # Permuted NHWC is NCHW in channels_last.
        inputs = pixels.permute(0, 3, 1, 2).float().div_(255)
        return {
            'inputs': inputs if self.channels_last else inputs.contiguous(),
            'targets': targets,
            'metas': metas,
        }

    def _drawn(self, pictures: PictureBatch) -> Tensor:
        """The pictures drawn on the device, uint8 (B, H, W, 3), while it still works on the step before."""
        assert pictures.pool is not None, 'the loader says where decoded images are kept'
        if self.device.type != 'cuda':
            return draw_pictures(pictures, pictures.pool, self.device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._stream):
            drawn = draw_pictures(pictures, pictures.pool, self.device)
        main = torch.cuda.current_stream(self.device)
        main.wait_stream(self._stream)
        # Allocated by the side stream, read by the main one: without this its memory could be given away too early.
        drawn.record_stream(main)
        return drawn

    def _check_images(self, images: Tensor) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3:
            raise ValueError(
                f'images come as {images.dtype} {tuple(images.shape)}; collate uint8 images of one size as (B, H, W, 3)'
            )
        height, width = images.shape[1:3]
        if height % self.size_divisor or width % self.size_divisor or not height or not width:
            raise ValueError(
                f'images of {height}x{width} pixels: both sides must be a multiple of {self.size_divisor}; '
                'change image_size'
            )

    def _choose_capacity(self, counts: Sequence[int], files: Sequence[str]) -> int:
        most = max(counts)
        for capacity in self.capacity:
            if most <= capacity:
                return capacity
        largest = self.capacity[-1]
        if self.on_overflow == 'raise':
            raise ValueError(
                f'{files[counts.index(most)]} has {most} boxes, more than capacity={self.capacity} holds; '
                "add a larger capacity to the data preprocessor, or set on_overflow='eager'"
            )
        return -(-most // largest) * largest


def _name_images(metas: Sequence[Mapping[str, Any]] | None, num_images: int) -> list[str]:
    if metas is None:
        return [f'image {index} of the batch' for index in range(num_images)]
    return [str(meta['file']) for meta in metas]


def _check_targets(packed: PackedTargets, *, num_classes: int, files: Sequence[str]) -> None:
    assert len(packed.counts) == len(files), 'one count per image'
    assert sum(packed.counts) == len(packed.boxes_N4), 'the counts add up to the rows'
    if packed.labels_N.dtype != torch.int64:
        raise ValueError(f'labels are {packed.labels_N.dtype}; make them whole numbers, int64')
    finite_N = packed.boxes_N4.isfinite().all(dim=1)
    if not finite_N.all():
        row = int(finite_N.int().argmin())
        raise ValueError(
            f'{files[int(packed.image_N[row])]} has a box that is not finite: {packed.boxes_N4[row].tolist()}; '
            'repair or remove that annotation'
        )
    known_N = (packed.labels_N >= 0) & (packed.labels_N < num_classes)
    if not known_N.all():
        row = int(known_N.int().argmin())
        raise ValueError(
            f'{files[int(packed.image_N[row])]} has label {int(packed.labels_N[row])}, but labels go from 0 to '
            f'{num_classes - 1}; repair the annotation, or set num_classes to the number of classes of the data set'
        )


def _pad(packed: PackedTargets, *, capacity: int) -> Targets:
    num_images = len(packed.counts)
    boxes, labels, image, slot = packed.boxes_N4, packed.labels_N, packed.image_N, packed.slot_N
    boxes_BM4 = boxes.new_zeros((num_images, capacity, 4))
    labels_BM = labels.new_zeros((num_images, capacity))
    valid_BM = torch.zeros((num_images, capacity), dtype=torch.bool, device=boxes.device)
    place = image * capacity + slot
    boxes_BM4.view(-1, 4).index_copy_(0, place, boxes)
    labels_BM.view(-1).index_copy_(0, place, labels)
    valid_BM.view(-1).index_fill_(0, place, True)
    return Targets(boxes_BM4, labels_BM, valid_BM)
