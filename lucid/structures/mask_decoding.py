"""Masks of detections: sums of prototypes, at the resolution of the original image, as run lengths; on the host.

Shape suffixes: K rows of one image, C columns of a row, N detections, P prototypes, h, w cells of the prototypes, H, W
pixels of the network input.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from faster_coco_eval import mask as coco_mask
from numpy.typing import NDArray

from lucid.structures.affine import Float32, Matrix, keeps_axes
from lucid.structures.detections import Prediction, RunLengths, place_rows
from lucid.structures.targets import MASK_STRIDE

Window = tuple[slice, slice]
"""Rows and columns."""


def place_masks(rows_KC: Float32, prototypes_Phw: Float32, meta: Mapping[str, Any]) -> Prediction:
    """The detections of one image with ``masks`` at the resolution of the original image.

    Args:
        rows_KC: as ``pack_rows`` gives them; behind the label the coefficients of the prototypes.
        prototypes_Phw: of the whole network input.
        meta: as ``place_rows`` wants it.

    Returns:
        The prediction, whose tensors are the caller's.
    """
    prediction, rows_N = place_rows(rows_KC, meta)
    kept_NC = rows_KC[rows_N]
    prediction['masks'] = decode_masks(kept_NC[:, 6:], prototypes_Phw, kept_NC[:, :4], meta=meta)
    return prediction


def decode_masks(
    coefficients_NP: Float32, prototypes_Phw: Float32, boxes_N4: Float32, *, meta: Mapping[str, Any]
) -> list[RunLengths]:
    """Masks of one image in its original pixels, row by row.

    The sum of prototypes becomes a probability per cell, is enlarged bilinearly to the network input, cut to the
    detection's box (a pixel whose centre is on the left or upper edge is inside, on the right or lower one outside),
    thresholded above 0.5, and each original pixel takes the value of the input pixel that its centre falls into.

    All of it only inside the box, one detection at a time: memory is bounded whatever N and the size of the original
    image are, and a mask does not depend on what else was found.

    Args:
        coefficients_NP: float32, as are the prototypes.
        prototypes_Phw: of the whole network input, ``MASK_STRIDE`` pixels per cell.
        boxes_N4: xyxy, pixels of the network input.
        meta: ``original_hw`` and ``matrix`` (3x3, original pixels to input pixels).

    Returns:
        One per detection, empty where no pixel is above the threshold or a number is not finite.

    Source: YOLACT (arXiv:1904.02689) sec. 3.1, 3.2; cutting after the enlargement is this project's choice.
    """
    _, height, width = prototypes_Phw.shape
    source = _source_pixels(
        np.asarray(meta['matrix'], dtype=np.float64), meta['original_hw'], (MASK_STRIDE * height, MASK_STRIDE * width)
    )
    found: list[RunLengths] = []
    # A sum far below zero gives 0, one that is not finite NaN, which is not above the threshold.
    with np.errstate(over='ignore', invalid='ignore'):
        for coefficients_P, box_4 in zip(coefficients_NP, boxes_N4, strict=True):
            inside = _pixels_inside(box_4, (height, width))
            part, corner = _resample(_enlarge(coefficients_P, prototypes_Phw, inside) > 0.5, inside, source)
            found.append(_run_lengths(part, corner, meta['original_hw']))
    return found


def _pixels_inside(box_4: NDArray[np.float32], cells: tuple[int, int]) -> Window:
    """Rows and columns of the network input whose centres are in a box; empty ranges for one that is not finite."""
    if not np.isfinite(box_4).all():
        return slice(0, 0), slice(0, 0)
    limits = np.array([MASK_STRIDE * cells[1], MASK_STRIDE * cells[0]] * 2)
    left, top, right, bottom = np.ceil(np.clip(box_4.astype(np.float64) - 0.5, 0, limits)).astype(int).tolist()
    return slice(top, max(top, bottom)), slice(left, max(left, right))


def _enlarge(coefficients_P: Float32, prototypes_Phw: Float32, inside: Window) -> Float32:
    """Pixels of the bilinear enlargement in a window, from the cells that they lie between."""
    if any(side.stop == side.start for side in inside):
        return np.zeros([side.stop - side.start for side in inside], dtype=np.float32)
    # One cell more on each side, or where there is none the edge, which is then that of the whole enlargement too.
    near = [slice(max(side.start // MASK_STRIDE - 1, 0), (side.stop - 1) // MASK_STRIDE + 2) for side in inside]
    part_Phw = prototypes_Phw[:, near[0], near[1]]
    sums = coefficients_P @ part_Phw.reshape(len(part_Phw), -1)
    cells_hw = (1 / (1 + np.exp(-sums))).reshape(part_Phw.shape[1:])
    size = (MASK_STRIDE * part_Phw.shape[2], MASK_STRIDE * part_Phw.shape[1])
    enlarged = np.asarray(cv2.resize(cells_hw, size, interpolation=cv2.INTER_LINEAR), dtype=np.float32)
    rows, columns = (
        slice(side.start - MASK_STRIDE * cells.start, side.stop - MASK_STRIDE * cells.start)
        for side, cells in zip(inside, near, strict=True)
    )
    return enlarged[rows, columns]


def _source_pixels(
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
    mask: NDArray[np.bool_], inside: Window, source: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> tuple[NDArray[np.bool_], tuple[int, int]]:
    """The part of the original image that looks into a window of the input, and the row and column where it begins."""
    rows, columns = source
    in_rows = (rows >= inside[0].start) & (rows < inside[0].stop)
    in_columns = (columns >= inside[1].start) & (columns < inside[1].stop)
    ys, xs = np.flatnonzero(in_rows.any(axis=1)), np.flatnonzero(in_columns.any(axis=0))
    if not len(ys) or not len(xs):
        return np.zeros((0, 0), dtype=np.bool_), (0, 0)
    window = slice(ys[0], ys[-1] + 1), slice(xs[0], xs[-1] + 1)
    rows, columns = rows - inside[0].start, columns - inside[1].start
    if rows.shape[1] == columns.shape[0] == 1:
        part = mask[rows[window[0], 0]][:, columns[0, window[1]]]
    else:
        known = (in_rows & in_columns)[window]
        part = known & mask[np.where(known, rows[window], 0), np.where(known, columns[window], 0)]
    return part, (int(ys[0]), int(xs[0]))


def _run_lengths(part: NDArray[np.bool_], start: tuple[int, int], size: Sequence[int]) -> RunLengths:
    """A mask that is empty outside of ``part``, in COCO's form: runs down the columns, the first one empty."""
    height, width = size
    row, column = start
    # One pixel of nothing on either side, so that every run has two ends. np.pad and np.diff cost more than all else.
    padded = np.zeros(part.shape[1] * height + 2, dtype=np.bool_)
    padded[1:-1].reshape(part.shape[1], height)[:, row : row + part.shape[0]] = part.T
    ends = np.flatnonzero(padded[1:] != padded[:-1]) + column * height
    bounds = np.concatenate(([0], ends, [height * width]))
    counts = bounds[1:] - bounds[:-1]
    if len(counts) > 1 and counts[-1] == 0:
        counts = counts[:-1]
    encoded = coco_mask.frPyObjects({'size': [height, width], 'counts': counts.tolist()}, height, width)
    # As text: some readers take bytes for an empty mask, and JSON takes none.
    return RunLengths(size=[int(height), int(width)], counts=encoded['counts'].decode())
