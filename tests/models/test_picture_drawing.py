"""What a device draws, beside what the host draws of the same recipes."""

import cv2
import numpy as np
import pytest
import torch

from lucid.datasets import SampleKey, ShapesDataset
from lucid.datasets.layers import HSVParameters, Layer, Pass, Source
from lucid.datasets.packing import Packer
from lucid.datasets.picture import Picture
from lucid.models.data_preprocessors import drawing
from lucid.models.data_preprocessors.colors import recolor
from lucid.models.data_preprocessors.drawing import draw_pictures
from lucid.structures.affine import mirroring, rotation, scaling, translation
from lucid.structures.image_pool import ImagePool

PIPELINE = [
    {'type': 'Mosaic', 'prob': 0.7, 'close_last': 0},
    {'type': 'RandomAffine'},
    {'type': 'Mixup', 'prob': 0.4, 'close_last': 0},
    {'type': 'CopyPaste', 'prob': 0.4, 'close_last': 0},
    {'type': 'RandomHSV'},
    {'type': 'HorizontalFlip'},
]


def draw(pictures, device, **changes):
    """Drawn on a device from pixels that the host sends."""
    pool = ImagePool(100, budget_mb=0, read=lambda index: pytest.fail('all is sent'))
    batch = Packer(pool.resident, files=None).pack(pictures, range(len(pictures)))
    for name, change in changes.items():
        first = batch.passes[0]
        batch = batch.__class__(
            **{**vars(batch), 'passes': (first._replace(**{name: change(getattr(first, name))}), *batch.passes[1:])}
        )
    return draw_pictures(batch, pool, device).cpu().numpy()


def apart(drawn, pictures):
    return np.abs(drawn.astype(int) - np.stack([picture.pixels for picture in pictures]))


@pytest.fixture(scope='module')
def make(tmp_path_factory):
    folder = tmp_path_factory.mktemp('shapes')

    def pictures(pipeline, num=24):
        dataset = ShapesDataset(
            folder,
            split='train',
            num_images=12,
            image_size=96,
            scene_size=80,
            targets=('boxes', 'polygons'),
            pipeline=pipeline,
        )
        return [dataset[SampleKey(index // 12, index % 12, 9)].picture for index in range(num)]

    return pictures


@pytest.fixture
def noise():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in ((30, 40), (50, 20), (33, 33))]


def layer(image, matrix, crop=None):
    return Layer(Source(image.shape[:2], pixels=image), matrix, crop)


def test_a_whole_pipeline_is_what_the_host_draws(make, device):
    pictures = make(PIPELINE)
    assert {len(picture.passes) for picture in pictures} == {1, 2, 3}
    difference = apart(draw(pictures, device), pictures)
    # A level of rounding, which colours can make a few of; and next to no pixel has any.
    assert difference.max() <= 8
    assert difference.mean() < 0.01
    assert (difference > 1).mean() < 1e-3


@pytest.mark.parametrize('degrees', [0, 10])
def test_geometry_alone_is_the_hosts_to_a_level(make, device, degrees):
    pictures = make([PIPELINE[0], {'type': 'RandomAffine', 'degrees': degrees, 'shear': degrees / 4}, PIPELINE[5]])
    difference = apart(draw(pictures, device), pictures)
    # Of turned images, a pixel whose centre lies on an edge may fall to the other side.
    assert (difference > 1).mean() <= (1e-4 if degrees else 0)
    assert difference.mean() < 0.01
    # Control: half a pixel beside.
    half = torch.tensor([0.5, 0.0])
    beside = draw(pictures, device, maps_RL23=lambda maps: maps + torch.eye(3)[2] * half[:, None])
    assert apart(beside, pictures).mean() > 20 * max(difference.mean(), 0.01)


def test_the_later_layer_lies_over_the_earlier_on_the_device_too(noise, device):
    first, second = (
        layer(noise[0], scaling(1.2, 1.2), (0, 0, 40, 30)),
        layer(noise[1], translation(9, 6), (0, 0, 20, 40)),
    )
    picture, wrong = Picture((40, 48), (Pass((first, second)),)), Picture((40, 48), (Pass((second, first)),))
    assert apart(draw([picture], device), [picture]).max() <= 1
    # Control: the other order shows.
    assert apart(draw([wrong], device), [picture]).max() > 100


MAPS = {
    'enlarged': translation(3.3, -2.7) @ scaling(1.7, 1.4),
    'reduced': translation(5.25, 4.5) @ scaling(0.6, 0.45),
    'mirrored': mirroring(50) @ translation(3.3, 2.2) @ scaling(1.1, 1.1),
    'turned': translation(10, 5) @ rotation(33) @ scaling(0.8, 1.2),
    'whole pixels': translation(4, 3),
}


@pytest.mark.parametrize('name', MAPS)
def test_borders_fade_or_end_hard_as_on_the_host(noise, device, name):
    crops = [None, (0, 0, 40, 30), (0, 7.3, 31.2, 30), (5.6, 0.3, 21.9, 18.7)]
    pictures = [Picture((44, 50), (Pass((layer(noise[0], MAPS[name], crop),)),)) for crop in crops]
    difference = apart(draw(pictures, device), pictures)
    assert difference.max() <= 1
    if name == 'whole pixels':
        assert not difference.any()


def test_nothing_is_grey_and_images_of_all_kinds_share_a_batch(noise, device):
    size = (40, 48)
    plain = Picture.of(noise[0]).warped(translation(2, 3), size)
    second = Picture.of(noise[1]).warped(scaling(0.9, 0.7), size)
    ring = np.array([[3, 4], [35, 2], [9, 37]], np.float32)
    colors = HSVParameters(0.01, 1.3172, 0.7319)
    pictures = [
        Picture(size, (Pass(()),)),
        plain,
        Picture(size, (Pass(()),)).recolored(colors),
        plain.blended(second.recolored(colors), 0.3),
        plain.pasted(second, [ring]),
        plain.pasted(second.recolored(colors), [ring]).recolored(colors).recolored(HSVParameters(0.2, 0.5, 1.1)),
        plain.blended(second, 0.6).pasted(Picture.of(noise[2]).warped(scaling(1.2, 1.2), size), [ring]),
        plain.pasted(second, []),
    ]
    drawn = draw(pictures, device)
    assert (drawn[0] == 114).all()
    # After two changes of colours a level can have become several.
    assert apart(drawn, pictures).max() <= 6
    assert (apart(drawn, pictures) > 1).mean() < 1e-3


@pytest.mark.parametrize('limit', ['GROUP_PIXELS', 'GROUP_BYTES'])
def test_groups_of_images_change_nothing(make, device, monkeypatch, limit):
    pictures = make(PIPELINE)
    whole = draw(pictures, device)
    monkeypatch.setattr(drawing, limit, 3 * 96 * 96 * 8)
    np.testing.assert_array_equal(draw(pictures, device), whole)
    monkeypatch.setattr(drawing, limit, 1)
    np.testing.assert_array_equal(draw(pictures, device), whole)


def test_colours_are_opencvs_to_a_level(device):
    image = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    image[:256, :256] = np.stack(np.broadcast_arrays(np.arange(256)[:, None], np.arange(256), 7), axis=2)
    for table in np.random.default_rng(1).integers(0, 256, (3, 256, 3), dtype=np.uint8):
        hsv = cv2.LUT(cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL), table[None])
        expected = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL).astype(int)
        given = (torch.tensor(one, device=device)[None] for one in (image, table))
        difference = np.abs(recolor(*given)[0].cpu().numpy() - expected)
        assert difference.max() <= 1
        assert difference.mean() < 1e-4
        # Control: hue one level further is noticed.
        table[:, 0] += 5
        turned = recolor(*(torch.tensor(one, device=device)[None] for one in (image, table)))[0].cpu().numpy()
        assert np.abs(turned - expected).mean() > 1
