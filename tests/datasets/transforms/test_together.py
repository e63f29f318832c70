"""Whatever a pipeline draws, boxes, polygons, rotated boxes and points stay on the paint of their objects."""

import numpy as np
import pytest

from lucid.datasets.sample import Sample
from lucid.datasets.samplers import SampleKey
from lucid.datasets.transforms import build_pipeline
from lucid.structures.masks import fill_rings
from lucid.structures.polygons import ring_area, rings_envelope
from lucid.structures.rotated import corners

SIZE = 192
MOSAIC = {'type': 'Mosaic', 'close_last': 0, 'window': 1.5, 'min_side': 0.01, 'min_visible': 0.0}
AFFINE = {'type': 'RandomAffine', 'degrees': 25, 'scale': 0.3, 'min_side': 0.01, 'min_visible': 0.0}
LETTERBOX = {'type': 'Letterbox'}
FLIP = {'type': 'HorizontalFlip', 'flip_order': [0, 3, 2, 1]}
PASTE = {'type': 'CopyPaste', 'prob': 1.0, 'close_last': 0, 'min_side': 0.01, 'min_visible': 0.0}
BLEND = {'type': 'Mixup', 'prob': 1.0, 'close_last': 0, 'alpha': 1e9}  # equal shares
PIPELINES = {
    'letterbox': [LETTERBOX],
    'flip': [LETTERBOX, FLIP],
    'affine': [AFFINE],
    'mosaic': [MOSAIC, LETTERBOX],
    'copy-paste': [LETTERBOX, PASTE],
    'mixup': [LETTERBOX, BLEND],
    'recipe without mixup': [MOSAIC, AFFINE, PASTE, FLIP],
    'recipe without copy-paste': [MOSAIC, AFFINE, BLEND, FLIP],
    'copy-paste twice, after a flip': [MOSAIC, AFFINE, FLIP, PASTE, PASTE],
}


@pytest.fixture
def scenes(paint, source):
    """Eight images of different proportions; each has three objects of three colors that do not touch."""
    rng = np.random.default_rng(7)
    samples = []
    for shape in [(SIZE, SIZE), (SIZE, SIZE), (128, SIZE), (SIZE, 128)] * 2:
        boxes = [
            (
                shape[1] * (0.2 + 0.3 * k) + rng.uniform(-5, 5),
                shape[0] * rng.uniform(0.3, 0.7),
                *side,
                rng.uniform(0, 3),
            )
            for k, side in enumerate(rng.uniform((30, 14), (40, 24), (3, 2)))
        ]
        samples.append(paint(shape, boxes, rng.permutation(3)))
    return source(*samples)


def run(pipeline, scenes, epoch, index):
    sample = scenes.read(index)
    sample.key = SampleKey(epoch, index, 100)
    sample.rng = sample.key.generator(seed=0)
    for transform in pipeline:
        sample = transform(sample)
    return sample


def strip(sample: Sample, level: int) -> float:
    """Pixels in which paint and polygons of a color differ, per pixel of outline; the worst color's."""
    worst = 0.0
    for label in range(3):
        rows = np.flatnonzero(sample.labels == label)
        rings = [ring for row in rows for ring in sample.polygons[row]]
        length = sum(np.linalg.norm(ring - np.roll(ring, 1, axis=0), axis=1).sum() for ring in rings)
        painted = sample.image[..., label] > level
        worst = max(worst, (fill_rings(rings, painted.shape) != painted).sum() / max(length, 20))
    return worst


def away(boxes, polygons) -> float:
    """The largest distance of a box's side from the envelope of its polygons, in pixels."""
    distances = [np.abs(box - rings_envelope(rings)).max() for box, rings in zip(boxes, polygons, strict=True) if rings]
    return max(distances, default=0.0)


def beyond(rbox, points) -> float:
    """How far the farthest of some points lies outside of a rotated box, in pixels."""
    cos, sin = np.cos(rbox[4]), np.sin(rbox[4])
    local = (points - rbox[:2]) @ np.array([[cos, -sin], [sin, cos]])
    return (np.abs(local) - rbox[2:4] / 2).max()


@pytest.mark.parametrize('name', PIPELINES)
def test_all_kinds_of_targets_stay_on_their_objects(scenes, name):
    pipeline = build_pipeline(PIPELINES[name], image_size=SIZE, source=scenes)
    level = 120 if BLEND in PIPELINES[name] else 127  # half of the light, and just above the grey of the border
    objects = whole = moved = 0
    for epoch in range(3):
        for index in range(len(scenes)):
            sample = run(pipeline, scenes, epoch, index)
            kinds = (sample.labels, sample.boxes, sample.polygons, sample.rboxes, sample.keypoints)
            assert {len(kind) for kind in kinds} == {len(sample.labels)}
            assert strip(sample, level) < 1.2
            assert away(sample.boxes, sample.polygons) < 1.5
            rings = corners(sample.rboxes)
            gaps = np.linalg.norm(rings[:, :, None] - sample.keypoints[:, None, :, :2], axis=3).min(axis=1)
            assert gaps.max(initial=0) < 0.01
            for rbox, ring, polygons in zip(sample.rboxes, rings, sample.polygons, strict=True):
                # What is seen of an object lies in its rotated box, which stays whole.
                assert all(beyond(rbox, outline) < 1 for outline in polygons)
                whole += len(polygons) == 1 and ring_area(polygons[0]) == pytest.approx(ring_area(ring), rel=1e-3)
            objects += len(sample.labels)
            # Control: the targets of the next sample are not on this one's paint.
            other = run(pipeline, scenes, epoch, (index + 1) % len(scenes))
            other.image = sample.image
            moved += strip(other, level) > 2
    assert objects > 60
    assert whole > 30
    assert moved >= 20


def test_control_targets_that_are_off_by_three_pixels_are_noticed(scenes):
    pipeline = build_pipeline(PIPELINES['recipe without mixup'], image_size=SIZE, source=scenes)
    for index in range(len(scenes)):
        sample = run(pipeline, scenes, 0, index)
        sample.polygons = [[ring + 3 for ring in rings] for rings in sample.polygons]
        assert strip(sample, 127) > 1.2
        assert away(sample.boxes, sample.polygons) > 1.5
        pairs = zip(sample.rboxes, sample.polygons, strict=True)
        assert max(beyond(rbox, ring) for rbox, rings in pairs for ring in rings) > 1
