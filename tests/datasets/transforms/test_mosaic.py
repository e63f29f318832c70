import numpy as np
import pytest

from lucid.datasets.samplers import SampleKey
from lucid.datasets.transforms import FILL, AffineParameters, Letterbox, Mosaic, MosaicParameters, RandomAffine


class Source:
    """Partners of a mosaic; counts what is read."""

    def __init__(self, samples):
        self.samples = samples
        self.reads = []

    def __len__(self):
        return len(self.samples)

    def read(self, index):
        self.reads.append(index)
        return self.samples[index]


def plain(paint, shape, value):
    sample = paint(shape, [], [])
    sample.image[:] = value
    return sample


def test_each_image_touches_the_centre_with_its_corner(paint):
    sizes = [(32, 64), (64, 32), (64, 64), (16, 64)]
    first, *others = (plain(paint, size, value) for size, value in zip(sizes, (10, 20, 30, 40), strict=True))
    result = Mosaic(image_size=64, source=Source(others)).apply(first, MosaicParameters((70, 50), (0, 1, 2)))
    expected = np.full((128, 128), FILL)
    expected[50 - 32 : 50, 70 - 64 : 70] = 10
    expected[0:50, 70 : 70 + 32] = 20  # 64 rows, 14 of them above the canvas
    expected[50 : 50 + 64, 70 - 64 : 70] = 30
    expected[50 : 50 + 16, 70:128] = 40  # 64 columns, 6 of them right of the canvas
    np.testing.assert_array_equal(result.image[..., 0], expected)
    np.testing.assert_array_equal(result.image[..., 0], result.image[..., 2])


def test_an_image_that_fits_is_not_resampled_and_others_are_scaled_like_a_letterbox(paint):
    noise = paint((48, 64), [], [])
    noise.image[:] = np.random.default_rng(0).integers(0, 256, (48, 64, 3))
    large = paint((96, 128), [(64, 48, 40, 20, 0)], [1])
    result = Mosaic(image_size=64, source=Source([large])).apply(noise, MosaicParameters((64, 64), (0, 0, 0)))
    np.testing.assert_array_equal(result.image[16:64, :64], noise.image)
    np.testing.assert_array_equal(result.boxes[0] - [64, 16, 64, 16], large.boxes[0] / 2)


@pytest.mark.parametrize('center', [(64, 64), (40, 90), (50, 64), (95, 50)])
def test_all_targets_follow_their_image(paint, misplaced, center):
    first, *others = (
        paint((64, 64), [(40 - 16 * (k % 2), 40 - 16 * (k // 2), 24, 14, 0.5 + k)], [k]) for k in range(3)
    )
    empty = paint((64, 64), [], [])
    result = Mosaic(image_size=64, source=Source([*others, empty]), min_visible=0.99).apply(
        first, MosaicParameters(center, (0, 1, 2))
    )
    # What is cut by the canvas is dropped here, so that the whole outline can be compared.
    assert len(result.boxes) >= 1
    whole = result.selected((result.rboxes[:, :2] > 14).all(axis=1))
    assert misplaced(whole) < 1.5
    if center == (64, 64):
        assert result.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize('window', [1.0, 2.0])
@pytest.mark.parametrize('degrees', [0, 20])
def test_targets_follow_through_mosaic_and_affine(paint, misplaced, window, degrees):
    shapes = [(64, 64), (48, 64), (128, 100), (64, 40)]
    first, *others = (
        paint(shape, [(shape[1] / 2, shape[0] / 2, 24, 14, 0.5 + k)][: k < 3], [k][: k < 3])
        for k, shape in enumerate(shapes)
    )
    mosaic = Mosaic(image_size=64, source=Source(others), window=window).apply(
        first, MosaicParameters((60, 66), (0, 1, 2))
    )
    assert mosaic.labels.tolist() == [0, 1, 2]
    moved = RandomAffine(image_size=256).apply(mosaic, AffineParameters(degrees=degrees, scale=0.5))
    assert moved.labels.tolist() == [0, 1, 2]
    assert misplaced(moved) < 4


def test_a_window_of_one_keeps_the_size_that_objects_have_in_validation(paint):
    sample = paint((96, 128), [(96, 48, 40, 20, 0)], [1])
    validated = Letterbox(image_size=64).apply(sample)
    sizes = {}
    for window in (1.0, 2.0):
        mosaic = Mosaic(image_size=64, source=Source([sample]), window=window)
        whole = mosaic.apply(sample, MosaicParameters((64, 64), (0, 0, 0)))
        fitted = Letterbox(image_size=64).apply(whole)
        sizes[window] = fitted.boxes[0, 2] - fitted.boxes[0, 0]
        centre = whole.view()
        assert centre == ((32, 32, 96, 96) if window == 1 else (0, 0, 128, 128))
    assert sizes[1.0] == validated.boxes[0, 2] - validated.boxes[0, 0] == 20
    assert sizes[2.0] == 10


def test_rectangular_inputs_have_rectangular_canvases(paint):
    sample = plain(paint, (32, 64), 9)
    mosaic = Mosaic(image_size=(32, 64), source=Source([sample]))
    whole = mosaic.apply(sample, MosaicParameters((64, 32), (0, 0, 0)))
    assert whole.image.shape == (64, 128, 3)
    assert (whole.image == 9).all()
    assert whole.view() == (32, 16, 96, 48)


def test_cut_objects_are_dropped_by_side_and_visible_share(paint):
    # The image's upper left quarter lies outside the canvas: x and y lose 32.
    boxes = [(50, 50, 10, 10, 0), (33, 50, 40, 8, 0), (20, 50, 24.5, 8, 0), (10, 10, 8, 8, 0)]
    sample = paint((64, 64), boxes, [0, 1, 2, 0])
    sample.labels = np.arange(4)
    result = Mosaic(image_size=64, source=Source([paint((64, 64), [], [])])).apply(
        sample, MosaicParameters((32, 32), (0, 0, 0))
    )
    np.testing.assert_array_equal(result.labels, [0, 1])
    np.testing.assert_allclose(result.boxes, [[13, 13, 23, 23], [0, 14, 21, 22]], atol=1e-4)


def test_mosaic_closes_in_the_last_epochs(paint):
    sample, source = paint((64, 64), [], []), Source([paint((64, 64), [], [])])
    mosaic = Mosaic(image_size=64, source=source, close_last=10)
    drawn = []
    for epoch in range(30):
        sample.key = SampleKey(epoch, 0, 30 - epoch)
        drawn.append(mosaic.draw(np.random.default_rng(0), sample) is not None)
    assert drawn == [True] * 20 + [False] * 10
    sample.key = SampleKey.of(3)
    assert mosaic.draw(np.random.default_rng(0), sample) is None
    assert mosaic.apply(sample, None) is sample
    assert source.reads == []


def test_draws_cover_the_middle_half_and_all_partners(paint):
    sample = paint((64, 64), [], [])
    sample.key = SampleKey(0, 0, 100)
    mosaic = Mosaic(image_size=(64, 100), source=Source([sample] * 5), prob=0.75)
    rng = np.random.default_rng(0)
    draws = [mosaic.draw(rng, sample) for _ in range(2000)]
    kept = [draw for draw in draws if draw is not None]
    assert 0.72 < len(kept) / 2000 < 0.78
    centers = np.array([draw.center for draw in kept])
    np.testing.assert_array_equal(centers.min(axis=0), [50, 32])
    np.testing.assert_array_equal(centers.max(axis=0), [149, 95])
    np.testing.assert_array_equal(np.bincount(np.ravel([draw.partners for draw in kept])) > 700, [True] * 5)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match=r'prob=1\.5 of Mosaic is no probability'):
        Mosaic(image_size=64, prob=1.5)
    with pytest.raises(ValueError, match='window=3 of Mosaic leaves the canvas'):
        Mosaic(image_size=64, window=3)
