import numpy as np
import pytest

from lucid.datasets.transforms import FILL, Letterbox
from lucid.structures.affine import warp_boxes


@pytest.mark.parametrize(
    ('shape', 'rows', 'columns'),
    [
        ((5, 7), (1, 8), (0, 10)),  # 7 rows of content in 10: one of grey above, two below
        ((8, 4), (0, 10), (2, 7)),  # 5 columns of content: two of grey left, three right
        ((10, 10), (0, 10), (0, 10)),
        ((3, 30), (4, 5), (0, 10)),  # one row of content: four of grey above, five below
    ],
)
def test_the_content_lies_centred_with_odd_padding_right_and_below(paint, shape, rows, columns):
    sample = paint(shape, [], [])
    sample.image[:] = 255
    fitted = Letterbox(image_size=10).apply(sample).image
    content = np.zeros((10, 10), bool)
    content[slice(*rows), slice(*columns)] = True
    assert (fitted[~content] < 150).all()
    assert (fitted[content] > 150).all()


def test_padding_is_grey(paint):
    fitted = Letterbox(image_size=64).apply(paint((20, 64), [], [])).image
    assert (fitted[:22] == FILL).all()
    assert (fitted[42:] == FILL).all()
    assert (fitted[22:42] == 0).all()


def test_an_image_of_the_right_size_is_not_resampled(paint):
    sample = paint((48, 64), [], [])
    sample.image[:] = np.random.default_rng(0).integers(0, 256, (48, 64, 3))
    np.testing.assert_array_equal(Letterbox(image_size=64).apply(sample).image[8:56], sample.image)


@pytest.mark.parametrize('shape', [(48, 64), (111, 87), (200, 333)])
@pytest.mark.parametrize('size', [96, (64, 160)])
def test_all_targets_follow_and_the_matrix_maps_them_back(paint, misplaced, shape, size):
    height, width = shape
    boxes = [(width * 0.3, height * 0.4, 26, 14, 0.5), (width * 0.7, height * 0.7, 22, 16, 2.0)]
    sample = paint(shape, boxes, [0, 2])
    fitted = Letterbox(image_size=size).apply(sample)
    assert misplaced(fitted) < 2
    back = warp_boxes(np.linalg.inv(fitted.matrix), fitted.boxes)
    np.testing.assert_allclose(back, sample.boxes, atol=1e-4)


def test_no_object_is_dropped(paint):
    sample = paint((1000, 1000), [(500, 500, 4, 2, 0)], [1])
    assert len(Letterbox(image_size=32).apply(sample).boxes) == 1


def test_what_a_window_leaves_out_is_dropped_and_the_rest_is_cut(paint):
    inside, half, beyond = (50, 50, 10, 6, 0), (80, 50, 20, 10, 0), (95, 20, 8, 6, 0)
    sample = paint((100, 100), [inside, half, beyond], [0, 1, 2])
    sample.window = (20.0, 20.0, 80.0, 80.0)
    fitted = Letterbox(image_size=60).apply(sample)
    assert fitted.labels.tolist() == [0, 1]
    np.testing.assert_allclose(fitted.boxes, [[25, 27, 35, 33], [50, 25, 60, 35]], atol=1e-4)
    assert fitted.window is None
    assert Letterbox(image_size=60, min_visible=0.6).apply(sample).labels.tolist() == [0]
    assert Letterbox(image_size=60, min_side=11).apply(sample).labels.tolist() == []
    # Control: the whole image keeps them.
    sample.window = None
    assert len(Letterbox(image_size=60).apply(sample).labels) == 3
