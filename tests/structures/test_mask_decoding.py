import math

import numpy as np
import pytest
import torch
from faster_coco_eval import mask as coco_mask

from lucid.structures import mask_decoding
from lucid.structures.affine import letterboxing, mirroring, rotation
from lucid.structures.mask_decoding import decode_masks


def meta(original_hw, matrix):
    return {'original_hw': original_hw, 'matrix': matrix}


def fitted(original_hw, size):
    return meta(original_hw, letterboxing((0, 0, original_hw[1], original_hw[0]), size))


def pixels(masks):
    return np.stack([coco_mask.decode(mask) for mask in masks]).astype(bool)


def enlarged(cells, y, x):
    """Bilinear value of a grid of 4-pixel cells at the centre of an input pixel, edges repeated."""
    height, width = len(cells), len(cells[0])
    top, left = max((y + 0.5) / 4 - 0.5, 0.0), max((x + 0.5) / 4 - 0.5, 0.0)
    i, j = int(top), int(left)
    below, right = min(i + 1, height - 1), min(j + 1, width - 1)
    upper = cells[i][j] * (1 - (left - j)) + cells[i][right] * (left - j)
    lower = cells[below][j] * (1 - (left - j)) + cells[below][right] * (left - j)
    return upper * (1 - (top - i)) + lower * (top - i)


def reference(coefficients, prototypes, box, given, *, threshold_first=False):
    """One mask by the definition, one original pixel at a time."""
    height, width = prototypes.shape[1:]
    cells = [
        [
            1 / (1 + math.exp(-sum(c * p for c, p in zip(coefficients, prototypes[:, i, j].tolist(), strict=True))))
            for j in range(width)
        ]
        for i in range(height)
    ]
    if threshold_first:
        cells = [[float(value > 0.5) for value in row] for row in cells]
    mask = np.zeros(given['original_hw'], dtype=bool)
    for row, column in np.ndindex(*mask.shape):
        x, y, _ = given['matrix'] @ (column + 0.5, row + 0.5, 1.0)
        x, y = math.floor(x), math.floor(y)
        if 0 <= x < 4 * width and 0 <= y < 4 * height:
            inside = box[0] <= x + 0.5 < box[2] and box[1] <= y + 0.5 < box[3]
            mask[row, column] = inside and enlarged(cells, y, x) > 0.5
    return mask


def ones(*shape):
    return np.ones(shape, np.float32)


def scene(seed=0, *, count=5, size=(32, 24)):
    """Coefficients, prototypes and boxes of ``count`` detections in an input of ``size`` pixels."""
    generator = torch.Generator().manual_seed(seed)
    coefficients = torch.rand(count, 4, generator=generator) * 2 - 1
    prototypes = torch.randn(4, size[0] // 4, size[1] // 4, generator=generator) * 3
    low = torch.rand(count, 2, generator=generator) * 10 - 2
    boxes = torch.cat((low, low + 6 + torch.rand(count, 2, generator=generator) * 16), dim=1)
    return coefficients.numpy(), prototypes.numpy(), boxes.numpy()


@pytest.mark.parametrize(
    'given',
    [
        fitted((20, 17), (32, 24)),  # enlarged
        fitted((75, 50), (32, 24)),  # shrunk, with padding at the sides
        fitted((30, 90), (32, 24)),  # padding above and below
        meta((24, 24), letterboxing((0, 0, 24, 24), (32, 24)) @ mirroring(24)),
        meta((24, 20), rotation(20.0)),
        meta((9, 1), rotation(20.0)),
        meta((1, 1), np.diag([24.0, 32.0, 1.0])),
    ],
)
def test_masks_are_what_the_definition_gives_pixel_by_pixel(given):
    coefficients, prototypes, boxes = scene()
    found = decode_masks(coefficients, prototypes, boxes, meta=given)
    assert [mask['size'] for mask in found] == [list(given['original_hw'])] * 5
    expected = [reference(c, prototypes, b, given) for c, b in zip(coefficients.tolist(), boxes.tolist(), strict=True)]
    np.testing.assert_array_equal(pixels(found), expected)
    if min(given['original_hw']) > 9:
        assert sum(0 < mask.sum() < mask.size for mask in expected) >= 3
        # Controls: coefficients of another detection, and a threshold before the enlargement, give other masks.
        others = decode_masks(np.roll(coefficients, 1, axis=0), prototypes, boxes, meta=given)
        assert any((a != b).any() for a, b in zip(pixels(others), expected, strict=True))
        first = [
            reference(c, prototypes, b, given, threshold_first=True)
            for c, b in zip(coefficients.tolist(), boxes.tolist(), strict=True)
        ]
        assert any((a != b).any() for a, b in zip(first, expected, strict=True))


def test_an_edge_between_cells_is_where_the_bilinear_sum_crosses_one_half():
    """Along a row the cells are sigmoid(ln 3) = 3/4 and sigmoid(-ln 3) = 1/4; between centres 2 and 6, half at 4."""
    row = np.array([math.log(3), -math.log(3)], np.float32)
    box = np.array([[0.0, 0.0, 8.0, 8.0]], np.float32)
    (mask,) = pixels(decode_masks(ones(1, 1), np.tile(row, (1, 2, 1)), box, meta=meta((8, 8), np.eye(3))))
    np.testing.assert_array_equal(mask, np.arange(8)[None].repeat(8, 0) < 4)
    # With 0.9 and 0.3 half is crossed at 2 + 4 * (0.4 / 0.6) = 4.67: the pixel with centre 4.5 is in. A threshold of
    # the cells would still end at 4.
    row = np.array([math.log(9), math.log(3 / 7)], np.float32)
    (mask,) = pixels(decode_masks(ones(1, 1), np.tile(row, (1, 2, 1)), box, meta=meta((8, 8), np.eye(3))))
    np.testing.assert_array_equal(mask, np.arange(8)[None].repeat(8, 0) < 5)


def test_a_box_takes_the_pixels_whose_centres_it_holds_its_left_and_upper_edge_included():
    boxes = [[1.5, 0.5, 4.5, 3.6], [1.6, 0.4, 4.6, 3.5], [2.6, 2.6, 3.4, 3.4], [6.0, 6.0, 99.0, 99.0]]
    boxes = np.array(boxes, np.float32)
    found = pixels(decode_masks(ones(4, 1), 9 * ones(1, 2, 2), boxes, meta=meta((8, 8), np.eye(3))))
    windows = [(slice(0, 4), slice(1, 4)), (slice(0, 3), slice(2, 5)), None, (slice(6, 8), slice(6, 8))]
    for mask, window in zip(found, windows, strict=True):
        expected = np.zeros((8, 8), dtype=bool)
        if window is not None:
            expected[window] = True
        np.testing.assert_array_equal(mask, expected)


def test_run_lengths_are_those_of_the_library_for_the_whole_image():
    generator = np.random.default_rng(0)
    for _ in range(30):
        height, width = generator.integers(1, 9, 2)
        mask = generator.random((height, width)) < generator.choice([0.0, 0.3, 0.7, 1.0])
        top, left = generator.integers(0, height), generator.integers(0, width)
        mask[:top], mask[:, :left] = False, False
        found = mask_decoding._run_lengths(mask[top:, left:], (int(top), int(left)), (int(height), int(width)))
        expected = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
        assert found == {'size': [height, width], 'counts': expected['counts'].decode()}
    assert isinstance(found['counts'], str)


def test_a_mask_does_not_depend_on_what_else_was_found():
    coefficients, prototypes, boxes = scene(1, count=7)
    given = fitted((20, 17), (32, 24))
    whole = decode_masks(coefficients, prototypes, boxes, meta=given)
    for i in range(7):
        assert decode_masks(coefficients[i : i + 1], prototypes, boxes[i : i + 1], meta=given) == whole[i : i + 1]
    assert len({mask['counts'] for mask in whole}) > 1


def test_a_large_image_with_many_detections_stays_in_bounds(monkeypatch):
    """300 masks of 12 million pixels, 3.6 GB as bool, are never there at once: one at a time, of its box's size."""
    sizes, inner = [], mask_decoding._run_lengths
    monkeypatch.setattr(
        mask_decoding, '_run_lengths', lambda part, *more: sizes.append(part.shape) or inner(part, *more)
    )
    boxes = np.tile(np.array([10, 20, 14, 26], np.float32), (300, 1))
    found = decode_masks(ones(300, 1), ones(1, 16, 16), boxes, meta=fitted((3000, 4000), (64, 64)))
    # The input has 1 pixel for 62.5 of the original, and 8 pixels of padding above.
    assert set(sizes) == {(375, 250)}
    assert len(found) == 300
    assert coco_mask.area(found[0]) == 375 * 250


def test_no_detection_gives_no_mask_and_a_number_that_is_not_finite_an_empty_one():
    coefficients, prototypes, boxes = scene()
    given = fitted((20, 17), (32, 24))
    assert decode_masks(coefficients[:0], prototypes, boxes[:0], meta=given) == []
    coefficients[1, 2] = float('nan')
    found = pixels(decode_masks(coefficients, prototypes, boxes, meta=given))
    assert [bool(mask.any()) for mask in found] == [True, False, True, True, True]


@pytest.mark.parametrize('bad', [float('nan'), float('inf'), -float('inf')])
@pytest.mark.parametrize('side', range(4))
def test_a_box_that_is_not_finite_has_an_empty_mask(side, bad):
    boxes = np.tile(np.array([0, 0, 24, 32], np.float32), (2, 1))
    boxes[0, side] = bad
    found = pixels(decode_masks(ones(2, 1), ones(1, 8, 6), boxes, meta=fitted((32, 24), (32, 24))))
    assert [int(mask.sum()) for mask in found] == [0, 32 * 24]


def test_a_probability_of_one_half_is_not_above_it():
    given = fitted((32, 24), (32, 24))
    for logit, count in ((0.0, 0), (1e-3, 32 * 24)):
        box = np.array([[0, 0, 24, 32]], np.float32)
        (mask,) = decode_masks(ones(1, 1), np.float32(logit) * ones(1, 8, 6), box, meta=given)
        assert coco_mask.decode(mask).sum() == count
