"""Launching the kernels of BatchNorm with SiLU."""

from typing import Any

import torch
import triton
from torch import Tensor

from lucid.models.layers import norm_gradients, norm_kernels, norm_plan
from lucid.models.layers.norm_plan import Plan, Rows, plan, room_of, rows_of

ASSEMBLY = not triton.knobs.runtime.interpret  # Triton's interpreter on the CPU has no assembly


def _numbers(x: Tensor) -> dict[str, Any]:
    return {
        'num_rows': x.numel() // x.shape[1],
        'num_columns': x.shape[1],
        'spatial': x.shape[2] * x.shape[3],
    }


def _sizes(how: Plan) -> dict[str, Any]:
    return {'BLOCK_R': how.block_r, 'BLOCK_C': how.block_c, 'num_warps': norm_plan.WARPS}


def _tables(num_parts: int, num_columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two of (parts, columns), flat, in one allocation; the second begins at 16 bytes as the first does.

    Where it did not, kernels would be compiled once more.
    """
    room = -(-num_parts * num_columns // 4) * 4
    first, second = torch.empty((2, room), dtype=torch.float32, device=device).unbind()
    return first, second


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
    sums = plan(num_rows, num_columns, last=last, num_maps=1, num_programs=norm_plan.PROGRAMS)
    if training:
        mean = torch.empty_like(rstd)
        means, squares = _tables(sums.num_programs, num_columns, x.device)
        norm_kernels.statistics_kernel[sums.grid](
            x, means, squares, **numbers, rows_per_part=sums.rows_per_program, LAST=last, **_sizes(sums)
        )
    else:
        mean, means, squares, num_batches = running_mean, running_mean, running_var, running_mean
    how = plan(num_rows, num_columns, last=last, num_maps=1, num_programs=norm_plan.WRITERS)
    norm_kernels.forward_kernel[how.grid](
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
        PARTS=room_of(sums.num_programs, num_columns) if training else 1,
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
    parts = plan(num_rows, num_columns, last=last, num_maps=2, num_programs=norm_plan.PROGRAMS)
    weight_sums = bias_sums = rstd
    if sums:
        weight_sums, bias_sums = _tables(parts.num_programs, num_columns, x.device)
        norm_gradients.backward_sums_kernel[parts.grid](
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
    how = plan(num_rows, num_columns, last=last, num_maps=2, num_programs=norm_plan.WRITERS)
    norm_gradients.backward_kernel[how.grid](
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
        PARTS=room_of(parts.num_programs, num_columns) if sums else 1,
        **_sizes(how),
    )
    return dx, dweight, dbias


def _require(x: Tensor) -> Rows:
    place = rows_of(x)
    assert place is not None, 'the caller has made it dense'
    return place
