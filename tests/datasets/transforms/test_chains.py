"""Random chains of transforms: boxes, masks, rotated boxes and points of an object stay together and on its paint."""

from dataclasses import replace

import numpy as np
import pytest

from lucid.datasets import detection_collate
from lucid.datasets.sample import Sample
from lucid.datasets.samplers import SampleKey
from lucid.datasets.transforms import build_pipeline
from lucid.structures.polygons import ring_area, rings_envelope
from lucid.structures.rotated import corners

SIZE = 192
GENTLE = {'min_side': 0.01, 'min_visible': 0.0}
MOSAIC = {'type': 'Mosaic', 'close_last': 0, 'window': 1.5, **GENTLE}
WARP = {'type': 'RandomAffine', 'degrees': 40, 'scale': 0.3, 'translate': 0.1, **GENTLE}
LETTERBOX = {'type': 'Letterbox'}
FLIP = {'type': 'HorizontalFlip', 'flip_order': [0, 3, 2, 1], 'prob': 0.7}
PASTE = {'type': 'CopyPaste', 'prob': 1.0, 'close_last': 0, **GENTLE}
BLEND = {'type': 'Mixup', 'prob': 1.0, 'close_last': 0, 'alpha': 1e9}  # equal shares
KINDS = {'masks', 'boxes', 'rboxes', 'keypoints'}


def chain(rng):
    """Up to seven transforms that may follow each other; blended paint is too faint for another interpolation."""
    first = [MOSAIC] if rng.random() < 0.5 else []
    fitted = [WARP if rng.random() < 0.6 else LETTERBOX]
    pool = [FLIP, WARP, PASTE, LETTERBOX]
    middle = [pool[place] for place in rng.integers(len(pool), size=rng.integers(0, 4))]
    last = [BLEND] if rng.random() < 0.3 else []
    return first + fitted + middle + last + ([FLIP] if rng.random() < 0.5 else [])


@pytest.fixture
def scenes(paint, source):
    """Six images of different proportions; each has three objects of three colors that do not touch."""
    rng = np.random.default_rng(11)
    samples = []
    for shape in [(SIZE, SIZE), (128, SIZE), (SIZE, 128)] * 2:
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


def run(pipeline, scenes, epoch, index) -> Sample:
    sample = scenes.read(index)
    sample.key = SampleKey(epoch, index, 100)
    sample.rng = sample.key.generator(seed=0)
    for transform in pipeline:
        sample = transform(sample)
    return sample


def wrong_cells(sample: Sample, level: int) -> float:
    """Cells that paint fills or leaves free where the masks of its color say otherwise, by cells that paint fills."""
    masks = detection_collate([sample], masks=True)['targets'].masks_NHW.numpy()
    wrong = filled = 0
    for label in range(3):
        painted = sample.image[..., label] > level
        share = painted.reshape(SIZE // 4, 4, SIZE // 4, 4).mean(axis=(1, 3))
        union = masks[sample.labels == label].any(axis=0)
        wrong += ((share > 0.95) & ~union).sum() + ((share < 0.05) & union).sum()
        filled += (share > 0.5).sum()
    return wrong / max(filled, 20)


def beyond(rbox, points) -> float:
    """How far the farthest of some points lies outside of a rotated box, in pixels."""
    cos, sin = np.cos(rbox[4]), np.sin(rbox[4])
    local = (points - rbox[:2]) @ np.array([[cos, -sin], [sin, cos]])
    return (np.abs(local) - rbox[2:4] / 2).max()


def turns_right(points) -> bool:
    """Whether points in turn go round as a painted object's corners do: mirrored without a swap, they do not."""
    following = np.roll(points, -1, axis=0)
    return (points[:, 0] * following[:, 1] - points[:, 1] * following[:, 0]).sum() > 0


def offences(sample: Sample, level: int) -> tuple[set[str], int]:
    """Kinds that are not where the paint, or where the outline of their object is; and the objects that are whole."""
    found = {'masks'} if wrong_cells(sample, level) > 0.01 else set()
    whole = 0
    for box, rings, rbox, points in zip(
        sample.boxes, sample.polygons, sample.rboxes, sample.keypoints[..., :2], strict=True
    ):
        if np.abs(box - rings_envelope(rings)).max() > 1.5:
            found.add('boxes')
        if max(beyond(rbox, ring) for ring in rings) > 1:
            found.add('rboxes')
        if not turns_right(points):
            found.add('keypoints')
        if [len(ring) for ring in rings] == [4] and ring_area(rings[0]) == pytest.approx(rbox[2] * rbox[3], rel=1e-4):
            whole += 1
            gaps = np.linalg.norm(rings[0][:, None] - points[None], axis=2)
            if gaps.min(axis=0).max() > 0.05:
                found.add('keypoints')
    return found, whole


def level_of(pipeline) -> int:
    """Half of the light, and more than the grey of the border."""
    return 120 if any(type(transform).__name__ == 'Mixup' for transform in pipeline) else 127


@pytest.mark.parametrize('seed', range(24))
def test_a_random_chain_moves_all_kinds_of_targets_together(scenes, seed):
    configs = chain(np.random.default_rng(seed))
    pipeline = build_pipeline(configs, image_size=SIZE, source=scenes)
    whole = objects = 0
    for index in range(len(scenes)):
        sample = run(pipeline, scenes, seed, index)
        rows = (sample.labels, sample.boxes, sample.polygons, sample.rboxes, sample.keypoints)
        assert {len(kind) for kind in rows} == {len(sample.labels)}
        found, seen = offences(sample, level_of(pipeline))
        assert not found, [config['type'] for config in configs]
        whole, objects = whole + seen, objects + len(sample.labels)
    assert objects >= 12
    assert whole >= 4


BREAKS = {
    'masks': lambda sample: {'polygons': [[ring + np.float32(2) for ring in rings] for rings in sample.polygons]},
    'boxes': lambda sample: {'boxes': sample.boxes + np.float32(3)},
    'rboxes': lambda sample: {'rboxes': sample.rboxes + np.array([0, 0, 0, 0, 0.4], np.float32)},
    'keypoints': lambda sample: {'keypoints': sample.keypoints + np.array([3, 0, 0], np.float32)},
    'rows of boxes': lambda sample: {'boxes': np.roll(sample.boxes, 1, axis=0)},
    'rows of rboxes': lambda sample: {'rboxes': np.roll(sample.rboxes, 1, axis=0)},
    'rows of keypoints': lambda sample: {'keypoints': np.roll(sample.keypoints, 1, axis=0)},
    'rows of polygons': lambda sample: {'polygons': [*sample.polygons[1:], sample.polygons[0]]},
}


@pytest.mark.parametrize('broken', BREAKS)
def test_control_one_kind_that_is_off_is_noticed(scenes, broken):
    pipeline = build_pipeline([LETTERBOX, FLIP], image_size=SIZE, source=scenes)
    for index in range(len(scenes)):
        sample = run(pipeline, scenes, 0, index)
        assert offences(sample, 127)[0] == set()
        found, _ = offences(replace(sample, **BREAKS[broken](sample)), 127)
        # Rotated boxes decide what is whole, and polygons what all others are compared with.
        expected = {'rows of polygons': {'boxes', 'rboxes'}}.get(broken, {broken.removeprefix('rows of ')})
        assert found >= expected
        if broken in ('boxes', 'rboxes', 'keypoints', 'rows of boxes', 'rows of keypoints'):
            assert found == expected


def test_control_points_that_keep_their_names_in_a_mirror_are_noticed(scenes):
    pipeline = build_pipeline([LETTERBOX, {**FLIP, 'prob': 1.0, 'flip_order': [0, 1, 2, 3]}], image_size=SIZE)
    for index in range(len(scenes)):
        assert offences(run(pipeline, scenes, 0, index), 127)[0] == {'keypoints'}


def test_a_shear_carries_outlines_and_points_exactly_and_refits_rotated_boxes(scenes):
    pipeline = build_pipeline([{**WARP, 'shear': 20, 'scale': 0.0, 'translate': 0.0}, FLIP], image_size=SIZE)
    for index in range(len(scenes)):
        sample = run(pipeline, scenes, 0, index)
        assert wrong_cells(sample, 127) <= 0.01
        for rings, rbox, points in zip(sample.polygons, sample.rboxes, sample.keypoints[..., :2], strict=True):
            # The centre is that of the outline; the sides are as long as its own.
            np.testing.assert_allclose(rbox[:2], points.mean(axis=0), atol=1e-3)
            sides = np.sort(np.linalg.norm(np.roll(points, -1, axis=0) - points, axis=1))
            np.testing.assert_allclose(rbox[2:4], [sides[2:].mean(), sides[:2].mean()], rtol=1e-4)
            if len(rings[0]) == 4:
                assert np.linalg.norm(rings[0][:, None] - points[None], axis=2).min(axis=0).max() < 1e-3
    # Control: boxes that were not refitted have other sides.
    still = scenes.read(len(scenes) - 1)
    assert np.abs(corners(sample.rboxes) - corners(still.rboxes[: len(sample.rboxes)])).max() > 3
