import cv2
import numpy as np
import pytest

from lucid.datasets import CocoDataset, YoloDataset
from lucid.datasets.samplers import SampleKey
from lucid.datasets.transforms import CopyPaste, CopyPasteParameters, Letterbox, Partner, build_pipeline
from lucid.structures.masks import fill_rings, mask_envelope

BOX = Letterbox(image_size=64)
DRAWN = CopyPasteParameters(Partner(0, 1))


def upright(x1, y1, x2, y2):
    return ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, 0)


def pasting(source, **changes):
    return CopyPaste(source=source, before=[BOX], **changes)


def test_objects_are_pasted_where_they_are_and_nothing_else_of_their_image(paint, source):
    first = paint((64, 64), [upright(4, 4, 14, 12)], [2])
    first.image[first.image.sum(axis=2) == 0] = 50
    second = paint((64, 64), [upright(40, 30, 60, 40)], [0])
    result = pasting(source(second)).apply(first, DRAWN)
    expected = first.image.copy()
    expected[30:40, 40:60] = (255, 0, 0)
    np.testing.assert_array_equal(result.image, expected)
    assert result.labels.tolist() == [2, 0]
    np.testing.assert_allclose(result.boxes, [[4, 4, 14, 12], [40, 30, 60, 40]], atol=1e-4)
    np.testing.assert_array_equal(result.rboxes[1:], second.rboxes)
    np.testing.assert_array_equal(result.keypoints[1:], second.keypoints)
    np.testing.assert_array_equal(result.polygons[1][0], second.polygons[0][0])
    assert (first.image[30:40, 40:60] == 50).all()


def test_targets_of_pasted_objects_are_where_their_paint_is(paint, source, misplaced):
    first = paint((64, 64), [(18, 18, 22, 10, 0.3)], [2])
    second = paint((128, 100), [(60, 90, 40, 20, 2.0), (75, 20, 30, 16, 1.0)], [0, 1])
    result = pasting(source(second)).apply(first, DRAWN)
    assert result.labels.tolist() == [2, 0, 1]
    assert misplaced(result) < 1.5


@pytest.mark.parametrize('place', [(30, 32), (22, 25), (36, 40)])
def test_what_is_hidden_is_cut_from_the_targets(paint, source, place):
    """Box and polygon of the object behind are those of its paint that is left."""
    first = paint((64, 64), [(30, 32, 40, 18, 0.5)], [2])
    second = paint((64, 64), [(*place, 26, 14, 1.9)], [0])
    result = pasting(source(second)).apply(first, DRAWN)
    assert result.labels.tolist() == [2, 0]
    left = (result.image[..., 2] > 127) & (result.image[..., 0] < 100)
    assert np.abs(result.boxes[0] - mask_envelope(left)).max() < 1.5
    # The painter's lines are half a pixel wider on either side: 116 pixels of outline.
    assert (fill_rings(result.polygons[0], left.shape) != left).sum() < 0.75 * 116
    # Control: the whole outline is wrong by what is hidden, at least 130 pixels.
    assert (fill_rings(first.polygons[0], left.shape) != left).sum() > 1.5 * 116


def test_an_object_hidden_from_sight_is_dropped_and_one_that_is_seen_enough_is_kept(paint, source):
    first = paint((64, 64), [upright(10, 10, 20, 20), upright(10, 30, 50, 40)], [1, 2])
    second = paint((64, 64), [upright(8, 8, 45, 42)], [0])
    # Of the second object 5 of 40 columns are seen.
    assert pasting(source(second)).apply(first, DRAWN).labels.tolist() == [2, 0]
    assert pasting(source(second), min_visible=0.13).apply(first, DRAWN).labels.tolist() == [0]
    assert pasting(source(second), min_side=6).apply(first, DRAWN).labels.tolist() == [0]


def test_keypoints_behind_a_pasted_object_become_hidden(paint, source):
    first = paint((64, 64), [upright(10, 10, 50, 30)], [1])
    second = paint((64, 64), [upright(40, 5, 60, 20)], [0])
    result = pasting(source(second)).apply(first, DRAWN)
    # Corners in turn: (10, 10), (50, 10), (50, 30), (10, 30).
    assert result.keypoints[0, :, 2].tolist() == [2, 1, 2, 2]
    assert result.keypoints[1, :, 2].tolist() == [2, 2, 2, 2]


def test_pasted_objects_keep_their_order_among_themselves(paint, source):
    second = paint((64, 64), [upright(10, 10, 40, 40), upright(20, 20, 30, 30)], [0, 1])
    result = pasting(source(second)).apply(paint((64, 64), [], []), DRAWN)
    assert tuple(result.image[25, 25]) == (0, 255, 0)
    assert result.labels.tolist() == [0, 1]


def test_objects_without_polygons_are_not_pasted(paint, source):
    first = paint((64, 64), [upright(4, 4, 14, 12)], [2])
    second = paint((64, 64), [upright(40, 30, 60, 40), upright(20, 50, 30, 60)], [0, 1])
    second.polygons[0] = []
    result = pasting(source(second)).apply(first, DRAWN)
    assert result.labels.tolist() == [2, 1]
    assert not result.image[30:40, 40:60].any()
    none = pasting(source(second, paint((64, 64), [], []))).apply(first, CopyPasteParameters(Partner(1, 1)))
    np.testing.assert_array_equal(none.image, first.image)
    assert none.labels.tolist() == [2]


def test_it_is_drawn_with_its_probability_and_closes(paint, source):
    sample, rng = paint((64, 64), [], []), np.random.default_rng(0)
    sample.key = SampleKey(0, 0, 100)
    partners = source(*[paint((64, 64), [upright(4, 4, 14, 12)], [2])] * 4)
    transform = pasting(partners, prob=0.4)
    kept = [draw for _ in range(4000) if (draw := transform.draw(rng, sample)) is not None]
    assert 0.375 < len(kept) / 4000 < 0.425
    assert (np.bincount([draw.partner.image for draw in kept], minlength=4) > 340).all()
    assert len({draw.partner.seed for draw in kept}) == len(kept)
    for remaining, drawn in ((11, True), (10, False), (0, False)):
        sample.key = SampleKey(0, 0, remaining)
        assert (pasting(partners, prob=1.0).draw(rng, sample) is not None) is drawn
    assert transform.apply(sample, None) is sample
    assert partners.reads == []


SEGMENTED = {'segmentation': [[1, 2, 11, 2, 11, 22]]}
PIPELINE = [{'type': 'Letterbox'}, {'type': 'CopyPaste', 'prob': 1.0, 'close_last': 0}]


def test_polygons_that_are_not_loaded_are_refused_with_the_remedy(coco):
    root = coco([SEGMENTED])
    with pytest.raises(ValueError, match=r'train\.json; set targets=.*polygons.*or prob=0 of CopyPaste'):
        CocoDataset(root, split='train', image_size=64, pipeline=PIPELINE)
    off = [{'type': 'Letterbox'}, {'type': 'CopyPaste', 'prob': 0.0}]
    assert len(CocoDataset(root, split='train', image_size=64, pipeline=off)[0].boxes) == 1


def test_where_no_object_has_a_polygon_it_is_off_and_says_so(coco, capsys):
    root, targets = coco([{}]), ('boxes', 'polygons')
    data = CocoDataset(root, split='train', image_size=64, targets=targets, pipeline=PIPELINE)
    said = capsys.readouterr().out
    assert 'WARNING - CopyPaste is off: no object of' in said
    assert 'train.json has a polygon' in said
    assert len(data[SampleKey(0, 0, 100)].boxes) == 1


def test_in_a_layout_without_polygons_it_is_off_and_says_so(tmp_path, paint, capsys):
    for folder in ('images/train', 'labels/train'):
        (tmp_path / folder).mkdir(parents=True)
    cv2.imwrite(str(tmp_path / 'images/train/a.png'), paint((64, 64), [], []).image)
    (tmp_path / 'labels/train/a.txt').write_text('0 0.5 0.5 0.2 0.2\n')
    (tmp_path / 'data.yaml').write_text('train: images/train\nnames: [cat]\n')
    data = YoloDataset(tmp_path, split='train', image_size=64, pipeline=PIPELINE)
    assert 'WARNING - CopyPaste is off: no object of' in capsys.readouterr().out
    assert len(data[SampleKey(0, 0, 100)].boxes) == 1


def test_control_where_objects_have_polygons_nothing_is_said_and_they_are_pasted(coco, capsys):
    root, targets = coco([SEGMENTED, {**SEGMENTED, 'image_id': 2}]), ('boxes', 'polygons')
    data = CocoDataset(root, split='train', image_size=64, targets=targets, pipeline=PIPELINE)
    assert 'CopyPaste' not in capsys.readouterr().out
    # Five epochs, both images: sometimes an image meets itself, and its object hides behind its own copy.
    counts = [len(data[SampleKey(epoch, index, 100)].boxes) for epoch in range(5) for index in (0, 1)]
    assert set(counts) == {1, 2}


def test_impossible_settings_are_refused(source):
    with pytest.raises(ValueError, match='prob=3 of CopyPaste is no probability'):
        CopyPaste(prob=3)
    with pytest.raises(ValueError, match='CopyPaste joins images of one size'):
        build_pipeline([{'type': 'CopyPaste'}], image_size=64, source=source())
