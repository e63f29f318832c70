"""Drawing and recolouring in one kernel each: every pixel of the source is read, and of the result written, once.

Both give the bits that the operators of ``drawing`` and ``colors`` give on a CPU: products and sums are rounded one by
one (no fused multiply-add), quotients correctly.

Shape suffixes: G images of a group, L layers, S slots, C images that change their colours, H, W pixels.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Pixels of one program."""
HALF_EVEN = tl.constexpr(12582912.0)
"""1.5 * 2**23: added and taken away, it rounds a float32 below 2**22 to a whole number, halves to even."""


def draw_layers(
    canvas_GHW3: Tensor,
    flat: Tensor,
    slots_S3: Tensor,
    slots_GL: Tensor,
    maps_GL6: Tensor,
    boxes_GL4: Tensor,
    crops_GL4: Tensor | None,
    *,
    fill: int,
) -> None:
    """Draw layers on canvases, the later over the earlier.

    Args:
        canvas_GHW3: uint8, written in full.
        flat: uint8, images (3, h, w) one after the other.
        slots_S3: int32, where each begins, its height and its width.
        slots_GL: int64, the image of each layer.
        maps_GL6: float32, index of a pixel on the canvas to that in the image, row by row.
        boxes_GL4: int32, x1, y1, x2, y2 of the pixels that may show the layer.
        crops_GL4: float32, part of the image that is seen; None where the boxes say all.
        fill: Level of what shows no layer.
    """
    images, height, width = canvas_GHW3.shape[:3]
    layers = boxes_GL4.shape[1]
    geometry_GL3 = slots_S3[slots_GL]
    _draw[(triton.cdiv(height * width, BLOCK), images)](
        canvas_GHW3,
        flat,
        geometry_GL3,
        maps_GL6.contiguous(),
        boxes_GL4.contiguous(),
        boxes_GL4 if crops_GL4 is None else crops_GL4.contiguous(),
        layers,
        height * width,
        width,
        canvas_GHW3.stride(0),
        fill,
        CROPPED=crops_GL4 is not None,
        SIZE=BLOCK,
        enable_fp_fusion=False,
    )


def recolor(images_CHW3: Tensor, tables_C2563: Tensor) -> None:
    """Change the colours of images in place, as ``colors.recolor`` does.

    Args:
        images_CHW3: uint8, RGB, each contiguous.
        tables_C2563: uint8, what becomes of each level of hue, saturation and value.
    """
    images, height, width = images_CHW3.shape[:3]
    _recolor[(triton.cdiv(height * width, BLOCK), images)](
        images_CHW3,
        tables_C2563.contiguous(),
        height * width,
        images_CHW3.stride(0),
        6.0 / 255.0,
        SIZE=BLOCK,
        enable_fp_fusion=False,
    )


@triton.jit
def _draw(
    canvas,
    flat,
    geometry,
    maps,
    boxes,
    crops,
    num_layers,
    num_pixels,
    width,
    stride,
    fill,
    CROPPED: tl.constexpr,
    SIZE: tl.constexpr,
):
    pixel = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    image = tl.program_id(1)
    real = pixel < num_pixels
    x, y = pixel % width, pixel // width
    xs, ys = x.to(tl.float32), y.to(tl.float32)
    across = tl.full((SIZE,), 0.0, tl.float32)
    down = tl.full((SIZE,), 0.0, tl.float32)
    begin = tl.full((SIZE,), 0, tl.int32)
    rows = tl.full((SIZE,), 1, tl.int32)
    columns = tl.full((SIZE,), 1, tl.int32)
    covered = pixel < 0
    for number in range(num_layers):
        layer = image * num_layers + number
        box, way, place = boxes + layer * 4, maps + layer * 6, geometry + layer * 3
        inside = (x >= tl.load(box)) & (y >= tl.load(box + 1)) & (x < tl.load(box + 2)) & (y < tl.load(box + 3))
        u = tl.load(way) * xs + tl.load(way + 1) * ys + tl.load(way + 2)
        v = tl.load(way + 3) * xs + tl.load(way + 4) * ys + tl.load(way + 5)
        if CROPPED:
            crop = crops + layer * 4
            inside &= (u >= tl.load(crop)) & (v >= tl.load(crop + 1))
            inside &= (u < tl.load(crop + 2)) & (v < tl.load(crop + 3))
        across, down = tl.where(inside, u, across), tl.where(inside, v, down)
        begin = tl.where(inside, tl.load(place), begin)
        rows = tl.where(inside, tl.load(place + 1), rows)
        columns = tl.where(inside, tl.load(place + 2), columns)
        covered |= inside
    left, top = tl.floor(across), tl.floor(down)
    right_share, lower_share = across - left, down - top
    column, row = left.to(tl.int32), top.to(tl.int32)
    column1 = tl.minimum(tl.maximum(column, 0), columns - 1)
    column2 = tl.minimum(tl.maximum(column + 1, 0), columns - 1)
    row1 = begin + tl.minimum(tl.maximum(row, 0), rows - 1) * columns
    row2 = begin + tl.minimum(tl.maximum(row + 1, 0), rows - 1) * columns
    shown = covered & real
    for channel in tl.static_range(3):
        plane = flat + channel * (rows * columns)
        tap11 = tl.load(plane + row1 + column1, mask=shown, other=0).to(tl.float32)
        tap12 = tl.load(plane + row1 + column2, mask=shown, other=0).to(tl.float32)
        tap21 = tl.load(plane + row2 + column1, mask=shown, other=0).to(tl.float32)
        tap22 = tl.load(plane + row2 + column2, mask=shown, other=0).to(tl.float32)
        upper = tap11 + (tap12 - tap11) * right_share
        lower = tap21 + (tap22 - tap21) * right_share
        level = upper + (lower - upper) * lower_share
        level = (level + HALF_EVEN) - HALF_EVEN
        level = tl.where(covered, level.to(tl.int32), fill)
        tl.store(canvas + image.to(tl.int64) * stride + pixel * 3 + channel, level.to(tl.uint8), mask=real)


@triton.jit
def _rounded(numerator, divisor):
    """The nearest whole number to a quotient of positive ones, of which none lies between two; 0 for a divisor of 0."""
    quotient = (2 * numerator + divisor) // tl.maximum(2 * divisor, 1)
    return tl.where(divisor == 0, 0, quotient)


@triton.jit
def _recolor(images, tables, num_pixels, stride, sextant_of_level, SIZE: tl.constexpr):
    pixel = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    image = tl.program_id(1)
    real = pixel < num_pixels
    place = images + image.to(tl.int64) * stride + pixel * 3
    red = tl.load(place, mask=real, other=0).to(tl.int32)
    green = tl.load(place + 1, mask=real, other=0).to(tl.int32)
    blue = tl.load(place + 2, mask=real, other=0).to(tl.int32)
    value = tl.maximum(tl.maximum(red, green), blue)
    spread = value - tl.minimum(tl.minimum(red, green), blue)
    saturation = (spread * _rounded(tl.full((SIZE,), 255 << 12, tl.int32), value) + 2048) >> 12
    turn = tl.where(
        value == red,
        green - blue,
        tl.where(value == green, blue - red + 2 * spread, red - green + 4 * spread),
    )
    hue = (turn * _rounded(tl.full((SIZE,), 256 << 12, tl.int32), 6 * spread) + 2048) >> 12
    hue = tl.minimum(tl.maximum(tl.where(hue < 0, hue + 256, hue), 0), 255)
    table = tables + image * 768
    h = tl.load(table + hue * 3).to(tl.float32)
    s = tl.load(table + saturation * 3 + 1).to(tl.float32)
    v = tl.load(table + value * 3 + 2).to(tl.float32)
    turned = h * sextant_of_level
    sextant = tl.floor(turned)
    fraction = turned - sextant
    share = tl.div_rn(s, tl.full((SIZE,), 255.0, tl.float32))
    low = v * (1 - share)
    falling = v * (1 - share * fraction)
    rising = v * (1 - share * (1 - fraction))
    number = tl.where(sextant >= 6, 0.0, sextant)
    red_level = tl.where(
        (number == 0) | (number == 5), v, tl.where(number == 1, falling, tl.where(number == 4, rising, low))
    )
    green_level = tl.where(
        (number == 1) | (number == 2), v, tl.where(number == 0, rising, tl.where(number == 3, falling, low))
    )
    blue_level = tl.where(
        (number == 3) | (number == 4), v, tl.where(number == 2, rising, tl.where(number == 5, falling, low))
    )
    tl.store(place, ((red_level + HALF_EVEN) - HALF_EVEN).to(tl.uint8), mask=real)
    tl.store(place + 1, ((green_level + HALF_EVEN) - HALF_EVEN).to(tl.uint8), mask=real)
    tl.store(place + 2, ((blue_level + HALF_EVEN) - HALF_EVEN).to(tl.uint8), mask=real)
