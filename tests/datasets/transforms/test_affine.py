import numpy as np
import pytest

from lucid.datasets.transforms import AffineParameters, Letterbox, RandomAffine

BOXES = [(38, 30, 30, 16, 0.4), (80, 70, 34, 14, 2.1), (30, 75, 22, 20, -0.2)]
LABELS = [0, 1, 2]


def test_without_change_it_is_the_letterbox_bit_for_bit(paint):
    for shape in ((48, 64), (111, 87)):
        sample = paint(shape, [(30, 25, 20, 10, 0.3)], [1])
        affine = RandomAffine(image_size=96).apply(sample, AffineParameters())
        plain = Letterbox(image_size=96).apply(sample)
        np.testing.assert_array_equal(affine.image, plain.image)
        np.testing.assert_array_equal(affine.boxes, plain.boxes)


def test_without_change_an_image_of_the_right_size_stays_bit_for_bit(paint):
    sample = paint((96, 96), BOXES[:1], LABELS[:1])
    sample.image[:] = np.random.default_rng(0).integers(0, 256, (96, 96, 3))
    result = RandomAffine(image_size=96).apply(sample, AffineParameters())
    np.testing.assert_array_equal(result.image, sample.image)
    np.testing.assert_array_equal(result.boxes, sample.boxes)


@pytest.mark.parametrize(
    'parameters',
    [
        AffineParameters(scale=1.3),
        AffineParameters(scale=0.6, translate=(0.1, -0.05)),
        AffineParameters(degrees=30),
        AffineParameters(degrees=-75, scale=0.8),
        AffineParameters(shear_degrees=(3, 0), degrees=10),
    ],
)
@pytest.mark.parametrize('shape', [(100, 110), (110, 160)])
def test_all_targets_follow_the_pixels(paint, misplaced, parameters, shape):
    sample = paint(shape, BOXES, LABELS)
    moved = RandomAffine(image_size=256, degrees=1).apply(sample, parameters)
    assert moved.labels.tolist() == LABELS
    assert misplaced(moved) < 3.5
    # Control: targets of the wrong image are far off.
    sample.image = moved.image
    assert misplaced(sample) > 10


def test_a_quarter_turn_of_upright_boxes_is_exact(paint):
    sample = paint((100, 100), [(30, 20, 40, 10, 0)], [0])
    moved = RandomAffine(image_size=100).apply(sample, AffineParameters(degrees=90))
    # (x, y) becomes (100 - y, x)
    np.testing.assert_allclose(moved.boxes, [[75, 10, 85, 50]], atol=1e-4)


def test_boxes_of_turned_objects_are_those_of_their_outlines_where_known(paint):
    diamond = paint((100, 100), [(50, 50, 40, 40, np.pi / 4)], [0])
    known = RandomAffine(image_size=100).apply(diamond, AffineParameters(degrees=45))
    np.testing.assert_allclose(known.boxes, [[30, 30, 70, 70]], atol=1e-3)
    diamond.polygons = diamond.rboxes = None
    unknown = RandomAffine(image_size=100).apply(diamond, AffineParameters(degrees=45))
    np.testing.assert_allclose(unknown.boxes, [[10, 10, 90, 90]], atol=1e-3)


def test_objects_are_clipped_and_dropped_by_side_and_visible_share(paint):
    # Shifted left by 50 of 100 pixels: x becomes x - 50.
    boxes = [
        (70, 20, 20, 10, 0),  # 10..30: whole
        (50, 40, 40, 10, 0),  # -20..20: half of it
        (41, 60, 20, 10, 0),  # -19..1: one pixel wide
        (34, 80, 40, 10, 0),  # -36..4: exactly a tenth
        (33, 92, 40, 10, 0),  # -37..3: less than a tenth
        (10, 10, 10, 10, 0),  # outside
    ]
    sample = paint((100, 100), boxes, [0, 1, 2, 0, 1, 2])
    sample.labels = np.arange(6)
    moved = RandomAffine(image_size=100).apply(sample, AffineParameters(translate=(-0.5, 0)))
    np.testing.assert_array_equal(moved.labels, [0, 1, 3])
    np.testing.assert_allclose(moved.boxes, [[10, 15, 30, 25], [0, 35, 20, 45], [0, 75, 4, 85]], atol=1e-4)
    assert [len(kind) for kind in (moved.polygons, moved.rboxes, moved.keypoints)] == [3, 3, 3]
    # Polygons are cut, rotated boxes and keypoints keep what lies outside.
    assert min(ring[:, 0].min() for rings in moved.polygons for ring in rings) == 0
    np.testing.assert_allclose(moved.rboxes[1], [0, 40, 40, 10, 0], atol=1e-4)
    assert moved.keypoints[1, :, 0].min() == pytest.approx(-20, abs=1e-4)
    assert len(sample.boxes) == 6


def test_draws_stay_in_their_ranges_and_fill_them(paint):
    transform = RandomAffine(image_size=64, degrees=10, translate=0.1, scale=0.5, shear=2)
    rng = np.random.default_rng(0)
    draws = [transform.draw(rng, paint((8, 8), [], [])) for _ in range(2000)]
    flat = np.array([[d.degrees, *d.translate, d.scale, *d.shear_degrees] for d in draws])
    bounds = np.array([10, 0.1, 0.1, 0.5, 2, 2])
    centred = (flat - [0, 0, 0, 1, 0, 0]) / bounds
    assert (np.abs(centred) <= 1).all()
    assert (np.abs(centred).max(axis=0) > 0.98).all()
    assert (np.abs(centred.mean(axis=0)) < 0.05).all()


def test_the_scale_stays_positive(paint):
    transform = RandomAffine(image_size=64, scale=3.0)
    rng = np.random.default_rng(0)
    scales = [transform.draw(rng, paint((8, 8), [], [])).scale for _ in range(100)]
    assert min(scales) == 1e-3
    assert transform.apply(paint((64, 64), BOXES, LABELS), AffineParameters(scale=1e-3)).boxes.shape == (0, 4)
