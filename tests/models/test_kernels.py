"""The fused kernels beside the operators that say what they do: Triton's interpreter on a CPU, the same on a card."""

import importlib.util

import numpy as np
import pytest
import torch

from lucid.datasets import SampleKey, ShapesDataset
from lucid.datasets.layers import HSVParameters, Layer, Pass, Source
from lucid.datasets.packing import Packer
from lucid.datasets.picture import Picture
from lucid.models.data_preprocessors import colors, drawing
from lucid.structures.affine import rotation, scaling, translation
from lucid.structures.image_pool import ImagePool

PIPELINE = [
    {'type': 'Mosaic', 'prob': 0.8, 'close_last': 0},
    {'type': 'RandomAffine', 'degrees': 8, 'shear': 3},
    {'type': 'Mixup', 'prob': 0.4, 'close_last': 0},
    {'type': 'CopyPaste', 'prob': 0.4, 'close_last': 0},
    {'type': 'RandomHSV'},
    {'type': 'HorizontalFlip'},
]


@pytest.fixture
def kernels(device, monkeypatch):
    """The module of kernels for a device; on a CPU a copy that Triton interprets."""
    if device.type == 'cuda':
        return drawing.fused_kernels(device)
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    spec = importlib.util.find_spec('lucid.models.data_preprocessors.kernels')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def draw(pictures, device, kernels, monkeypatch):
    monkeypatch.setattr(drawing, 'fused_kernels', lambda _: kernels)
    pool = ImagePool(100, budget_mb=0, read=lambda index: pytest.fail('all is sent'))
    batch = Packer(pool.resident, files=None).pack(pictures, range(len(pictures)))
    return drawing.draw_pictures(batch, pool, device).cpu()


def pictures_of(tmp_path, pipeline, num=8):
    dataset = ShapesDataset(
        tmp_path,
        split='s',
        num_images=8,
        image_size=64,
        scene_size=72,
        targets=('boxes', 'polygons'),
        pipeline=pipeline,
    )
    return [dataset[SampleKey(index // 8, index % 8, 9)].picture for index in range(num)]


def test_a_batch_of_a_whole_pipeline_has_the_bits_of_the_operators(tmp_path, device, kernels, monkeypatch):
    pictures = pictures_of(tmp_path, PIPELINE)
    assert {len(picture.passes) for picture in pictures} >= {1, 2}
    expected = draw(pictures, torch.device('cpu'), None, monkeypatch)
    assert torch.equal(draw(pictures, device, kernels, monkeypatch), expected)
    # Control: other colours are noticed.
    changed = [picture.recolored(HSVParameters(0.0, 1.0, 0.97)) for picture in pictures]
    assert not torch.equal(draw(changed, device, kernels, monkeypatch), expected)


@pytest.mark.parametrize('size', [(40, 48), (33, 31)])
def test_layers_over_each_other_borders_and_grey_have_the_bits_of_the_operators(size, device, kernels, monkeypatch):
    rng = np.random.default_rng(0)
    sources = [Source(side, pixels=rng.integers(0, 256, (*side, 3), dtype=np.uint8)) for side in ((30, 40), (50, 20))]
    maps = [
        translation(3.3, -2.7) @ scaling(0.7, 0.8),
        translation(20, -9) @ rotation(33) @ scaling(0.8, 1.2),
        translation(-4, 3),
    ]
    layers = [Layer(sources[0], maps[0], (0, 7.3, 31.2, 30)), Layer(sources[1], maps[1], (2.5, 0, 20, 40))]
    pictures = [
        Picture(size, (Pass(tuple(layers)),)),
        Picture(size, (Pass(tuple(layers[::-1])),)),
        Picture(size, (Pass((Layer(sources[0], maps[2]),)),)),
        Picture(size, (Pass(()),)).recolored(HSVParameters(0.1, 0.5, 1.2)),
    ]
    expected = draw(pictures, torch.device('cpu'), None, monkeypatch)
    assert torch.equal(draw(pictures, device, kernels, monkeypatch), expected)
    assert not torch.equal(expected[0], expected[1])  # the order shows
    # No byte is left as it was: memory from before is poisoned.
    monkeypatch.setattr(torch, 'empty', lambda *shape, **kinds: torch.full(*shape, 77, **kinds))
    assert torch.equal(draw(pictures, device, kernels, monkeypatch), expected)


def test_all_colours_have_the_bits_of_the_operators(device, kernels):
    red, green = torch.meshgrid(torch.arange(256), torch.arange(256), indexing='ij')
    images = torch.stack([torch.stack([red, green, (red * 7 + green * shift) % 256], dim=2) for shift in (0, 11)])
    images = images.to(torch.uint8)
    tables = torch.randint(0, 256, (2, 256, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    changed = images.clone().to(device)
    kernels.recolor(changed, tables.to(device))
    assert torch.equal(changed.cpu(), colors.recolor(images, tables))
    assert not torch.equal(changed.cpu(), images)


def test_images_that_are_not_neighbours_get_their_own_colours(tmp_path, device, kernels, monkeypatch):
    plain = pictures_of(tmp_path, [{'type': 'Letterbox'}], num=5)
    tones = [HSVParameters(0.0, 1.0, factor) for factor in (0.3, 0.6, 1.5)]
    mixed = [
        plain[0].recolored(tones[0]),
        plain[1],
        plain[2].recolored(tones[1]),
        plain[3].recolored(tones[2]),
        plain[4],
    ]
    drawn = draw(mixed, device, kernels, monkeypatch)
    assert torch.equal(drawn, draw(mixed, torch.device('cpu'), None, monkeypatch))
    before = draw(plain, device, kernels, monkeypatch)
    assert [torch.equal(one, other) for one, other in zip(drawn, before, strict=True)] == [
        False,
        True,
        False,
        False,
        True,
    ]


def test_there_are_kernels_for_cards_alone():
    assert drawing.fused_kernels(torch.device('cpu')) is None
