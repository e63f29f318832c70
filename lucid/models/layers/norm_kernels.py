"""Triton kernels of BatchNorm with SiLU: each pass over the map reads it once.

A map (B, C, H, W) is seen as rows, its B * H * W cells, and columns, its channels; a tile is ``BLOCK_R`` rows of
``BLOCK_C`` columns. A pass that sums splits the rows into parts, one per program, and leaves one partial sum per part
and column; every program of the next pass adds all parts in one order. So there is no atomic addition, sums have the
same bits in every run, and no kernel exists for adding alone. Sums are taken in float32.

Shape suffixes: R rows of a tile, C columns of a tile, P parts.
"""

import triton
import triton.language as tl

# ruff: noqa: D103 - the kernels' contracts are in lucid.models.layers.norm_launches

# A kernel is compiled once for all values of these.
COUNTS = ('num_rows', 'spatial', 'rows_per_part', 'num_parts', 'rows_per_program')


@triton.jit
def offsets(rows_R, columns_C, stride, spatial, LAST: tl.constexpr):
    """Where the cells lie: channels_last rows ``stride`` apart, or images ``stride`` apart and channels ``spatial``."""
    if LAST:
        return rows_R[:, None] * stride + columns_C[None, :]
    return (rows_R // spatial)[:, None] * stride + columns_C[None, :] * spatial + (rows_R % spatial)[:, None]


@triton.jit
def sigmoid(u_RC, ASSEMBLY: tl.constexpr):
    """1 / (1 + exp(-u)), within two units in the last place either way."""
    if ASSEMBLY:
        # Four instructions in place of eleven, with which arithmetic took longer than memory: tl.sigmoid also cares
        # for denormal powers, which 1 is added to.
        return tl.inline_asm_elementwise(
            """
            mul.f32 $0, $1, 0fBFB8AA3B;
            ex2.approx.ftz.f32 $0, $0;
            add.f32 $0, $0, 0f3F800000;
            rcp.approx.ftz.f32 $0, $0;
            """,
            '=f,f',
            [u_RC],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    return tl.sigmoid(u_RC)


@triton.jit(do_not_specialize=COUNTS)
def statistics_kernel(
    x,
    means,  # (parts, columns)
    squares,  # (parts, columns), sums of squared differences from the part's mean
    num_rows,
    num_columns,
    stride,
    spatial,
    rows_per_part,
    LAST: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    part = tl.program_id(0)
    columns_C = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_C = columns_C < num_columns
    begin = part * rows_per_part
    end = tl.minimum(begin + rows_per_part, num_rows)
    rows_R = begin + tl.arange(0, BLOCK_R)
    valid_RC = (rows_R < end)[:, None] & inside_C[None, :]
    x_RC = tl.load(x + offsets(rows_R, columns_C, stride, spatial, LAST), mask=valid_RC, other=0.0).to(tl.float32)
    # Sums are of differences from the first tile's mean: of raw values the squares would cancel.
    shift_C = tl.sum(x_RC, axis=0) / tl.minimum(end - begin, BLOCK_R).to(tl.float32)
    sum_RC = tl.where(valid_RC, x_RC - shift_C[None, :], 0.0)
    square_RC = sum_RC * sum_RC
    for first in range(begin + BLOCK_R, end, BLOCK_R):
        rows_R = first + tl.arange(0, BLOCK_R)
        valid_RC = (rows_R < end)[:, None] & inside_C[None, :]
        offsets_RC = offsets(rows_R, columns_C, stride, spatial, LAST)
        x_RC = tl.load(x + offsets_RC, mask=valid_RC, other=0.0).to(tl.float32)
        x_RC = tl.where(valid_RC, x_RC - shift_C[None, :], 0.0)
        sum_RC += x_RC
        square_RC += x_RC * x_RC
    count = (end - begin).to(tl.float32)
    mean_C = tl.sum(sum_RC, axis=0) / count
    square_C = tl.sum(square_RC, axis=0) - mean_C * mean_C * count
    square_C = tl.where(square_C < 0.0, 0.0, square_C)  # not tl.maximum, which would drop a nan
    tl.store(means + part * num_columns + columns_C, shift_C + mean_C, mask=inside_C)
    tl.store(squares + part * num_columns + columns_C, square_C, mask=inside_C)


@triton.jit(do_not_specialize=COUNTS)
def forward_kernel(
    x,
    y,
    weight,
    bias,
    means,  # of the parts; in evaluation the running mean
    squares,  # of the parts; in evaluation the running variance
    mean,
    rstd,
    running_mean,
    running_var,
    num_batches,
    num_rows,
    num_columns,
    stride,
    spatial,
    rows_per_part,
    num_parts,
    rows_per_program,
    momentum,
    eps,
    TRAINING: tl.constexpr,
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
    if TRAINING:
        parts_P = tl.arange(0, PARTS)
        known_PC = (parts_P < num_parts)[:, None] & inside_C[None, :]
        counts_P = tl.minimum(num_rows - parts_P * rows_per_part, rows_per_part).to(tl.float32)
        places_PC = parts_P[:, None] * num_columns + columns_C[None, :]
        mean_PC = tl.load(means + places_PC, mask=known_PC, other=0.0)
        square_PC = tl.load(squares + places_PC, mask=known_PC, other=0.0)
        mean_C = tl.sum(tl.where(known_PC, mean_PC * counts_P[:, None], 0.0), axis=0) / num_rows
        apart_PC = mean_PC - mean_C[None, :]
        square_PC += tl.where(known_PC, apart_PC * apart_PC * counts_P[:, None], 0.0)
        square_C = tl.sum(square_PC, axis=0)
        rstd_C = 1.0 / tl.sqrt(square_C / num_rows + eps)
        if program == 0:
            tl.store(mean + columns_C, mean_C, mask=inside_C)
            old_C = tl.load(running_mean + columns_C, mask=inside_C, other=0.0).to(tl.float32)
            tl.store(running_mean + columns_C, (1.0 - momentum) * old_C + momentum * mean_C, mask=inside_C)
            old_C = tl.load(running_var + columns_C, mask=inside_C, other=0.0).to(tl.float32)
            new_C = square_C / (num_rows - 1)  # unbiased, as torch keeps it
            tl.store(running_var + columns_C, (1.0 - momentum) * old_C + momentum * new_C, mask=inside_C)
            if tl.program_id(1) == 0:
                tl.store(num_batches, tl.load(num_batches) + 1)
    else:
        mean_C = tl.load(means + columns_C, mask=inside_C, other=0.0).to(tl.float32)
        rstd_C = 1.0 / tl.sqrt(tl.load(squares + columns_C, mask=inside_C, other=1.0).to(tl.float32) + eps)
    if program == 0:
        tl.store(rstd + columns_C, rstd_C, mask=inside_C)
    scale_C = rstd_C * tl.load(weight + columns_C, mask=inside_C, other=0.0).to(tl.float32)
    bias_C = tl.load(bias + columns_C, mask=inside_C, other=0.0).to(tl.float32)
    begin = program * rows_per_program
    end = tl.minimum(begin + rows_per_program, num_rows)
    for first in range(begin, end, BLOCK_R):
        rows_R = first + tl.arange(0, BLOCK_R)
        valid_RC = (rows_R < end)[:, None] & inside_C[None, :]
        offsets_RC = offsets(rows_R, columns_C, stride, spatial, LAST)
        x_RC = tl.load(x + offsets_RC, mask=valid_RC, other=0.0).to(tl.float32)
        u_RC = (x_RC - mean_C[None, :]) * scale_C[None, :] + bias_C[None, :]
        if SILU:
            u_RC = u_RC * sigmoid(u_RC, ASSEMBLY)
        tl.store(y + offsets_RC, u_RC.to(y.dtype.element_ty), mask=valid_RC)
