"""Where pixels lie: the centroid of a blob is the centre of its box, on the host and on the device.

A matrix that is off by half a pixel moves every target against its image by half a pixel; nothing else would show it.
"""

import json
from functools import partial

import numpy as np
import PIL.Image
import pytest
import torch

from lucid.datasets import CocoDataset, SampleKey
from lucid.datasets.packing import Packer
from lucid.models.data_preprocessors import drawing
from lucid.structures.affine import warp_boxes
from lucid.structures.image_pool import ImagePool

SIGMA = 7.0
REACH = 3 * SIGMA  # from a blob's centre to the sides of its box
GREY = 114
FILE = (140, 180)  # height and width
NUM = 6


@pytest.fixture(scope='module')
def make(tmp_path_factory):
    """Data sets of images with one blob each, at a place between pixels, in lossless files."""
    root = tmp_path_factory.mktemp('blobs')
    (root / 'train').mkdir()
    rng = np.random.default_rng(0)
    y, x = np.mgrid[: FILE[0], : FILE[1]] + 0.5
    images, boxes = [], []
    for number in range(NUM):
        cx, cy = rng.uniform(REACH + 3, FILE[1] - REACH - 3), rng.uniform(REACH + 3, FILE[0] - REACH - 3)
        level = GREY + 140 * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * SIGMA**2))
        PIL.Image.fromarray(np.repeat(np.round(level).astype(np.uint8)[..., None], 3, axis=2)).save(
            root / 'train' / f'{number}.png'
        )
        images.append({'id': number, 'file_name': f'{number}.png', 'height': FILE[0], 'width': FILE[1]})
        box = [cx - REACH, cy - REACH, 2 * REACH, 2 * REACH]
        boxes.append({'id': number, 'image_id': number, 'category_id': 1, 'bbox': box, 'area': 1.0, 'iscrowd': 0})
    document = {'images': images, 'annotations': boxes, 'categories': [{'id': 1, 'name': 'blob'}]}
    (root / 'train' / '_annotations.coco.json').write_text(json.dumps(document))
    return partial(CocoDataset, root, split='train')


def on_the_host(pictures):
    return np.stack([picture.pixels for picture in pictures])


def on_a_device(pictures, device):
    pool = ImagePool(NUM, budget_mb=0, read=lambda index: pytest.fail('all is sent'))
    batch = Packer(pool.resident, files=None).pack(pictures, range(len(pictures)))
    return drawing.draw_pictures(batch, pool, device).cpu().numpy()


def offsets(samples, images):
    """Centroid less centre of box, (x, y), of every blob that is whole and has nothing else around it."""
    found = []
    for sample, image in zip(samples, images, strict=True):
        height, width = image.shape[:2]
        for box in sample.boxes.astype(np.float64):
            others = (sample.boxes[:, :2] < box[2:]) & (sample.boxes[:, 2:] > box[:2])
            cut = abs((box[2] - box[0]) / (box[3] - box[1]) - 1) > 1e-3 or (box[:2] < 2).any()
            if cut or (box[2:] > (width - 2, height - 2)).any() or others.all(axis=1).sum() > 1:
                continue
            left, top = np.floor(box[:2]).astype(int)
            right, bottom = np.ceil(box[2:]).astype(int)
            weights = image[top:bottom, left:right, 0].astype(np.float64) - GREY
            y, x = np.mgrid[top:bottom, left:right] + 0.5
            centroid = np.array([(weights * x).sum(), (weights * y).sum()]) / weights.sum()
            found.append(centroid - (box[:2] + box[2:]) / 2)
    return np.array(found)


PIPELINES = {
    'letterbox': [{'type': 'Letterbox'}],
    'affine': [{'type': 'RandomAffine'}],
    'turned': [{'type': 'RandomAffine', 'degrees': 20, 'shear': 0}],
    'mosaic': [{'type': 'Mosaic', 'close_last': 0}, {'type': 'RandomAffine'}, {'type': 'HorizontalFlip'}],
}


@pytest.mark.parametrize('where', ['host', 'cpu', pytest.param('cuda', marks=pytest.mark.cuda)])
@pytest.mark.parametrize('name', PIPELINES)
def test_the_centroid_of_a_blob_is_the_centre_of_its_box(make, name, where):
    # Enlarged, and fitted with an odd ratio; no pixel of the file is a pixel of the result.
    dataset = make(image_size=256, pipeline=PIPELINES[name])
    samples = [dataset[SampleKey(epoch, index, 9)] for epoch in range(6) for index in range(NUM)]
    pictures = [sample.picture for sample in samples]
    images = on_the_host(pictures) if where == 'host' else on_a_device(pictures, torch.device(where))
    found = offsets(samples, images)
    assert len(found) >= 10
    assert np.abs(found).max() < 0.05
    assert np.abs(found.mean(axis=0)).max() < 0.01
    # Control: half a pixel beside.
    for sample in samples:
        sample.boxes = warp_boxes(np.array([[1.0, 0, 0.5], [0, 1, 0], [0, 0, 1]]), sample.boxes)
    assert (np.abs(offsets(samples, images)[:, 0] + 0.5) < 0.05).all()
