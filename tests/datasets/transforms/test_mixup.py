import numpy as np
import pytest

from lucid.datasets.samplers import SampleKey
from lucid.datasets.transforms import Letterbox, Mixup, MixupParameters, Partner, RandomAffine, build_pipeline

BOX = Letterbox(image_size=64)


def flat(paint, value, boxes=(), labels=()):
    sample = paint((64, 64), boxes, labels)
    sample.image[:] = value
    return sample


def test_pixels_are_blended_by_the_weight_and_rounded(paint, source):
    mixup = Mixup(source=source(flat(paint, 200)), before=[BOX])
    blend = mixup.apply(flat(paint, 101), MixupParameters(0.25, Partner(0, 1)))
    # 0.25 * 101 + 0.75 * 200 = 175.25
    assert (blend.image == 175).all()
    assert blend.image.dtype == np.uint8


def test_the_objects_of_both_are_kept_in_every_kind_those_of_the_sample_first(paint, source):
    first = paint((64, 64), [(20, 20, 20, 10, 0)], [2])
    second = paint((64, 64), [(40, 44, 12, 8, 0), (12, 50, 8, 6, 0)], [0, 1])
    blend = Mixup(source=source(second), before=[BOX]).apply(first, MixupParameters(0.5, Partner(0, 1)))
    assert blend.labels.tolist() == [2, 0, 1]
    np.testing.assert_allclose(blend.boxes, [[10, 15, 30, 25], [34, 40, 46, 48], [8, 47, 16, 53]], atol=1e-4)
    assert [len(kind) for kind in (blend.polygons, blend.rboxes, blend.keypoints)] == [3, 3, 3]
    np.testing.assert_array_equal(blend.keypoints[1:], second.keypoints)
    np.testing.assert_array_equal(blend.rboxes[1:], second.rboxes)
    np.testing.assert_array_equal(blend.polygons[2][0], second.polygons[1][0])
    assert (blend.image_id, blend.file) == (first.image_id, first.file)
    assert len(first.boxes) == 1
    assert first.image.max() == 255


def test_targets_of_both_are_where_their_paint_is(paint, source, misplaced):
    first = paint((64, 64), [(20, 20, 22, 12, 0.4)], [2])
    second = paint((128, 100), [(60, 90, 40, 20, 2.0)], [0])
    blend = Mixup(source=source(second), before=[BOX]).apply(first, MixupParameters(0.5, Partner(0, 1)))
    blend.image = np.minimum(blend.image.astype(int) * 2, 255).astype(np.uint8)  # half the light of each
    assert misplaced(blend.selected(blend.labels == 2)) < 1.5
    assert misplaced(blend.selected(blend.labels == 0)) < 1.5
    # Control: targets that did not go through the letterbox lie elsewhere.
    blend.boxes[1] = second.boxes[0]
    assert misplaced(blend.selected(blend.labels == 0)) > 10


def test_the_second_sample_goes_through_what_comes_before_with_draws_of_its_own(paint, source):
    plain = flat(paint, 10)
    marked = paint((64, 64), [(32, 32, 20, 20, 0)], [1])
    pipeline = build_pipeline(
        [
            {'type': 'RandomAffine', 'translate': 0.2, 'scale': 0.0},
            {'type': 'Mixup', 'prob': 1.0},
            {'type': 'RandomHSV'},
        ],
        image_size=64,
        source=source(marked),
    )
    affine, mixup, _ = pipeline
    assert list(mixup.before) == [affine]
    places = [mixup.apply(plain, MixupParameters(0.5, Partner(0, seed))).boxes[0, :2] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(places[0], places[1])
    assert np.abs(places[0] - places[2]).max() > 1
    expected = affine.draw(np.random.Generator(np.random.PCG64(1)), marked).translate
    np.testing.assert_allclose(places[0], 22 + 64 * np.array(expected), atol=1e-3)


def test_one_that_takes_a_second_sample_is_never_inside_another(paint, source):
    pipeline = build_pipeline(
        [
            {'type': 'Letterbox'},
            *({'type': 'Mixup', 'prob': 1.0} for _ in range(3)),
            {'type': 'CopyPaste', 'prob': 1.0},
        ],
        image_size=64,
        source=source(paint((64, 64), [(32, 32, 20, 20, 0)], [1])),
    )
    for transform in pipeline[1:]:
        assert list(transform.before) == [pipeline[0]]


def test_the_share_follows_the_beta_distribution(paint, source):
    mixup, sample, rng = Mixup(source=source(flat(paint, 0)), prob=1.0), flat(paint, 0), np.random.default_rng(0)
    sample.key = SampleKey(0, 0, 100)
    weights = np.array([mixup.draw(rng, sample).weight for _ in range(20000)])
    # Beta(a, a): mean 1/2, variance 1 / (4 (2 a + 1)) = 1/260 for a = 32. Standard errors: 0.00044 and 0.00004.
    assert weights.mean() == pytest.approx(0.5, abs=0.0018)
    assert weights.var() == pytest.approx(1 / 260, abs=0.00016)
    # Control: with a = 8 the variance is 1/68.
    wide = Mixup(source=mixup.source, prob=1.0, alpha=8.0)
    assert np.var([wide.draw(rng, sample).weight for _ in range(5000)]) == pytest.approx(1 / 68, abs=0.0015)


def test_it_is_drawn_with_its_probability_and_partners_are_uniform(paint, source):
    sample, rng = flat(paint, 0), np.random.default_rng(0)
    sample.key = SampleKey(0, 0, 100)
    mixup = Mixup(source=source(*[flat(paint, 0)] * 4), prob=0.2)
    kept = [draw for _ in range(4000) if (draw := mixup.draw(rng, sample)) is not None]
    assert 0.18 < len(kept) / 4000 < 0.22
    assert (np.bincount([draw.partner.image for draw in kept], minlength=4) > 160).all()
    never = Mixup(source=mixup.source, prob=0.0)
    assert not any(never.draw(rng, sample) for _ in range(100))
    assert never.apply(sample, None) is sample


def test_it_closes_in_the_last_epochs_and_in_validation(paint, source):
    sample, mixup = flat(paint, 0), Mixup(source=source(flat(paint, 0)), prob=1.0, close_last=3)
    drawn = []
    for epoch in range(6):
        sample.key = SampleKey(epoch, 0, 6 - epoch)
        drawn.append(mixup.draw(np.random.default_rng(0), sample) is not None)
    assert drawn == [True] * 3 + [False] * 3
    sample.key = SampleKey.of(0)
    assert Mixup(source=mixup.source, prob=1.0, close_last=0).draw(np.random.default_rng(0), sample) is None


def test_what_is_closed_for_the_sample_is_closed_for_its_partner(paint, source):
    seen = []

    class Watching(RandomAffine):
        def draw(self, rng, sample):
            seen.append(sample.key)
            return super().draw(rng, sample)

    first = flat(paint, 0)
    first.key = SampleKey(7, 3, 12)
    partners = source(flat(paint, 0), flat(paint, 0))
    Mixup(source=partners, before=[Watching(image_size=64)]).apply(first, MixupParameters(0.5, Partner(1, 5)))
    assert seen == [SampleKey(7, 1, 12)]
    assert partners.reads == [1]


def test_impossible_settings_are_refused(paint, source):
    with pytest.raises(ValueError, match=r'prob=-0\.1 of Mixup is no probability'):
        Mixup(prob=-0.1)
    with pytest.raises(ValueError, match=r'alpha=0 of Mixup .* above 0'):
        Mixup(alpha=0)
    with pytest.raises(ValueError, match=r'Mixup joins images of one size.*put RandomAffine or Letterbox before it'):
        build_pipeline([{'type': 'Mosaic'}, {'type': 'Mixup'}], image_size=64, source=source())
    build_pipeline([{'type': 'Mosaic'}, {'type': 'Mixup', 'prob': 0.0}], image_size=64, source=source())


def test_images_of_two_sizes_are_named(paint, source):
    first = flat(paint, 0)
    first.file = 'first.jpg'
    mixup = Mixup(source=source(paint((32, 64), [], [])))
    mixup.before = []
    with pytest.raises(ValueError, match=r'first\.jpg and 0\.jpg have the sizes \(64, 64\) and \(32, 64\)'):
        mixup.apply(first, MixupParameters(0.5, Partner(0, 1)))
