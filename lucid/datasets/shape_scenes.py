"""Scenes of rotated shapes: what stands where, in numbers.

Everything that ends up in an annotation is made with additions, multiplications, divisions and rounding of float64, and
sines of whole degrees rounded to 9 decimals, so that every machine writes the same file. Coordinates are pixels,
rounded to hundredths.

Shape suffixes: P polygon vertices.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lucid.structures.polygons import contains, ring_area

CLASSES = ('rectangle', 'ellipse', 'triangle', 'cross')
KEYPOINTS = ('top', 'right', 'bottom', 'left')
"""The outermost points of an outline, as seen in the image."""

MAX_OVERLAP = 0.3
"""Largest intersection of two shapes, as share of the smaller one's area."""

MAX_OBJECTS = 8
TRIES = 20
"""Places tried for an object before it is left out."""

GRID = 48
"""Points per side with which an intersection is measured."""

SINES = np.round(np.sin(np.radians(np.arange(450))), 9)
Points = NDArray[np.float64]


class Difficulty(NamedTuple):
    """How hard a scene is.

    sizes:    shortest and longest longer side of an object's upright box, as shares of the image's side
    contrast: smallest and largest difference of grey levels between an object and the background's mean, 0..255
    """

    sizes: tuple[float, float]
    contrast: tuple[int, int]


DIFFICULTIES = {
    'easy': Difficulty(sizes=(0.08, 0.5), contrast=(60, 255)),
    'hard': Difficulty(sizes=(0.04, 0.16), contrast=(15, 35)),
}


class Shape(NamedTuple):
    """One object, wholly inside the image.

    label:     index of ``CLASSES``
    outline:   float64 (P, 2), pixels
    corners:   float64 (4, 2), of the rotated box around it, in turn
    keypoints: (4, 3), x, y and visibility of ``KEYPOINTS``: 2 visible, 1 hidden by a later object
    """

    label: int
    outline: Points
    corners: Points
    keypoints: Points


def make_scene(rng: np.random.Generator, size: int, difficulty: Difficulty) -> list[Shape]:
    """Place one to eight shapes with at most ``MAX_OVERLAP`` between any two.

    Fewer than drawn stand in a scene where the last ones found no place with little enough overlap.

    Args:
        rng: Drawn from.
        size: Side of the square image in pixels.
        difficulty: How large the objects are.

    Returns:
        The shapes in the order in which they are painted; later ones hide earlier ones.
    """
    shapes: list[Shape] = []
    for _ in range(rng.integers(1, MAX_OBJECTS + 1)):
        for _ in range(TRIES):
            shape = _draw_shape(rng, size, difficulty)
            if all(overlap(shape.outline, other.outline) <= MAX_OVERLAP for other in shapes):
                shapes.append(shape)
                break
    return [shape._replace(keypoints=_seen(shape.keypoints, shapes[order + 1 :])) for order, shape in enumerate(shapes)]


def overlap(first_P2: Points, second_P2: Points) -> float:
    """Intersection of two outlines as share of the smaller area, measured on a grid over both their boxes."""
    low = np.maximum(first_P2.min(axis=0), second_P2.min(axis=0))
    extent = np.minimum(first_P2.max(axis=0), second_P2.max(axis=0)) - low
    if (extent <= 0).any():
        return 0.0
    steps = (np.arange(GRID) + 0.5) / GRID
    x, y = low[0] + extent[0] * steps, low[1] + extent[1] * steps
    points = np.stack([np.tile(x, GRID), np.repeat(y, GRID)], axis=1)
    shared = np.count_nonzero(contains(first_P2, points) & contains(second_P2, points)) / GRID**2
    return shared * float(extent[0] * extent[1]) / min(ring_area(first_P2), ring_area(second_P2))


def _draw_shape(rng: np.random.Generator, size: int, difficulty: Difficulty) -> Shape:
    label = int(rng.integers(len(CLASSES)))
    aspect = float(rng.uniform(0.45, 0.8))
    degrees = int(rng.integers(360))
    target = float(rng.uniform(*difficulty.sizes)) * size
    frame = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (0.5, aspect / 2)
    outline, corners = _turn(_outline(CLASSES[label], aspect), degrees), _turn(frame, degrees)
    # The longer side of the upright box gets the drawn length, kept off the limits by what rounding may add.
    span = outline.max(axis=0) - outline.min(axis=0)
    length = min(max(target, difficulty.sizes[0] * size + 0.02), difficulty.sizes[1] * size - 0.02)
    ratio = length / max(span[0], span[1])
    outline, corners = outline * ratio, corners * ratio
    # The rotated box stays inside too, so that it never has to be cut.
    low, high = -corners.min(axis=0), size - corners.max(axis=0)
    place = low + (high - low) * rng.random(2)
    outline, corners = np.round(outline + place, 2), np.round(corners + place, 2)
    return Shape(label, outline, corners, _keypoints(outline))


def _outline(name: str, aspect: float) -> Points:
    """A shape's outline in its own frame: length 1 along x, ``aspect`` along y, centred."""
    half = aspect / 2
    if name == 'rectangle':
        return np.array([[-0.5, -half], [0.5, -half], [0.5, half], [-0.5, half]])
    if name == 'ellipse':
        turns = np.arange(0, 360, 10)
        return np.stack([0.5 * SINES[turns + 90], half * SINES[turns]], axis=1)
    if name == 'triangle':
        return np.array([[0.5, 0.0], [-0.5, half], [-0.5, -half]])
    bar = aspect / 5
    quarter = np.array([[0.5, -bar], [0.5, bar], [bar, bar], [bar, half], [-bar, half], [-bar, bar]])
    return np.concatenate([quarter, -quarter])


def _turn(points_P2: Points, degrees: int) -> Points:
    cos, sin = SINES[degrees + 90], SINES[degrees]
    x, y = points_P2[:, 0], points_P2[:, 1]
    return np.stack([x * cos - y * sin, x * sin + y * cos], axis=1)


def _keypoints(outline_P2: Points) -> Points:
    """The outermost vertices; of several equally far out, the first."""
    rows = [(sign * outline_P2[:, axis]).argmax() for axis, sign in ((1, -1), (0, 1), (1, 1), (0, -1))]
    return np.column_stack([outline_P2[rows], np.full(len(rows), 2)])


def _seen(keypoints: Points, later: list[Shape]) -> Points:
    hidden = np.zeros(len(keypoints), dtype=bool)
    for shape in later:
        hidden |= contains(shape.outline, keypoints[:, :2])
    return np.column_stack([keypoints[:, :2], np.where(hidden, 1, 2)])
