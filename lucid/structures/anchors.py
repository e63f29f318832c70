"""Anchor points, and the boxes and points that are predicted relative to them.

Shape suffixes: B images, A anchors, K detections per image, J keypoints.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lucid.structures.targets import AnchorGrid


def make_anchor_grid(
    height_width: tuple[int, int], *, strides: Sequence[int] = (8, 16, 32), device: torch.device | str = 'cpu'
) -> AnchorGrid:
    """Anchor centres of one input size: level by level, row-major inside a level.

    The tensors are float32 whatever autocast and the default dtype say, and can be used in training even if they were
    made in inference mode.

    Args:
        height_width: pixels of the network input.
        strides: of the levels, in their order.
        device: where everything is made; no host memory is copied there.

    Returns:
        A grid that the caller owns.

    Raises:
        ValueError: a side is not a positive multiple of every stride.

    Source: TOOD (arXiv:2108.07755), GFL (arXiv:2006.04388).
    """
    height, width = height_width
    for stride in strides:
        if height <= 0 or width <= 0 or height % stride or width % stride:
            raise ValueError(
                f'an input of {height}x{width} pixels has no whole number of cells at stride {stride}; '
                f'make both sides a multiple of {max(strides)}'
            )
    centers, sizes = [], []
    # An inference tensor kept in a cache would break the first training step that saves it for backward.
    with torch.inference_mode(False):
        for stride in strides:
            ys = (torch.arange(height // stride, dtype=torch.float32, device=device) + 0.5) * stride
            xs = (torch.arange(width // stride, dtype=torch.float32, device=device) + 0.5) * stride
            grid_y, grid_x = torch.meshgrid(ys, xs, indexing='ij')
            centers.append(torch.stack((grid_x, grid_y), dim=-1).flatten(0, 1))
            sizes.append(torch.full((ys.numel() * xs.numel(),), float(stride), dtype=torch.float32, device=device))
        return AnchorGrid(torch.cat(centers), torch.cat(sizes))


def decode_boxes(distances_BA4: Tensor, grid: AnchorGrid) -> Tensor:
    """Boxes, xyxy pixels of the network input, from left, top, right, bottom distances in stride units.

    At least float32, float64 stays. Nothing is clamped: negative distances can give an inverted box.
    """
    left_top, right_bottom = distances_BA4.chunk(2, dim=-1)
    strides_A1 = grid.strides_A.unsqueeze(-1)
    return torch.cat((grid.centers_A2 - left_top * strides_A1, grid.centers_A2 + right_bottom * strides_A1), dim=-1)


def decode_points(offsets_BAJ2: Tensor, grid: AnchorGrid) -> Tensor:
    """Keypoints, x and y in pixels of the network input, from offsets to the anchor in stride units.

    At least float32, float64 stays. Nothing is clamped: a point may lie outside of its box, and of the image.

    Source: YOLO26 (arXiv:2606.03748) sec. 3.4.2.
    """
    return grid.centers_A2.unsqueeze(-2) + offsets_BAJ2 * grid.strides_A[:, None, None]


def gather_anchors(values_BA: Tensor, anchors_BK: Tensor) -> Tensor:
    """The rows (B, K, ...) of ``values_BA`` (B, A, ...) at ``anchors_BK``; row 0 where that is -1, for padding."""
    index_BK = anchors_BK.clamp(min=0)
    images_B1 = torch.arange(len(index_BK), device=index_BK.device).unsqueeze(1)
    return values_BA[images_B1, index_BK]


def without_broken(distances_BA4: Tensor, numbers_BA: Tensor) -> Tensor:
    """The distances, NaN at anchors that have another number (B, A, ...) which is not finite, so that no path takes it.

    Decoding leaves out a box that is not finite, before it ranks.
    """
    finite_BA1 = numbers_BA.flatten(2).isfinite().all(dim=2, keepdim=True)
    return torch.where(finite_BA1, distances_BA4, float('nan'))
