"""Changes of hue, saturation and value on 8 bits per channel, on the device, as OpenCV computes them on the host.

Shape suffixes: C images, H, W pixels.
"""

import torch
from torch import Tensor

SHIFT = 12
"""Bits after the point in OpenCV's table of reciprocals."""
SEXTANT = 6.0 / 255.0
"""Sextants of the colour circle per level of hue; OpenCV counts 256 levels on the way there, and 255 back."""


def recolor(images_CHW3: Tensor, tables_C2563: Tensor) -> Tensor:
    """Look up hue, saturation and value of each pixel in its image's table.

    Args:
        images_CHW3: uint8, RGB.
        tables_C2563: uint8, what becomes of each level.

    Returns:
        uint8 (C, H, W, 3), RGB; at most one level from what OpenCV's ``_FULL`` codes give.
    """
    hue, saturation, value = _to_hsv(images_CHW3)
    flat = tables_C2563.reshape(-1).to(torch.int32)
    first = torch.arange(len(images_CHW3), device=images_CHW3.device, dtype=torch.int32)[:, None, None] * 768
    changed = [
        flat.index_select(0, (first + level * 3 + channel).reshape(-1)).view_as(level).float()
        for channel, level in enumerate((hue, saturation, value))
    ]
    return _to_rgb(*changed)


def _to_hsv(images_CHW3: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Levels 0..255 as int32: whole numbers, with OpenCV's own reciprocals."""
    red, green, blue = images_CHW3.to(torch.int32).unbind(dim=3)
    value = torch.maximum(torch.maximum(red, green), blue)
    spread = value - torch.minimum(torch.minimum(red, green), blue)
    half = 1 << (SHIFT - 1)
    saturation = (spread * _reciprocal(255 << SHIFT, value) + half) >> SHIFT
    sextant = torch.where(
        value == red, green - blue, torch.where(value == green, blue - red + 2 * spread, red - green + 4 * spread)
    )
    hue = (sextant * _reciprocal(256 << SHIFT, 6 * spread) + half) >> SHIFT
    return torch.where(hue < 0, hue + 256, hue).clamp_(0, 255), saturation, value


def _reciprocal(numerator: int, divisor: Tensor) -> Tensor:
    """The rounded quotient, 0 where the divisor is 0."""
    # In double precision: numerators have 20 bits, and rounding must be that of OpenCV's table.
    quotient = torch.round(numerator / divisor.clamp(min=1).double()).to(torch.int32)
    return torch.where(divisor == 0, 0, quotient)


def _to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """From levels in float32, by sextants of the colour circle."""
    turned = hue * SEXTANT
    sextant = turned.floor()
    fraction = turned - sextant
    share = saturation / 255
    low = value * (1 - share)
    falling = value * (1 - share * fraction)
    rising = value * (1 - share * (1 - fraction))

    def chosen(*by_sextant: Tensor) -> Tensor:
        result = by_sextant[0]  # the sixth sextant, which only the last level reaches, is the first
        for number in range(1, 6):
            result = torch.where(sextant == number, by_sextant[number], result)
        return result

    red = chosen(value, falling, low, low, rising, value)
    green = chosen(rising, value, value, falling, low, low)
    blue = chosen(low, low, rising, value, value, falling)
    return torch.stack([red, green, blue], dim=3).round_().clamp_(0, 255).to(torch.uint8)
