"""Against the pipeline that drew an image after every transform: the same draws and targets, and nearly its pixels.

Its arithmetic is written out here, as it was.
"""

from dataclasses import dataclass, replace

import cv2
import numpy as np
import pytest

from lucid.datasets import SampleKey, ShapesDataset
from lucid.structures.affine import (
    box_areas,
    clip_boxes,
    envelopes,
    keeps_axes,
    letterboxing,
    mirroring,
    rotation,
    scaling,
    shearing,
    translation,
    warp_boxes,
    warp_points,
)
from lucid.structures.masks import fill_rings
from lucid.structures.points import flip_order, warp_keypoints
from lucid.structures.polygons import clip_rings, rings_envelope
from lucid.structures.rotated import corners, warp_rboxes

SIZE = 96
RULES = {'min_side': 2.0, 'min_visible': 0.1}


@dataclass
class Drawn:
    """A sample with its pixels."""

    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    polygons: list
    rboxes: np.ndarray
    keypoints: np.ndarray
    matrix: np.ndarray
    window: tuple | None = None

    def moved(self, matrix, image):
        boxes = warp_boxes(matrix, self.boxes)
        rboxes = warp_rboxes(matrix, self.rboxes)
        polygons = [[warp_points(matrix, ring) for ring in rings] for rings in self.polygons]
        if not keeps_axes(matrix):
            boxes = common(boxes, envelopes(warp_points(matrix, corners(self.rboxes))))
            for row, rings in enumerate(polygons):
                boxes[row] = common(boxes[row], rings_envelope(rings)) if rings else boxes[row]
        keypoints = warp_keypoints(matrix, self.keypoints)
        return Drawn(image, boxes, self.labels, polygons, rboxes, keypoints, matrix @ self.matrix)

    def clipped(self, window):
        boxes = clip_boxes(self.boxes, window)
        keep = box_areas(boxes) >= RULES['min_visible'] * box_areas(self.boxes)
        polygons = [clip_rings(rings, window) for rings in self.polygons]
        for row, (whole, inside) in enumerate(zip(self.polygons, polygons, strict=True)):
            if whole and not inside:
                keep[row] = False
            elif whole:
                left = rings_envelope(inside)
                cut = np.where(left == rings_envelope(whole), boxes[row], clip_boxes(boxes[row], tuple(left.tolist())))
                boxes[row] = cut
        keep &= (boxes[:, 2:] - boxes[:, :2] >= RULES['min_side']).all(axis=1)
        return replace(self, boxes=boxes, polygons=polygons).selected(keep)

    def selected(self, keep):
        polygons = [self.polygons[row] for row in np.flatnonzero(keep)]
        kept = {kind: getattr(self, kind)[keep] for kind in ('boxes', 'labels', 'rboxes', 'keypoints')}
        return replace(self, polygons=polygons, **kept)

    def joined(self, others, image):
        parts = [self, *others]
        kinds = ('boxes', 'labels', 'rboxes', 'keypoints')
        arrays = {kind: np.concatenate([getattr(part, kind) for part in parts]) for kind in kinds}
        return replace(self, image=image, polygons=[rings for part in parts for rings in part.polygons], **arrays)


def common(boxes, others):
    low = np.maximum(boxes[..., :2], others[..., :2])
    return np.concatenate([low, np.minimum(boxes[..., 2:], others[..., 2:])], axis=-1)


def warp(image, matrix, size):
    centres = translation(-0.5, -0.5) @ matrix @ translation(0.5, 0.5)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(image, np.linalg.inv(centres)[:2], (size, size), flags=flags, borderValue=(114,) * 3)


class Before:
    """The pipeline of ``PIPELINE``, eagerly; ``joins`` counts mixups and pastes."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.flip_order = list(flip_order(dataset.keypoint_names))
        self.joins = [0, 0]

    def __call__(self, key):
        rng = key.generator(self.dataset.seed)
        sample = self.geometry(rng, key.index)
        if rng.random() < 0.5:
            partner, seed = int(rng.integers(len(self.dataset))), int(rng.integers(2**63))
            share = float(rng.beta(32, 32))
            second = self.geometry(np.random.Generator(np.random.PCG64(seed)), partner)
            sample = sample.joined([second], cv2.addWeighted(sample.image, share, second.image, 1 - share, 0))
            self.joins[0] += 1
        if rng.random() < 0.5:
            partner, seed = int(rng.integers(len(self.dataset))), int(rng.integers(2**63))
            sample = self.pasted(sample, self.geometry(np.random.Generator(np.random.PCG64(seed)), partner))
            self.joins[1] += 1
        hue, saturation, value = (rng.uniform(-1, 1, size=3) * (0.015, 0.7, 0.4)).tolist()
        levels = np.arange(256)
        shifted = np.round(levels + hue * 256) % 256
        scaled = [np.clip(np.round(levels * (1 + factor)), 0, 255) for factor in (saturation, value)]
        table = np.stack([shifted, *scaled], axis=1).astype(np.uint8)
        hsv = cv2.LUT(cv2.cvtColor(sample.image, cv2.COLOR_RGB2HSV_FULL), table[None])
        sample = replace(sample, image=cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL))
        if rng.random() < 0.5:
            sample = sample.moved(mirroring(SIZE), cv2.flip(sample.image, 1))
            sample.keypoints = sample.keypoints[:, self.flip_order]
        return sample

    def geometry(self, rng, index):
        return self.affine(rng, self.mosaic(rng, index))

    def read(self, index):
        given = self.dataset.read(index)
        kinds = {kind: getattr(given, kind) for kind in ('boxes', 'labels', 'polygons', 'rboxes', 'keypoints')}
        return Drawn(image=given.image, matrix=np.eye(3), **kinds)

    def mosaic(self, rng, index):
        rng.random()  # whether there is a mosaic: always
        x, y = (rng.uniform(0.5, 1.5, size=2) * (SIZE, SIZE)).astype(int).tolist()
        indices = [index, *rng.integers(len(self.dataset), size=3).tolist()]
        canvas = np.full((2 * SIZE, 2 * SIZE, 3), 114, np.uint8)
        parts = []
        for quadrant, part in enumerate(self.fitted(self.read(one)) for one in indices):
            height, width = part.image.shape[:2]
            left, top = x if quadrant % 2 else x - width, y if quadrant // 2 else y - height
            right, bottom = min(left + width, 2 * SIZE), min(top + height, 2 * SIZE)
            shown = part.image[max(-top, 0) : bottom - top, max(-left, 0) : right - left]
            canvas[max(top, 0) : bottom, max(left, 0) : right] = shown
            parts.append(part.moved(translation(left, top), canvas).clipped((0, 0, 2 * SIZE, 2 * SIZE)))
        mosaic = parts[0].joined(parts[1:], canvas)
        mosaic.window = (SIZE / 2, SIZE / 2, 1.5 * SIZE, 1.5 * SIZE)
        return mosaic

    def fitted(self, sample):
        height, width = sample.image.shape[:2]
        ratio = min(SIZE / height, SIZE / width)
        fitted = max(1, round(width * ratio)), max(1, round(height * ratio))
        if fitted == (width, height):
            return sample
        image = cv2.resize(sample.image, fitted, interpolation=cv2.INTER_LINEAR)
        return sample.moved(scaling(fitted[0] / width, fitted[1] / height), image)

    def affine(self, rng, sample):
        degrees, x, y, scale, shear_x, shear_y = rng.uniform(-1, 1, size=6).tolist()
        x, y, scale = x * 0.1, y * 0.1, max(1 + scale * 0.5, 1e-3)
        matrix = (
            translation(SIZE / 2 + x * SIZE, SIZE / 2 + y * SIZE)
            @ shearing(shear_x * 2, shear_y * 2)
            @ rotation(degrees * 5)
            @ scaling(scale, scale)
            @ translation(-SIZE / 2, -SIZE / 2)
        ) @ letterboxing(sample.window, (SIZE, SIZE))
        return sample.moved(matrix, warp(sample.image, matrix, SIZE)).clipped((0, 0, SIZE, SIZE))

    def pasted(self, sample, second):
        pasted = second.selected(np.array([bool(rings) for rings in second.polygons], dtype=bool))
        mask = fill_rings([ring for rings in pasted.polygons for ring in rings], (SIZE, SIZE))
        image = np.where(mask[..., None], second.image, sample.image)
        # What a mask hides is decided by code that did not change; it sees no pixels.
        seen = self.dataset.read(0)
        for kind in ('boxes', 'labels', 'polygons', 'rboxes', 'keypoints'):
            setattr(seen, kind, getattr(sample, kind))
        seen = seen.covered(mask, **RULES)
        kinds = {kind: getattr(seen, kind) for kind in ('boxes', 'labels', 'polygons', 'rboxes', 'keypoints')}
        return replace(sample, **kinds).joined([pasted], image)


PIPELINE = [
    {'type': 'Mosaic', 'close_last': 0},
    {'type': 'RandomAffine', 'degrees': 5, 'shear': 2},
    {'type': 'Mixup', 'prob': 0.5, 'close_last': 0},
    {'type': 'CopyPaste', 'prob': 0.5, 'close_last': 0},
    {'type': 'RandomHSV'},
    {'type': 'HorizontalFlip'},
]


@pytest.fixture(scope='module')
def dataset(tmp_path_factory):
    return ShapesDataset(
        tmp_path_factory.mktemp('shapes'),
        split='train',
        num_images=12,
        image_size=SIZE,
        scene_size=150,  # every image of the mosaic is resampled on its way into it
        targets=('boxes', 'polygons', 'rboxes', 'keypoints'),
        pipeline=PIPELINE,
    )


def same_targets(one, other):
    return (
        all(np.array_equal(getattr(one, k), getattr(other, k)) for k in ('boxes', 'labels', 'rboxes', 'keypoints'))
        and len(one.polygons) == len(other.polygons)
        and all(
            len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs))
            for ours, theirs in zip(one.polygons, other.polygons, strict=True)
        )
    )


def test_draws_and_all_kinds_of_targets_are_bit_for_bit_those_of_before(dataset):
    before = Before(dataset)
    objects = 0
    for epoch in range(4):
        for index in range(len(dataset)):
            key = SampleKey(epoch, index, 9)
            ours, theirs = dataset[key], before(key)
            assert same_targets(ours, theirs)
            np.testing.assert_array_equal(ours.matrix, theirs.matrix)
            objects += len(ours.boxes)
            # Control: the targets of another epoch are others.
            assert not same_targets(ours, before(key._replace(epoch=epoch + 50)))
    assert objects > 300
    assert min(before.joins) > 20


def test_pixels_are_those_of_before_but_for_the_second_resampling(dataset):
    before = Before(dataset)
    differences, others = [], []
    for index in range(len(dataset)):
        key = SampleKey(0, index, 9)
        ours, theirs = dataset[key].image.astype(int), before(key).image.astype(int)
        differences.append(np.abs(ours - theirs))
        others.append(np.abs(np.roll(ours, 1, axis=1) - theirs).mean())
    # Smooth scenes with sharp outlines: what differs are the outlines, and the seams of the mosaic.
    assert np.mean(differences) < 2
    assert (np.array(differences) > 16).mean() < 0.015
    # Control: an image that is one pixel beside differs more.
    assert np.mean(others) > 2 * np.mean(differences)
