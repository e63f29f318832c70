"""A colour per class: the same class has the same colour in every picture of every run."""

import colorsys

# Saturation and value of successive turns round the hue circle, so that near hues still differ in tone.
_TONES = ((0.85, 0.98), (0.72, 0.94), (0.95, 0.72))
_GOLDEN = 0.6180339887498949


def class_color(label: int) -> tuple[int, int, int]:
    """RGB, 0..255, of a class index; neighbours in the index are far apart in hue."""
    red, green, blue = colorsys.hsv_to_rgb(0.58 + label * _GOLDEN, *_TONES[label % len(_TONES)])
    return round(red * 255), round(green * 255), round(blue * 255)


def text_color(background: tuple[int, int, int]) -> tuple[int, int, int]:
    """Black or white, whichever reads better on an RGB background (luma of ITU-R BT.601)."""
    red, green, blue = background
    return (0, 0, 0) if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else (255, 255, 255)
