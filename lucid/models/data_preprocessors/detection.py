"""From a batch as collate makes it to tensors on the device.

Shape suffixes: B images, H rows, W columns, N boxes of the batch, M capacity.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor

from lucid.models.data_preprocessors.checks import check_boxes, check_images, check_kinds, keep_kinds, name_images
from lucid.models.data_preprocessors.drawing import draw_pictures
from lucid.models.data_preprocessors.overlap import SideStreams
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
        task: of the head, whose kind of targets must be there in training and is the only one passed on next to boxes
            and classes: masks for ``'segment'``, rboxes for ``'oriented'``, keypoints for ``'keypoint'``. None passes
            on whatever a batch has.
        num_keypoints: that objects must have; None takes any number.
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
        task: str | None = None,
        num_keypoints: int | None = None,
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
        self.task = task
        self.num_keypoints = num_keypoints
        self.size_divisor = size_divisor
        self.channels_last = channels_last
        self._streams: SideStreams | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, '_streams': None}

    def forward(self, data: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """A batch ready for ``YOLODetector.forward``.

        Args:
            data: ``inputs`` uint8 (B, H, W, 3) RGB, or a ``PictureBatch`` that is drawn here; ``targets``
                PackedTargets or None; ``metas``, one dict per image.
            training: the task's kind of targets must be there; else the same as in evaluation.

        Returns:
            ``inputs`` float32 (B, 3, H, W) in 0..1; ``targets`` Targets or None; ``metas`` as given.

        Raises:
            ValueError: wrong image type or size, numbers that are not finite, a label out of range, masks of another
                grid, another number of keypoints, a kind that is missing, or too many boxes under
                ``on_overflow='raise'``. Found before anything reaches the device; objects name their image.
        """
        images, packed, metas = data['inputs'], data.get('targets'), data.get('metas')
        check_images(images, size_divisor=self.size_divisor)
        targets = None
        if packed is not None:
            files = name_images(metas, images.shape[0])
            packed = keep_kinds(packed, task=self.task, training=training)
            check_boxes(packed, num_classes=self.num_classes, files=files)
            check_kinds(packed, size=tuple(images.shape[1:3]), num_keypoints=self.num_keypoints, files=files)
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
        if self._streams is None or self._streams.device != self.device:
            self._streams = SideStreams(self.device)
        return self._streams.draw(pictures)

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


def _pad(packed: PackedTargets, *, capacity: int) -> Targets:
    num_images = len(packed.counts)
    place_N = packed.image_N * capacity + packed.slot_N

    def padded(rows: Tensor) -> Tensor:
        room = rows.new_zeros((num_images, capacity, *rows.shape[1:]))
        room.flatten(0, 1).index_copy_(0, place_N, rows)
        return room

    masks_NHW, rboxes_N5, keypoints_NJ3 = packed.masks_NHW, packed.rboxes_N5, packed.keypoints_NJ3
    return Targets(
        boxes_BM4=padded(packed.boxes_N4),
        labels_BM=padded(packed.labels_N),
        valid_BM=padded(torch.ones_like(place_N, dtype=torch.bool)),
        masks_BMHW=None if masks_NHW is None else padded(masks_NHW),
        rboxes_BM5=None if rboxes_N5 is None else padded(rboxes_N5),
        keypoints_BMJ3=None if keypoints_NJ3 is None else padded(keypoints_NJ3),
    )
