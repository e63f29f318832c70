import numpy as np
import pytest

from lucid.datasets.transforms import HorizontalFlip

ORDER = [0, 3, 2, 1]


def test_all_targets_follow_the_pixels(paint, misplaced):
    sample = paint((60, 81), [(20, 20, 30, 12, 0.4), (60, 40, 24, 16, 2.0)], [0, 2])
    flipped = HorizontalFlip(flip_order=ORDER).apply(sample, True)
    np.testing.assert_array_equal(flipped.image, sample.image[:, ::-1])
    np.testing.assert_allclose(
        flipped.boxes[:, [2, 1, 0, 3]], sample.boxes * [-1, 1, -1, 1] + [81, 0, 81, 0], atol=1e-5
    )
    assert misplaced(flipped) < 1.5


def test_twice_is_nothing(paint):
    sample = paint((60, 81), [(20, 20, 30, 12, 0.4)], [0])
    flip = HorizontalFlip(flip_order=ORDER)
    twice = flip.apply(flip.apply(sample, True), True)
    np.testing.assert_array_equal(twice.image, sample.image)
    np.testing.assert_allclose(twice.boxes, sample.boxes, atol=1e-4)
    np.testing.assert_allclose(twice.rboxes, sample.rboxes, atol=1e-4)
    np.testing.assert_allclose(twice.keypoints, sample.keypoints, atol=1e-4)
    np.testing.assert_allclose(twice.matrix, np.eye(3), atol=1e-12)


def test_left_and_right_keypoints_change_places(paint):
    sample = paint((10, 100), [(20, 5, 8, 4, 0)], [0])
    # nose at 20, left eye at 24, right eye at 16, as of someone who looks out of the image
    sample.keypoints = np.array([[[20, 5, 2], [24, 4, 2], [16, 4, 1]]], np.float32)
    flipped = HorizontalFlip(flip_order=[0, 2, 1]).apply(sample, True)
    # Mirrored, what was the right eye is at 84 and is the left one.
    np.testing.assert_array_equal(flipped.keypoints, [[[80, 5, 2], [84, 4, 1], [76, 4, 2]]])


def test_rotated_boxes_are_turned_the_other_way(paint):
    flipped = HorizontalFlip(flip_order=ORDER).apply(paint((60, 100), [(30, 30, 20, 8, 0.3)], [0]), True)
    np.testing.assert_allclose(flipped.rboxes, [[70, 30, 20, 8, -0.3]], atol=1e-5)


def test_half_of_the_samples_are_mirrored(paint):
    sample, rng = paint((8, 8), [], []), np.random.default_rng(0)
    draws = [HorizontalFlip().draw(rng, sample) for _ in range(2000)]
    assert 0.47 < np.mean(draws) < 0.53
    assert not any(HorizontalFlip(prob=0.0).draw(rng, sample) for _ in range(100))
    assert all(HorizontalFlip(prob=1.0).draw(rng, sample) for _ in range(100))
    assert HorizontalFlip().apply(sample, False) is sample


def test_an_impossible_probability_is_refused():
    with pytest.raises(ValueError, match='prob=2 of HorizontalFlip is no probability'):
        HorizontalFlip(prob=2)
