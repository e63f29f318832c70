"""What is shown of an image: its truth beside what was found, in pixels of the part of the network input that it fills.

Shape suffixes: N objects, H, W pixels.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lucid.structures.affine import translation, warp_boxes, warp_points
from lucid.structures.points import limbs_of
from lucid.structures.rotated import warp_rboxes
from lucid.structures.targets import MASK_STRIDE

_NO_OBJECTS: dict[str, Any] = {'boxes': (), 'labels': ()}


class Comparison(NamedTuple):
    """One image, of arrays of its own: what it was made from may be changed.

    image:    uint8 (H, W, 3), RGB, without the padding
    window:   left, top, right, bottom of it in the network input
    matrix:   (3, 3), from pixels of the original image to those of the network input
    truth:    objects in pixels of the network input
    found:    a prediction in pixels of the original image
    file:     of the image
    image_id: of the image
    """

    image: np.ndarray
    window: tuple[int, int, int, int]
    matrix: np.ndarray
    truth: Mapping[str, Any]
    found: Mapping[str, Any]
    file: Path
    image_id: Any

    def draw(self, painter: Any, classes: Sequence[str], keypoint_names: Sequence[str] = ()) -> np.ndarray:
        """The picture, by ``draw_comparison`` of a painter.

        Args:
            painter: Of VISUALIZERS.
            classes: Names by label.
            keypoint_names: None where there are no keypoints.

        Returns:
            uint8 (H, W, 3), RGB.
        """
        left, top, *_ = self.window
        found = _in_input(self.found, translation(-left, -top) @ self.matrix, keypoint_names)
        picture: np.ndarray = painter.draw_comparison(
            self.image, _in_window(self.truth, self.window), found, self.file.name, classes
        )
        return picture


def comparisons(
    data_batch: Mapping[str, Any], outputs: Sequence[Mapping[str, Any]], keypoint_names: Sequence[str] = ()
) -> list[Comparison]:
    """The first images of a batch.

    Args:
        data_batch: As collated, on the host.
        outputs: Predictions of as many images as there are to be.
        keypoint_names: Of the data set.

    Returns:
        As many as ``outputs``.
    """
    made = []
    for image, truth, meta, output in zip(
        data_batch['inputs'].numpy(), truths(data_batch, keypoint_names), data_batch['metas'], outputs, strict=False
    ):
        height, width = meta['original_hw']
        box = warp_boxes(meta['matrix'], np.array([[0, 0, width, height]], np.float32))[0]
        left, top, right, bottom = np.clip(box.round().astype(int), 0, (image.shape[1], image.shape[0]) * 2).tolist()
        made.append(
            Comparison(
                image[top:bottom, left:right].copy(),
                (left, top, right, bottom),
                np.array(meta['matrix'], np.float64),
                tree_map_only(np.ndarray, np.copy, truth),
                tree_map_only(Tensor, _array, dict(output)),
                Path(meta['file']),
                meta['image_id'],
            )
        )
    return made


def _array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    # numpy has no bfloat16
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()


def truths(data_batch: Mapping[str, Any], keypoint_names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Objects of each image of a batch, in pixels of the network input; none where the batch has no targets."""
    targets = data_batch.get('targets')
    if targets is None:
        return [_NO_OBJECTS] * len(data_batch['metas'])
    counts = list(targets.counts)
    columns = {
        'boxes': targets.boxes_N4,
        'labels': targets.labels_N,
        'masks': targets.masks_NHW,
        'rboxes': targets.rboxes_N5,
        'keypoints': targets.keypoints_NJ3,
    }
    parts = {key: values.split(counts) for key, values in columns.items() if values is not None}
    limbs = limbs_of(keypoint_names)
    return [{'limbs': limbs, **{key: values[i].numpy() for key, values in parts.items()}} for i in range(len(counts))]


def _in_window(truth: Mapping[str, Any], window: tuple[int, int, int, int]) -> dict[str, Any]:
    """Objects in pixels of a window of the network input, instead of all of it."""
    left, top, right, bottom = window
    shift = np.array([left, top], np.float32)
    moved = {**truth, 'boxes': np.asarray(truth['boxes'], dtype=np.float32).reshape(-1, 4) - np.tile(shift, 2)}
    if truth.get('masks') is not None:
        pixels = truth['masks'].repeat(MASK_STRIDE, axis=1).repeat(MASK_STRIDE, axis=2)
        moved['masks'] = pixels[:, top:bottom, left:right]
    if truth.get('rboxes') is not None:
        moved['rboxes'] = truth['rboxes'] - np.append(shift, [0, 0, 0]).astype(np.float32)
    if truth.get('keypoints') is not None:
        moved['keypoints'] = truth['keypoints'] - np.append(shift, 0).astype(np.float32)
    return moved


def _in_input(output: Mapping[str, Any], matrix: np.ndarray, keypoint_names: Sequence[str]) -> dict[str, Any]:
    """A prediction in the pixels that its original image's are mapped to; its masks cover that image anyway."""
    moved = {**output, 'boxes': warp_boxes(matrix, np.asarray(output['boxes'], dtype=np.float32).reshape(-1, 4))}
    if output.get('rboxes') is not None:
        moved['rboxes'] = warp_rboxes(matrix, np.asarray(output['rboxes'], dtype=np.float32).reshape(-1, 5))
    if output.get('keypoints') is not None:
        moved['keypoints'] = warp_points(matrix, np.asarray(output['keypoints'], dtype=np.float32))
        moved['limbs'] = limbs_of(keypoint_names)
    return moved
