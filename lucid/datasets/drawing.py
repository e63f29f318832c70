"""Drawing the passes of a picture on the host.

Canvases have four channels, of which the last holds nothing: OpenCV warps four twice as fast as three.
"""

import math
from collections.abc import Sequence

import cv2
import numpy as np

from lucid.datasets.colors import recolor
from lucid.datasets.layers import FILL, HSVParameters, Image, Layer, Pass, Size, envelope
from lucid.datasets.warp import warp_image
from lucid.structures.affine import Matrix, keeps_axes, translation, warp_points
from lucid.structures.masks import Mask, fill_rings
from lucid.structures.polygons import rings_envelope

Box = tuple[int, int, int, int]
MARGIN = 2
"""Pixels of a source around what is seen of it that are handed to the resampling, against rounding."""
NUDGE = 1e-6
"""Where two images meet on a pixel's centre, rounding must not leave a gap: both ends are moved left and up by this."""


def draw(passes: Sequence[Pass], size: Size, *, out: Image | None = None) -> Image:
    """Draw passes in turn; each image is resampled once, straight into the canvas, and only where it is seen.

    Args:
        passes: At least one.
        size: Height and width.
        out: Where the result goes, uint8 (H, W, 3); None makes a new array.

    Returns:
        The image, RGB.

    Raises:
        ImageError: A file of which something is seen cannot be read.
    """
    first = passes[0]
    drawn = _finish(_draw_layers(first.layers, size), first.colors, out)
    for one in passes[1:]:
        if one.rings is None:
            second = _finish(_draw_layers(one.layers, size), one.own)
            cv2.addWeighted(drawn, one.share, second, 1 - one.share, 0, dst=drawn)
        else:
            _paste(drawn, one)
        for change in one.colors:
            recolor(drawn, change, out=drawn)
    return drawn


def shown_box(layer: Layer, size: Size) -> Box:
    """The pixels of the canvas, x1, y1, x2, y2, whose centres may show a layer with a crop; may be empty.

    Of a map that neither turns nor slants, it is exactly those that do.
    """
    left, top, right, bottom = (math.ceil(side - 0.5 - NUDGE) for side in layer.extent)
    return max(left, 0), max(top, 0), min(right, size[1]), min(bottom, size[0])


def _paste(drawn: Image, one: Pass) -> None:
    """Draw a pass inside of its rings alone."""
    assert one.rings is not None
    if not one.rings:
        return
    height, width = drawn.shape[:2]
    left, top, right, bottom = np.clip(rings_envelope(one.rings), 0, (width, height, width, height)).tolist()
    x, y = math.floor(left), math.floor(top)
    box = (math.ceil(bottom) - y, math.ceil(right) - x)
    if min(box) <= 0:
        return
    shift = translation(-x, -y)
    layers = [layer._replace(matrix=shift @ layer.matrix) for layer in one.layers]
    second = _finish(_draw_layers(layers, box), one.own)
    mask = fill_rings(one.rings, box, origin=(x, y))
    cv2.copyTo(second, mask.view(np.uint8), dst=drawn[y : y + box[0], x : x + box[1]])


def _finish(canvas: Image, colors: Sequence[HSVParameters], out: Image | None = None) -> Image:
    """A canvas of four channels as one of three, in other colours."""
    if not colors:
        out = np.empty((*canvas.shape[:2], 3), np.uint8) if out is None else out
        return np.asarray(cv2.cvtColor(canvas, cv2.COLOR_RGBA2RGB, dst=out), np.uint8)
    out = recolor(canvas, colors[0], out=out)
    for change in colors[1:]:
        recolor(out, change, out=out)
    return out


def _draw_layers(layers: Sequence[Layer], size: Size) -> Image:
    """Layers on a fresh canvas (H, W, 4)."""
    if len(layers) == 1 and layers[0].crop is None:
        layer = layers[0]
        return warp_image(_four(layer.source.read()), layer.matrix, size)
    canvas = np.full((*size, 4), FILL, np.uint8)
    for layer in layers:
        assert layer.crop is not None, 'a layer that fades into grey is alone'
        box = shown_box(layer, size)
        if box[0] < box[2] and box[1] < box[3]:
            _draw_layer(layer, canvas, box)
    return canvas


def _draw_layer(layer: Layer, canvas: Image, box: Box) -> None:
    """Draw what is seen of a layer, inside of a box of the canvas."""
    x1, y1, x2, y2 = box
    shown = canvas[y1:y2, x1:x2]
    size = (y2 - y1, x2 - x1)
    inverse = np.linalg.inv(layer.matrix) @ translation(x1, y1)
    mask = None if keeps_axes(layer.matrix) else _mask(layer, box)
    if mask is not None and not mask.any():
        return
    pixels = layer.source.read()
    if (start := _whole_pixels(inverse)) is not None:
        # What is read lies inside: the centre of each pixel does.
        x, y = start
        part = pixels[y : y + size[0], x : x + size[1]] if inverse[0, 0] > 0 else _mirrored(pixels, x, y, size)
        cv2.cvtColor(part, cv2.COLOR_RGB2RGBA, dst=shown)
        return
    part, origin = _seen_part(pixels, inverse, size)
    # OpenCV counts from pixel centres: its 0 is our 0.5.
    centres = translation(-0.5 - origin[0], -0.5 - origin[1]) @ inverse @ translation(0.5, 0.5)
    warped = cv2.warpAffine(
        part,
        centres[:2],
        size[::-1],
        dst=shown if mask is None else None,
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(FILL, FILL, FILL, FILL),
    )
    if mask is not None:
        cv2.copyTo(warped, mask.view(np.uint8), dst=shown)


def _mask(layer: Layer, box: Box) -> Mask:
    """Which pixels of a box of the canvas show a layer whose map turns or slants."""
    assert layer.crop is not None, 'a layer that fades into grey has no edge'
    left, top, right, bottom = layer.crop
    ring = warp_points(layer.matrix, np.array([[left, top], [right, top], [right, bottom], [left, bottom]]))
    x1, y1, x2, y2 = box
    return fill_rings([ring], (y2 - y1, x2 - x1), origin=(x1, y1))


def _whole_pixels(inverse: Matrix) -> tuple[int, int] | None:
    """Which pixel of the source the first one shows, where each shows one pixel and none is resampled."""
    linear = inverse[:2, :2]
    first = inverse[:2] @ (0.5, 0.5, 1.0) - 0.5
    whole = np.round(first)
    if not (np.array_equal(np.abs(linear), np.eye(2)) and linear[1, 1] > 0 and np.abs(first - whole).max() < NUDGE):
        return None
    return int(whole[0]), int(whole[1])


def _mirrored(pixels: Image, x: int, y: int, size: Size) -> Image:
    """The part of an image that begins at a pixel and goes left and down."""
    return np.asarray(cv2.flip(pixels[y : y + size[0], x + 1 - size[1] : x + 1], 1), np.uint8)


def _seen_part(pixels: Image, inverse: Matrix, size: Size) -> tuple[Image, tuple[int, int]]:
    """What bilinear sampling reads of an image, (h, w, 4), its border pixels once more around it where it ends.

    Args:
        pixels: The source.
        inverse: Pixels of the result to pixels of the source.
        size: Of the result.

    Returns:
        The part, and the x and y of its first pixel in the source.
    """
    height, width = pixels.shape[:2]
    left, top, right, bottom = envelope(inverse, (0.0, 0.0, size[1], size[0]))
    x1, x2 = max(math.floor(left) - MARGIN, 0), min(math.ceil(right) + MARGIN, width)
    y1, y2 = max(math.floor(top) - MARGIN, 0), min(math.ceil(bottom) + MARGIN, height)
    assert min(x2 - x1, y2 - y1) > 0, 'some of it is seen'
    part = np.empty((y2 - y1 + 2, x2 - x1 + 2, 4), np.uint8)
    cv2.cvtColor(pixels[y1:y2, x1:x2], cv2.COLOR_RGB2RGBA, dst=part[1:-1, 1:-1])
    part[0, 1:-1], part[-1, 1:-1] = part[1, 1:-1], part[-2, 1:-1]
    part[:, 0], part[:, -1] = part[:, 1], part[:, -2]
    return part, (x1 - 1, y1 - 1)


def _four(pixels: Image) -> Image:
    """An image with a fourth channel."""
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2RGBA), np.uint8)
