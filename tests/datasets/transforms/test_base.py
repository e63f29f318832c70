import numpy as np
import pytest

from lucid.datasets.picture import Picture
from lucid.datasets.sample import Sample
from lucid.datasets.transforms import Letterbox, RandomAffine, Transform, build_pipeline, height_width


class Offset(Transform):
    def draw(self, rng, sample):
        return int(rng.integers(1, 100))

    def apply(self, sample, parameters):
        return Sample(Picture.of(sample.image + parameters), sample.boxes, sample.labels, rng=sample.rng)


def test_calling_a_transform_draws_from_the_samples_generator_and_applies():
    sample = Sample(Picture.of(np.zeros((1, 1, 3), np.uint8)), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    sample.rng = np.random.default_rng(5)
    expected = np.random.default_rng(5).integers(1, 100, size=2)
    twice = Offset()(Offset()(sample))
    assert twice.image[0, 0, 0] == expected.sum()
    assert sample.image[0, 0, 0] == 0


def test_a_pipeline_gets_what_its_configs_do_not_state():
    configs = [{'type': 'Letterbox'}, {'type': 'RandomAffine', 'image_size': 32}, {'type': 'RandomHSV'}]
    box, affine, _ = build_pipeline(configs, image_size=64, source=None)
    assert isinstance(box, Letterbox)
    assert isinstance(affine, RandomAffine)
    assert (box.size, affine.size) == ((64, 64), (32, 32))
    assert configs[0] == {'type': 'Letterbox'}


def test_transforms_that_are_already_built_are_kept():
    box = Letterbox(image_size=8)
    assert build_pipeline([box], image_size=64) == [box]


def test_an_unknown_parameter_of_a_transform_is_refused():
    with pytest.raises(TypeError, match='degree'):
        build_pipeline([{'type': 'RandomAffine', 'degree': 3}], image_size=64)


def test_an_image_size_is_a_side_or_height_and_width():
    assert height_width(64) == (64, 64)
    assert height_width([32, 64]) == (32, 64)
    for wrong in (0, -1, (1, 2, 3), 'ab', (1.5, 2)):
        with pytest.raises(ValueError, match='image_size='):
            height_width(wrong)
