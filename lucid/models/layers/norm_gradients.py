"""Triton kernels of the gradients of BatchNorm with SiLU; what they have in common with the forward's is there."""

import triton
import triton.language as tl

from lucid.models.layers.norm_kernels import COUNTS, offsets, sigmoid

# ruff: noqa: D103 - the kernels' contracts are in lucid.models.layers.norm_launches


@triton.jit
def _slope(u_RC, ASSEMBLY: tl.constexpr):
    """Derivative of SiLU."""
    s_RC = sigmoid(u_RC, ASSEMBLY)
    return s_RC * (1.0 + u_RC * (1.0 - s_RC))


@triton.jit
def _columns(mean, rstd, weight, bias, columns_C, inside_C):
    """What a norm knows of its columns, in float32."""
    mean_C = tl.load(mean + columns_C, mask=inside_C, other=0.0).to(tl.float32)
    rstd_C = tl.load(rstd + columns_C, mask=inside_C, other=0.0)
    weight_C = tl.load(weight + columns_C, mask=inside_C, other=0.0).to(tl.float32)
    bias_C = tl.load(bias + columns_C, mask=inside_C, other=0.0).to(tl.float32)
    return mean_C, rstd_C, weight_C, bias_C


@triton.jit
def _normalised(x_RC, dy_RC, mean_C, rstd_C, weight_C, bias_C, SILU: tl.constexpr, ASSEMBLY: tl.constexpr):
    """The normalised values, and the gradient of what SiLU was given."""
    hat_RC = (x_RC.to(tl.float32) - mean_C[None, :]) * rstd_C[None, :]
    du_RC = dy_RC.to(tl.float32)
    if SILU:
        du_RC *= _slope(hat_RC * weight_C[None, :] + bias_C[None, :], ASSEMBLY)
    return hat_RC, du_RC


@triton.jit(do_not_specialize=COUNTS)
def backward_sums_kernel(
    dy,
    x,
    weight,
    bias,
    mean,
    rstd,
    weight_sums,  # (parts, columns)
    bias_sums,  # (parts, columns)
    num_rows,
    num_columns,
    stride,
    stride_dy,
    spatial,
    rows_per_part,
    SILU: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    LAST: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    part = tl.program_id(0)
    columns_C = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_C = columns_C < num_columns
    mean_C, rstd_C, weight_C, bias_C = _columns(mean, rstd, weight, bias, columns_C, inside_C)
    weight_RC = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    bias_RC = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    begin = part * rows_per_part
    end = tl.minimum(begin + rows_per_part, num_rows)
    for first in range(begin, end, BLOCK_R):
        rows_R = first + tl.arange(0, BLOCK_R)
        valid_RC = (rows_R < end)[:, None] & inside_C[None, :]
        x_RC = tl.load(x + offsets(rows_R, columns_C, stride, spatial, LAST), mask=valid_RC, other=0.0)
        dy_RC = tl.load(dy + offsets(rows_R, columns_C, stride_dy, spatial, LAST), mask=valid_RC, other=0.0)
        hat_RC, du_RC = _normalised(x_RC, dy_RC, mean_C, rstd_C, weight_C, bias_C, SILU, ASSEMBLY)
        # Unmasked: outside dy is 0, and where a mean or a slope is not finite, so is the whole column.
        bias_RC += du_RC
        weight_RC += du_RC * hat_RC
    tl.store(bias_sums + part * num_columns + columns_C, tl.sum(bias_RC, axis=0), mask=inside_C)
    tl.store(weight_sums + part * num_columns + columns_C, tl.sum(weight_RC, axis=0), mask=inside_C)


@triton.jit(do_not_specialize=COUNTS)
def backward_kernel(
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
    num_rows,
    num_columns,
    stride,
    stride_dy,
    spatial,
    num_parts,
    rows_per_program,
    TRAINING: tl.constexpr,
    SUMS: tl.constexpr,
    SILU: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    LAST: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    program = tl.program_id(0)
    columns_C = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_C = columns_C < num_columns
    mean_C, rstd_C, weight_C, bias_C = _columns(mean, rstd, weight, bias, columns_C, inside_C)
    dweight_C = tl.zeros((BLOCK_C,), dtype=tl.float32)
    dbias_C = tl.zeros((BLOCK_C,), dtype=tl.float32)
    if SUMS:
        parts_P = tl.arange(0, PARTS)
        known_PC = (parts_P < num_parts)[:, None] & inside_C[None, :]
        places_PC = parts_P[:, None] * num_columns + columns_C[None, :]
        dweight_C = tl.sum(tl.load(weight_sums + places_PC, mask=known_PC, other=0.0), axis=0)
        dbias_C = tl.sum(tl.load(bias_sums + places_PC, mask=known_PC, other=0.0), axis=0)
        if program == 0:
            tl.store(dweight + columns_C, dweight_C.to(dweight.dtype.element_ty), mask=inside_C)
            tl.store(dbias + columns_C, dbias_C.to(dbias.dtype.element_ty), mask=inside_C)
    scale_C = weight_C * rstd_C
    dweight_C /= num_rows
    dbias_C /= num_rows
    begin = program * rows_per_program
    end = tl.minimum(begin + rows_per_program, num_rows)
    for first in range(begin, end, BLOCK_R):
        rows_R = first + tl.arange(0, BLOCK_R)
        valid_RC = (rows_R < end)[:, None] & inside_C[None, :]
        offsets_RC = offsets(rows_R, columns_C, stride, spatial, LAST)
        x_RC = tl.load(x + offsets_RC, mask=valid_RC, other=0.0)
        dy_RC = tl.load(dy + offsets(rows_R, columns_C, stride_dy, spatial, LAST), mask=valid_RC, other=0.0)
        hat_RC, du_RC = _normalised(x_RC, dy_RC, mean_C, rstd_C, weight_C, bias_C, SILU, ASSEMBLY)
        if TRAINING:
            du_RC -= dbias_C[None, :] + hat_RC * dweight_C[None, :]
        tl.store(dx + offsets_RC, (du_RC * scale_C[None, :]).to(dx.dtype.element_ty), mask=valid_RC)
