"""Masks of detections: sums of prototypes, at the resolution of the original image, as run lengths.

Shape suffixes: N kept detections of one image, n those of a chunk, K prototypes, h, w cells of the prototypes,
H, W pixels of the network input.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from faster_coco_eval import mask as coco_mask
from numpy.typing import NDArray
from torch import Tensor

from lucid.structures.affine import Matrix, keeps_axes
from lucid.structures.detections import RunLengths
from lucid.structures.targets import MASK_STRIDE

CHUNK_BYTES = 2**26
"""Of float32 masks of the network input that exist at a time."""


@torch.no_grad()
def decode_masks(
    coefficients_NK: Tensor, prototypes_KHW: Tensor, boxes_N4: Tensor, *, meta: Mapping[str, Any]
) -> list[RunLengths]:
    """Masks of one image in its original pixels, row by row; reads the device.

    The sum of prototypes becomes a probability per cell, is enlarged bilinearly to the network input, cut to the
    detection's box (a pixel whose centre is on the left or upper edge is inside, on the right or lower one outside),
    thresholded above 0.5, and each original pixel takes the value of the input pixel that its centre falls into.

    Some detections at a time: memory is bounded whatever N and the size of the original image are.

    Args:
        coefficients_NK: any floating dtype, as are the prototypes.
        prototypes_KHW: of the whole network input, ``MASK_STRIDE`` pixels per cell.
        boxes_N4: xyxy, pixels of the network input.
        meta: ``original_hw`` and ``matrix`` (3x3, original pixels to input pixels).

    Returns:
        One per detection, empty where no pixel is above the threshold or a number is not finite.

    Source: YOLACT (arXiv:1904.02689) sec. 3.1, 3.2; cutting after the enlargement is this project's choice.
    """
    size = (MASK_STRIDE * prototypes_KHW.shape[1], MASK_STRIDE * prototypes_KHW.shape[2])
    cells = _source_cells(np.asarray(meta['matrix'], dtype=np.float64), meta['original_hw'], size)
    step = max(1, CHUNK_BYTES // (4 * size[0] * size[1]))
    found: list[RunLengths] = []
    for start in range(0, len(boxes_N4), step):
        coefficients_nK, boxes_n4 = coefficients_NK[start : start + step], boxes_N4[start : start + step]
        masks_nHW = _input_masks(coefficients_nK, prototypes_KHW, boxes_n4).cpu().numpy()
        found += [
            _run_lengths(*_resample(mask_HW, cells, box_4), meta['original_hw'])
            for mask_HW, box_4 in zip(masks_nHW, boxes_n4.float().cpu().numpy(), strict=True)
        ]
    return found


def _input_masks(coefficients_nK: Tensor, prototypes_KHW: Tensor, boxes_n4: Tensor) -> Tensor:
    """Bool (n, H, W), pixels of the network input."""
    _, height, width = prototypes_KHW.shape
    with torch.autocast(prototypes_KHW.device.type, enabled=False):
        cells_n1hw = (coefficients_nK.float() @ prototypes_KHW.float().flatten(1)).sigmoid().view(-1, 1, height, width)
    # Before the threshold: a cell's edge is no edge of the object.
    enlarged_nHW = F.interpolate(
        cells_n1hw,
        size=(MASK_STRIDE * height, MASK_STRIDE * width),
        mode='bilinear',
        align_corners=False,
    ).squeeze(1)
    x1, y1, x2, y2 = boxes_n4.float().unsqueeze(1).unbind(2)
    x_W = torch.arange(enlarged_nHW.shape[2], device=boxes_n4.device) + 0.5
    y_H = torch.arange(enlarged_nHW.shape[1], device=boxes_n4.device) + 0.5
    in_columns_nW, in_rows_nH = (x_W >= x1) & (x_W < x2), (y_H >= y1) & (y_H < y2)
    return (enlarged_nHW > 0.5) & in_rows_nH.unsqueeze(2) & in_columns_nW.unsqueeze(1)


def _source_cells(
    matrix: Matrix, original_hw: Sequence[int], size: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of the network input under each original pixel's centre, -1 outside.

    Both broadcast to the original image; (height, 1) and (1, width) where the map keeps rows and columns apart.
    """
    x = np.arange(original_hw[1])[None, :] + 0.5
    y = np.arange(original_hw[0])[:, None] + 0.5
    if keeps_axes(matrix):
        rows, columns = matrix[1, 1] * y + matrix[1, 2], matrix[0, 0] * x + matrix[0, 2]
    else:
        columns, rows = (matrix[i, 0] * x + matrix[i, 1] * y + matrix[i, 2] for i in (0, 1))
    rows, columns = np.floor(rows), np.floor(columns)
    rows = np.where((rows >= 0) & (rows < size[0]), rows, -1)
    columns = np.where((columns >= 0) & (columns < size[1]), columns, -1)
    return rows.astype(np.int64), columns.astype(np.int64)


def _resample(
    mask_HW: NDArray[np.bool_], cells: tuple[NDArray[np.int64], NDArray[np.int64]], box_4: NDArray[np.float32]
) -> tuple[NDArray[np.bool_], tuple[int, int]]:
    """The part of the original image that a box covers, and the row and column where it begins; empty outside of it."""
    rows, columns = cells
    x1, y1, x2, y2 = box_4
    ys = np.flatnonzero(((rows >= 0) & (rows + 0.5 >= y1) & (rows + 0.5 < y2)).any(axis=1))
    xs = np.flatnonzero(((columns >= 0) & (columns + 0.5 >= x1) & (columns + 0.5 < x2)).any(axis=0))
    if not len(ys) or not len(xs):
        return np.zeros((0, 0), dtype=np.bool_), (0, 0)
    window = slice(ys[0], ys[-1] + 1), slice(xs[0], xs[-1] + 1)
    if rows.shape[1] == columns.shape[0] == 1:
        part = mask_HW[rows[window[0], 0]][:, columns[0, window[1]]]
    else:
        rows, columns = rows[window], columns[window]
        part = mask_HW[rows, columns] & (rows >= 0) & (columns >= 0)
    return part, (int(ys[0]), int(xs[0]))


def _run_lengths(part: NDArray[np.bool_], start: tuple[int, int], size: Sequence[int]) -> RunLengths:
    """A mask that is empty outside of ``part``, in COCO's form: runs down the columns, the first one empty."""
    height, width = size
    row, column = start
    strip = np.zeros((part.shape[1], height), dtype=np.bool_)
    strip[:, row : row + part.shape[0]] = part.T
    # One pixel of nothing on either side, so that every run has two ends.
    padded = np.pad(strip.ravel(), 1)
    ends = np.flatnonzero(padded[1:] != padded[:-1]) + column * height
    counts = np.diff(ends, prepend=0, append=height * width)
    if len(counts) > 1 and counts[-1] == 0:
        counts = counts[:-1]
    encoded = coco_mask.frPyObjects({'size': [height, width], 'counts': counts.tolist()}, height, width)
    # As text: some readers take bytes for an empty mask, and JSON takes none.
    return RunLengths(size=[int(height), int(width)], counts=encoded['counts'].decode())
