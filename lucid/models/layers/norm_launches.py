"""Launching the kernels of BatchNorm with SiLU: which work a program gets, and where the maps lie.

The sizes go by the shape of a map alone, so that two runs sum in the same order.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from lucid.models.layers import norm_kernels as kernels

# Tuned by hand for one H200, of 132 multiprocessors: what it showed is in docs/records/2026-11-30-gpu-time.md.
TILE = 8192  # cells of a tile of one map; half of it where a kernel reads two maps
COLUMNS = 32  # of a tile, at most: 64 bytes of a bf16 row
PROGRAMS = 256  # of a pass that sums; the next pass reads as many partial sums
WRITERS = 512  # programs of a pass that writes
WARPS = 8

ASSEMBLY = not triton.knobs.runtime.interpret  # Triton's interpreter on the CPU has no assembly


class Rows(NamedTuple):
    """How a map lies.

    last:   channels_last
    stride: elements from one row to the next if so, else from one image to the next
    """

    last: bool
    stride: int


class Plan(NamedTuple):
    """How the rows are divided among the programs of a kernel, and of one pass its grid."""

    block_r: int
    block_c: int
    rows_per_program: int
    num_programs: int
    num_blocks: int  # of columns

    @property
    def grid(self) -> tuple[int, int]:
        """Programs along the rows and along the columns."""
        return self.num_programs, self.num_blocks


def plan(num_rows: int, num_columns: int, *, last: bool, num_maps: int, num_programs: int) -> Plan:
    """Divide the rows into parts of whole tiles, about ``num_programs`` over all columns.

    Args:
        num_rows: Cells of the map.
        num_columns: Channels.
        last: Whether the map is channels_last; else a tile has one column, along which memory runs.
        num_maps: How many maps the kernel reads.
        num_programs: Aim, for the whole grid.

    Returns:
        The plan; its ``num_programs`` is that along the rows.
    """
    block_c = min(_power_of_two(num_columns), COLUMNS) if last else 1
    block_r = min(TILE // num_maps // block_c, _power_of_two(num_rows))
    num_blocks = -(-num_columns // block_c)
    tiles = -(-num_rows // block_r)
    tiles_per_program = -(-tiles // max(1, num_programs // num_blocks))
    rows_per_program = tiles_per_program * block_r
    return Plan(block_r, block_c, rows_per_program, -(-num_rows // rows_per_program), num_blocks)


def rows_of(x: Tensor) -> Rows | None:
    """How ``x`` (B, C, H, W) lies, a slice of the channels of a larger map too; None where no kernel can read it so."""
    batch, channels, height, width = x.shape
    image, _, row, cell = x.stride()
    spatial = height * width
    # The stride of a dimension of size 1 may be anything.
    apart = cell if width > 1 else row if height > 1 else image if batch > 1 else channels

    def lies(*strides: int) -> bool:
        return all(n == 1 or a == b for n, a, b in zip(x.shape, x.stride(), strides, strict=True))

    if apart >= channels and lies(spatial * apart, 1, width * apart, apart):
        return Rows(True, apart)
    if lies(image, spatial, width, 1):
        return Rows(False, image if batch > 1 else channels * spatial)
    return None


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _parts(num_programs: int) -> int:
    """Room for the parts; few sizes, because a kernel is compiled for each."""
    return max(64, _power_of_two(num_programs))


def _numbers(x: Tensor) -> dict[str, Any]:
    return {
        'num_rows': x.numel() // x.shape[1],
        'num_columns': x.shape[1],
        'spatial': x.shape[2] * x.shape[3],
    }


def _sizes(how: Plan) -> dict[str, Any]:
    return {'BLOCK_R': how.block_r, 'BLOCK_C': how.block_c, 'num_warps': WARPS}


def launch_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    num_batches: Tensor | None,
    *,
    momentum: float,
    eps: float,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """BatchNorm and SiLU of a map, two kernels in training and one in evaluation.

    Args:
        x: (B, C, H, W), dense, channels_last or contiguous, with fewer than ``norm.MAX_CELLS`` elements.
        weight: (C,).
        bias: (C,).
        running_mean: (C,); in training written in place.
        running_var: (C,); in training written in place.
        num_batches: 0-d int64, raised by one; None means evaluation.
        momentum: Of the running statistics.
        eps: Added to the variance.
        silu: False leaves SiLU out.

    Returns:
        The result as ``x`` lies; mean and 1 / standard deviation, (C,) float32, those that were used.
    """
    last, stride = _require(x)
    numbers = {**_numbers(x), 'stride': stride}
    num_rows, num_columns = numbers['num_rows'], numbers['num_columns']
    y = torch.empty_like(x)
    rstd = torch.empty(num_columns, dtype=torch.float32, device=x.device)
    training = num_batches is not None
    sums = plan(num_rows, num_columns, last=last, num_maps=1, num_programs=PROGRAMS)
    if training:
        mean = torch.empty_like(rstd)
        means = torch.empty((2, sums.num_programs, num_columns), dtype=torch.float32, device=x.device)
        means, squares = means.unbind()
        kernels.statistics_kernel[sums.grid](
            x, means, squares, **numbers, rows_per_part=sums.rows_per_program, LAST=last, **_sizes(sums)
        )
    else:
        mean, means, squares, num_batches = running_mean, running_mean, running_var, running_mean
    how = plan(num_rows, num_columns, last=last, num_maps=1, num_programs=WRITERS)
    kernels.forward_kernel[how.grid](
        x,
        y,
        weight,
        bias,
        means,
        squares,
        mean,
        rstd,
        running_mean,
        running_var,
        num_batches,
        **numbers,
        rows_per_part=sums.rows_per_program,
        num_parts=sums.num_programs,
        rows_per_program=how.rows_per_program,
        momentum=momentum,
        eps=eps,
        TRAINING=training,
        SILU=silu,
        ASSEMBLY=ASSEMBLY,
        LAST=last,
        PARTS=_parts(sums.num_programs),
        **_sizes(how),
    )
    return y, mean, rstd


def launch_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    training: bool,
    sums: bool,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``launch_forward``, two kernels, or one where no sums are needed.

    Args:
        dy: (B, C, H, W), of the result; a slice of the channels of a larger map is read where it lies.
        x: As in the forward.
        weight: (C,).
        bias: (C,).
        mean: (C,), that was used.
        rstd: (C,) float32, that was used.
        training: Whether the statistics were the map's own.
        sums: False leaves the gradients of weight and bias out, which training needs.
        silu: As in the forward.

    Returns:
        Gradients of ``x``, as it lies, of ``weight`` and of ``bias``; the last two are empty without ``sums``.
    """
    last, stride = _require(x)
    place = rows_of(dy)
    if place is None or place.last != last or dy.untyped_storage().nbytes() >= 2**31 * dy.itemsize:
        dy = dy.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        place = _require(dy)
    numbers = {**_numbers(x), 'stride': stride, 'stride_dy': place.stride}
    num_rows, num_columns = numbers['num_rows'], numbers['num_columns']
    dx = torch.empty_like(x)
    dweight, dbias = (torch.empty_like(p) if sums else p.new_empty(0) for p in (weight, bias))
    parts = plan(num_rows, num_columns, last=last, num_maps=2, num_programs=PROGRAMS)
    weight_sums = bias_sums = rstd
    if sums:
        both = torch.empty((2, parts.num_programs, num_columns), dtype=torch.float32, device=x.device)
        weight_sums, bias_sums = both.unbind()
        kernels.backward_sums_kernel[parts.grid](
            dy,
            x,
            weight,
            bias,
            mean,
            rstd,
            weight_sums,
            bias_sums,
            **numbers,
            rows_per_part=parts.rows_per_program,
            SILU=silu,
            ASSEMBLY=ASSEMBLY,
            LAST=last,
            **_sizes(parts),
        )
    how = plan(num_rows, num_columns, last=last, num_maps=2, num_programs=WRITERS)
    kernels.backward_kernel[how.grid](
        dy,
        x,
        dx,
        weight,
        bias,
        mean,
        rstd,
        weight_sums,
        bias_sums,
        dweight,
        dbias,
        **numbers,
        num_parts=parts.num_programs,
        rows_per_program=how.rows_per_program,
        TRAINING=training,
        SUMS=sums,
        SILU=silu,
        ASSEMBLY=ASSEMBLY,
        LAST=last,
        PARTS=_parts(parts.num_programs),
        **_sizes(how),
    )
    return dx, dweight, dbias


def _require(x: Tensor) -> Rows:
    place = rows_of(x)
    assert place is not None, 'the caller has made it dense'
    return place
